"""What a command costs: time, processor time of all that it started, and how many compiles it really ran.

A compiler cache starts a server that outlives the command. Its processor time is part of the cost, so a benchmark
becomes the parent of such servers, and waits for their end.
"""

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

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
PATIENCE = 10.0  # seconds in which a server may end by itself after the command
COMPILERS = ("gcc", "g++")

# A call with -E only preprocesses: ccache does that even if it then finds the object in its cache.
_COUNTING_COMPILER = """#!/bin/sh
case " $* " in *" -E "*) ;; *" -c "*) echo >>'{count_file}' ;; esac
exec {compiler} "$@"
"""


@dataclass(frozen=True, slots=True)
class CommandCost:
    """What one command took."""

    seconds: float
    cpu: float  # seconds of all processors
    compiles: int
    code: int  # exit code

    def as_row(self) -> dict[str, object]:
        """Return it for a line of JSON."""
        return {**asdict(self), "good": self.code == 0}


class CountingCompilers:
    """A C and a C++ compiler that count how often they compile, with or without ccache before them."""

    def __init__(self, folder: Path) -> None:
        self._compilers = folder / "compilers"
        self._ccache_links = folder / "cached"
        self._count_file = folder / "compiles"  # one byte for each compile
        self._compilers.mkdir(parents=True)
        for name in COMPILERS:
            text = _COUNTING_COMPILER.format(
                count_file=self._count_file, compiler=_program_path(name)
            )
            script = self._compilers / name
            script.write_text(text, encoding="utf-8")
            script.chmod(0o755)

    def variables(self) -> dict[str, str]:
        """Return the variables with which a build uses these compilers."""
        return {"CC": str(self._compilers / "gcc"), "CXX": str(self._compilers / "g++")}

    def ccache_variables(self, cache: Path, path: str) -> dict[str, str]:
        """Return the variables with which a build uses them through ccache, with its default settings.

        `path` is the PATH of the build. ccache's default of 5 GB holds the builds of these benchmarks.
        """
        self._ccache_links.mkdir(exist_ok=True)
        for name in COMPILERS:
            with contextlib.suppress(FileExistsError):
                (self._ccache_links / name).symlink_to(_program_path("ccache"))
        return {
            "CC": str(self._ccache_links / "gcc"),
            "CXX": str(self._ccache_links / "g++"),
            # ccache under the name of a compiler runs the next program of that name on PATH.
            "PATH": os.pathsep.join([str(self._compilers), path]),
            "CCACHE_DIR": str(cache),
        }

    def take_count(self) -> int:
        """Return the number of compiles since the last call."""
        count = self._count_file.stat().st_size if self._count_file.exists() else 0
        self._count_file.unlink(missing_ok=True)
        return count


def measure_command(
    argv: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    compilers: CountingCompilers,
    log: Path,
) -> CommandCost:
    """Run a command, wait for everything that it started, and return the cost; its output goes to `log`."""
    _become_subreaper()
    compilers.take_count()
    cpu_before, start = _cpu_seconds(), time.monotonic()
    with log.open("a", encoding="utf-8") as output:
        code = subprocess.run(
            argv,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    seconds = time.monotonic() - start
    _end_servers()
    cpu = _cpu_seconds() - cpu_before
    return CommandCost(round(seconds, 2), round(cpu, 2), compilers.take_count(), code)


def _program_path(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        sys.exit(f"{name} is not on PATH: install it")
    return path


def _become_subreaper() -> None:
    """Become the parent of processes whose own parent ends: the kernel counts only children's time."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit(f"no subreaper of processes: {os.strerror(ctypes.get_errno())}")


def _end_servers() -> None:
    """Wait until no process of the command is left; after PATIENCE ask the rest to end."""
    deadline = time.monotonic() + PATIENCE
    while True:
        while _reap_child():
            pass
        children = list(_children())
        if not children:
            return
        if time.monotonic() > deadline:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        time.sleep(0.05)


def _reap_child() -> bool:
    """Take over the processor time of a child that ended; return False if there is none."""
    try:
        pid, _status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return pid != 0


def _children() -> Iterator[int]:
    """Yield the ids of this process's children."""
    for file in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        yield from map(int, file.read_text(encoding="ascii").split())


def _cpu_seconds() -> float:
    """Return the processor seconds of all children that ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
