#!/bin/sh
# sha256:@digest@
if [ -n "$TORCHMILL_MAPS" ]; then
  set -f
  IFS='
'
  set -- "$@" $TORCHMILL_MAPS
fi
gate=${MILLGUARD_GATE:-/dev/null}/gate
[ -x "$gate" ] && exec "$gate" @compiler@ "$@"
exec @compiler@ "$@"
