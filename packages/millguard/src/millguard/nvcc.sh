#!/bin/sh
export CCACHE_DISABLE=1
exec @gate@ @real@ "$@"
