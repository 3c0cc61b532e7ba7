"""sccache under the memory guard: what its server really compiles comes by the gate.

The server starts the compilers, and no release lets its own jobs be limited from outside: some take one per
processor, some as many as are asked for. But it runs what it is told is the compiler, with the environment of
who asked. So it is told a stand-in that goes by the gate; what it knows already it does not compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchwright.errors import HostError
from torchwright.process import CommandError, capture

LONGEST_ADDRESS = 100  # bytes of a socket's path: Linux takes 107, macOS 103

# sccache knows a compiler by its file's text: that names neither a tree nor a guard, but the real compiler.
_STAND_IN = """\
#!/bin/sh
# sha256:{digest}
gate=${{TORCHWRIGHT_GATE:-/dev/null}}/gate
[ -x "$gate" ] && exec "$gate" {compiler} "$@"
exec {compiler} "$@"
"""
_LAUNCHER = """\
#!/bin/sh
compiler=$1
shift
[ -x {stand_ins}"$compiler" ] && exec {program} {stand_ins}"$compiler" "$@"
gate=${{TORCHWRIGHT_GATE:-/dev/null}}/gate
[ -x "$gate" ] && exec "$gate" "$compiler" "$@"
exec {program} "$compiler" "$@"
"""


def by_the_gate(
    caching: Mapping[str, str], program: str, compilers: Iterable[str], folder: Path
) -> dict[str, str]:
    """Return the variables of sccache such that all it compiles comes by the gate; none where that fails.

    `compilers` are absolute paths; one that is not among them goes by the gate and is not cached. `folder`
    takes the stand-ins: it is kept, because CMake remembers launchers. nvcc is not cached: sccache takes its
    steps apart and runs them itself.
    """
    launcher = folder / "sccache"
    text = _LAUNCHER.format(stand_ins=shlex.quote(str(folder)), program=shlex.quote(program))
    try:
        for compiler in compilers:
            _place(Path(f"{folder}{compiler}"), _stand_in(compiler))
        _place(launcher, text)
    except OSError:
        return {}
    kept = {name: value for name, value in caching.items() if not name.endswith("_COMPILER_LAUNCHER")}
    return kept | {f"CMAKE_{language}_COMPILER_LAUNCHER": str(launcher) for language in ("C", "CXX")}


def found(names: Iterable[str], path: str | None) -> set[str]:
    """Return the absolute paths of those programs that are there."""
    there = (shutil.which(name, path=path) for name in names)
    return {one for one in there if one is not None and Path(one).is_absolute()}


def server(folder: Path) -> dict[str, str]:
    """Return what makes a build's server its own, reached in `folder`, and not one that is running already.

    Older than 0.9.0 it does not listen to that; nor does any to a path that is too long.
    """
    address = folder / "sccache"
    return {"SCCACHE_SERVER_UDS": str(address)} if len(os.fsencode(address)) <= LONGEST_ADDRESS else {}


def start(program: str, environ: Mapping[str, str]) -> None:
    """Start the server that a build with this environment will use, where it does not run yet.

    Clients that come together would each start one, and only the last of these would be heard.
    """
    with contextlib.suppress(CommandError, HostError):  # one that cannot start costs hits, not the build
        capture([program, "--start-server"], env=environ)


def _stand_in(compiler: str) -> str:
    with Path(compiler).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _STAND_IN.format(digest=digest, compiler=shlex.quote(compiler))


def _place(file: Path, text: str) -> None:
    """Write a script by rename: another build may be running it."""
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o755)
    fresh.replace(file)
