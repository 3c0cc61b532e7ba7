"""What a command costs: time, processor time of all that it started, servers included, and real compiles."""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # prctl(2)
PATIENCE = 10.0  # seconds that a server, whose build is over, gets to end by itself

# Preprocessing is no compile: ccache does that for what it then takes from its cache.
_COUNTING = """#!/bin/sh
case " $* " in *" -E "*) ;; *" -c "*) echo >>'{count}' ;; esac
exec {compiler} "$@"
"""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one command took."""

    seconds: float
    cpu: float  # seconds of all processors
    compiles: int
    code: int

    def as_row(self) -> dict[str, object]:
        """Return it for a line of JSON."""
        return {**asdict(self), "good": self.code == 0}


class Compilers:
    """A C and a C++ compiler that count how often they really compile; `cached`: by ccache, as it comes."""

    def __init__(self, folder: Path) -> None:
        self.plain = folder / "compilers"
        self.cached = folder / "cached"
        self._count = folder / "compiles"
        self.plain.mkdir(parents=True)
        for name in ("gcc", "g++"):
            script = self.plain / name
            script.write_text(
                _COUNTING.format(count=self._count, compiler=_found(name)), encoding="utf-8"
            )
            script.chmod(0o755)

    def as_they_are(self) -> dict[str, str]:
        """Return the variables that have a build use them."""
        return {"CC": str(self.plain / "gcc"), "CXX": str(self.plain / "g++")}

    def by_ccache(self, cache: Path, path: str) -> dict[str, str]:
        """Return the variables that have a build use them by way of ccache with its defaults."""
        self.cached.mkdir(exist_ok=True)
        for name in ("gcc", "g++"):
            with contextlib.suppress(FileExistsError):
                (self.cached / name).symlink_to(_found("ccache"))
        # ccache takes the next program of its own name on PATH; its 5 GB hold these builds
        path = os.pathsep.join([str(self.plain), path])
        here = {"CC": str(self.cached / "gcc"), "CXX": str(self.cached / "g++")}
        return {**here, "PATH": path, "CCACHE_DIR": str(cache)}

    def taken(self) -> int:
        """Return the number of compiles since the last time it was options for."""
        count = self._count.stat().st_size if self._count.exists() else 0
        self._count.unlink(missing_ok=True)
        return count


def spend(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str], compilers: Compilers, log: Path
) -> Spent:
    """Run a command and wait for everything that it started; what it says goes to `log`."""
    _adopt_orphans()
    compilers.taken()
    before, start = _cpu(), time.monotonic()
    with log.open("a", encoding="utf-8") as said:
        code = subprocess.run(
            argv,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            check=False,
        ).returncode
    seconds = time.monotonic() - start
    _end_orphans()
    return Spent(round(seconds, 2), round(_cpu() - before, 2), compilers.taken(), code)


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        sys.exit(f"{name} is not on PATH: install it")
    return path


def _adopt_orphans() -> None:
    """Become the parent of what loses its own, such as a server: only so its processor time is told."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit(f"orphans cannot be adopted: {os.strerror(ctypes.get_errno())}")


def _end_orphans() -> None:
    """Wait for what is left, and end what does not end by itself."""
    patience = time.monotonic() + PATIENCE
    while (left := list(_children())) or _reaped():
        if time.monotonic() > patience:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        while _reaped():
            pass
        time.sleep(0.05)


def _reaped() -> bool:
    """Take the account of one child that ended; tell whether there was one."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _children() -> Iterator[int]:
    """Yield the processes that are ours now."""
    for file in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        yield from map(int, file.read_text(encoding="ascii").split())


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
