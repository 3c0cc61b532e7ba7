#!/bin/sh
# What runs in the container: the suite, in an environment of its own where the image does not bring what it needs,
# and then nox.
#     inside.sh ENVIRONMENT SESSION [-- OPTIONS]
set -eu
suite=${0%/torchmill/cell/containers/inside.sh}
environment=$1
session=$2
shift 2
if [ -e "$suite/noxfile.py" ]; then
  noxfile=$suite/noxfile.py
  libraries= # in the environment
else # an installed torchmill: $suite is like its site-packages
  noxfile=$suite/torchmill_suite/noxfile.py
  libraries=$suite
fi

serves='
import sys
from importlib.util import find_spec
needed = ("nox", "git", "psutil", "rich", "filelock", "auditwheel", "requests", "remotezip", "cyclonedx", "millguard", "millpress")
sys.exit(sys.version_info < (3, 11) or not all(map(find_spec, needed)))'
can_serve='
import sys, venv, ensurepip
sys.exit(sys.version_info < (3, 11))'

# Sets $python to the first of the image that a question holds for.
find_python() {
  for python in python3 python3.14 python3.13 python3.12 python3.11 \
    /opt/python/cp314-cp314/bin/python /opt/python/cp313-cp313/bin/python \
    /opt/python/cp312-cp312/bin/python /opt/python/cp311-cp311/bin/python; do
    if PYTHONPATH=$libraries "$python" -c "$1" 2>/dev/null; then
      return 0
    fi
  done
  return 1
}

is_whole() {
  [ -e "$environment/whole" ] && PYTHONPATH=$libraries "$environment/bin/python" -c "$serves" 2>/dev/null
}

make_environment() {
  if ! find_python "$can_serve"; then
    echo "the image has no Python 3.11 or newer with its venv module, on which the suite runs: install it there" >&2
    exit 3
  fi
  echo "installing what the suite needs into $environment, once" >&2
  rm -rf "$environment"
  "$python" -m venv "$environment"
  # In the suite's folder, because pip takes the paths in the file from the folder it runs in.
  if [ -z "$libraries" ]; then
    set -- -r requirements.txt
  else
    set -- torchmill # which pip finds on PYTHONPATH, as it finds the two libraries: it installs what they require
  fi
  (cd "$suite" && PYTHONPATH=$libraries "$environment/bin/python" -m pip install --quiet --quiet --disable-pip-version-check "$@")
  touch "$environment/whole"
}

if is_whole; then
  python=$environment/bin/python
elif ! find_python "$serves"; then
  if command -v flock >/dev/null; then # two sessions may begin at once
    exec 9>"$environment.lock"
    flock 9
  fi
  is_whole || make_environment
  exec 9>&-
  python=$environment/bin/python
fi
if [ -n "${COMPILER_PATH:-}" ] && [ ! -d "$COMPILER_PATH" ]; then # its label promises what cross-compilers.sh took back
  echo "the image's cross compilers did not work when it was made: its compilers are emulated, too" >&2
fi
exec "$python" -m nox -f "$noxfile" --envdir "$NOX_ENVDIR" -s "$session" "$@"
