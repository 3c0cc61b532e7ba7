#!/usr/bin/env bash
# Builds @identifier@; needs git, a C++ compiler and @interpreter@, nothing else.
#   SOURCE=DIR      copy this tree instead of cloning the tag
#   PYTHON=PATH     the interpreter to build for
#   FIND_LINKS=DIR  where a wheel to build against lies
#   WORK=DIR        where to work; run again to go on where it stopped
#   cuda_home=DIR   another folder of the toolkit; cudnn_home, nccl_home: of these libraries
set -euo pipefail

work=${WORK:-$PWD/@identifier@}
export tree=$work/tree source=$work/tree/source raw=$work/raw dist=$work/dist
export venv=$work/venv kit=$work/venv python=$work/venv/bin/python
export patches=$work/patches
@homes@
mkdir -p "$tree" "$dist" "$patches"
rm -rf "$raw"

# A build sees what programs need to run, the compilers that this shell names, and no other setting. The second part
# of the pattern is this script's own.
while read -r name; do unset "$name"; done < <(compgen -e | grep -vxE '@passed@|[a-z_]+|SOURCE|PYTHON|FIND_LINKS|WORK|PIP_.*' || true)

"${PYTHON:-@interpreter@}" -m venv "$venv"
"$python" -m pip install --quiet --find-links "${FIND_LINKS:-$dist}" @requirements@
@torch@
@exports@

@patches@

if [ ! -e "$work/prepared" ]; then
  rm -rf "$source"
  if [ -n "${SOURCE:-}" ]; then
    cp -a "$SOURCE" "$source"
  else
@obtain@
  fi
  cd "$source"
@prepare@
  touch "$work/prepared"
fi

cd "$source"
@commands@

@repair@
ls "$dist"/@wheel@
