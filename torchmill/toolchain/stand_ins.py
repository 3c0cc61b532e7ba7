"""sccache under the memory guard: what its server really compiles comes by the gate.

The server starts the compilers, and no release lets its own jobs be limited from outside: some take one per
processor, some as many as are asked for. But it runs what it is told is the compiler, with the environment of
who asked. So it is told a stand-in that goes by the gate; what it knows already it does not compile.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from torchmill import atomic
from torchmill.toolchain.compilers import Digest, identity

IN_USE = "TORCHMILL_SCCACHE"  # the program, for the launcher; without it nothing is cached
WITHOUT = "without-sccache"  # a file beside the gate: while it is there, nothing goes to sccache

# sccache knows a compiler by its file's text: that names neither a tree nor a guard, but the real compiler.
_STAND_IN = """\
#!/bin/sh
# sha256:{digest}
if [ -n "$TORCHMILL_MAPS" ]; then
  set -f
  IFS='
'
  set -- "$@" $TORCHMILL_MAPS
fi
gate=${{TORCHMILL_GATE:-/dev/null}}/gate
[ -x "$gate" ] && exec "$gate" {compiler} "$@"
exec {compiler} "$@"
"""
# A map of an absolute path is part of sccache's key, and that path another in each checkout: so it learns
# nothing of those. It ends with 2 where it failed itself: then the file is compiled without it.
_LAUNCHER = """\
#!/bin/sh
compiler=$1
shift
meeting=${{TORCHMILL_GATE:-/dev/null}}
if [ -n "$TORCHMILL_SCCACHE" ] && [ -x {stand_ins}"$compiler" ] && [ ! -e "$meeting/{without}" ]; then
  maps=
  for word; do
    shift
    case $word in
    -ffile-prefix-map=/*) maps="$maps$word
" ;;
    *) set -- "$@" "$word" ;;
    esac
  done
  TORCHMILL_MAPS=$maps "$TORCHMILL_SCCACHE" {stand_ins}"$compiler" "$@"
  code=$?
  [ $code -eq 2 ] || exit $code
  TORCHMILL_MAPS=$maps exec {stand_ins}"$compiler" "$@"
fi
[ -x "$meeting/gate" ] && exec "$meeting/gate" "$compiler" "$@"
exec "$compiler" "$@"
"""


def place(program: str, chosen: Iterable[str], folder: Path, digest: Digest) -> dict[str, str]:
    """Return the variables that put sccache before the compilers of CMake, all it compiles by the gate.

    `chosen` are absolute paths of compilers; one that is not among them goes by the gate and is not cached.
    `folder` takes the stand-ins: it is kept, because CMake remembers launchers. nvcc is not cached: sccache
    takes its steps apart and runs them itself. Raise OSError where the folder cannot be written.
    """
    launcher = folder / "sccache"
    for compiler in chosen:
        text = _STAND_IN.format(digest=identity(compiler, digest), compiler=shlex.quote(compiler))
        _write(Path(f"{folder}{compiler}"), text)
    _write(launcher, _LAUNCHER.format(stand_ins=shlex.quote(str(folder)), without=WITHOUT))
    launchers = {f"CMAKE_{language}_COMPILER_LAUNCHER": str(launcher) for language in ("C", "CXX")}
    return {IN_USE: program, **launchers}


def _write(file: Path, text: str) -> None:
    """Write a script by rename: another build may be running it."""
    if not (file.is_file() and file.read_bytes() == text.encode()):
        atomic.write(file, text, 0o755)
