#!/bin/sh
for word; do
  case $word in
  -MD | -MMD | --generate-dependencies-with-compile | --generate-nonsystem-dependencies-with-compile)
    export CCACHE_DEPEND=1
    exec @ccache@ @real@ "$@" ;;
  esac
done
export CCACHE_DISABLE=1
exec @gate@ @real@ "$@"
