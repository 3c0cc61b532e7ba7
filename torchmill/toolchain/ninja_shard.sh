#!/bin/sh
# Stands in for ninja: makes one share of the compiles where it is told so, and else is ninja.
[ -n "${TORCHMILL_SHARD:-}" ] || exec @ninja@ "$@"
case $PWD in */CMakeFiles/*) exec @ninja@ "$@" ;; esac # CMake's own trials
for word in "$@"; do
  case $word in -t | --version | -h | --help) exec @ninja@ "$@" ;; esac
done
PYTHONPATH=@suite@ exec @python@ -P -m torchmill.toolchain.shards @ninja@ "$@"
