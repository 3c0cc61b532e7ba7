#!/bin/sh
compiler=$1
shift
meeting=${MILLGUARD_GATE:-/dev/null}
if [ -n "$TORCHMILL_SCCACHE" ] && [ -x @stand_ins@"$compiler" ] && [ ! -e "$meeting/@without@" ]; then
  maps=
  for word; do
    shift
    case $word in
    -ffile-prefix-map=/*) maps="$maps$word
" ;;
    *) set -- "$@" "$word" ;;
    esac
  done
  TORCHMILL_MAPS=$maps "$TORCHMILL_SCCACHE" @stand_ins@"$compiler" "$@"
  code=$?
  [ $code -eq 2 ] || exit $code
  TORCHMILL_MAPS=$maps exec @stand_ins@"$compiler" "$@"
fi
[ -x "$meeting/gate" ] && exec "$meeting/gate" "$compiler" "$@"
exec "$compiler" "$@"
