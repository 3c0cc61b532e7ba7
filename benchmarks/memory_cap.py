"""A memory control group of the kernel, version 1 or 2: it limits the memory of the processes in it."""

import contextlib
import mmap
import os
import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

MOUNT = Path("/sys/fs/cgroup")
_FILES = {  # by version: files with the limit, the usage and the counter of kills
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    2: ("memory.max", "memory.current", "memory.events"),
}


def reclaim_memory(size: int) -> None:
    """Touch so many bytes of memory, and free them.

    A virtual machine may have handed its free memory to its host. Getting it back took 2.4 seconds a GiB on the
    machine of the recorded runs, which would otherwise count as time of the build.
    """
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for offset in range(0, size, mmap.PAGESIZE):
            memory[offset] = 1


class Cap:
    """A control group, made on entry, whose processes together get at most `limit` bytes; needs root."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._version = 1 if (MOUNT / "memory").is_dir() else 2
        self._limit_file, self._usage_file, self._kills_file = _FILES[self._version]
        parent = MOUNT / "memory" if self._version == 1 else MOUNT
        self.folder = parent / f"torchmill-benchmark-{os.getpid()}-{time.monotonic_ns()}"

    def __enter__(self) -> Self:
        """Make the group; exit with a message if that is not allowed."""
        try:
            if self._version == 2:  # noqa: PLR2004
                (MOUNT / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
            self.folder.mkdir()
            if self.limit is not None:
                (self.folder / self._limit_file).write_text(str(self.limit), encoding="ascii")
        except OSError as error:
            sys.exit(f"no memory control group can be made here ({error}): run this as root")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.empty()
        self.folder.rmdir()

    def inside(self, argv: list[str]) -> list[str]:
        """Return the command that runs another one in the group."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.folder / "cgroup.procs"), *argv]

    def members(self) -> list[int]:
        """Return the ids of the processes in the group."""
        return [int(word) for word in self._read("cgroup.procs").split()]

    def empty(self) -> None:
        """Kill every process in the group, and wait until all are gone."""
        while members := self.members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def kills(self) -> int:
        """Return how many processes of the group the kernel killed for want of memory."""
        return self._field(self._kills_file, "oom_kill")

    def free(self) -> int:
        """Return the bytes below the limit that are unused or can be reclaimed, such as cached files."""
        used = int(self._read(self._usage_file))
        cache_name = "total_inactive_file" if self._version == 1 else "inactive_file"
        cached = self._field("memory.stat", cache_name)
        return (self.limit or sys.maxsize) - (used - cached)

    def _field(self, file: str, name: str) -> int:
        """Return a number of a file of lines such as "oom_kill 3"."""
        fields = dict(line.split() for line in self._read(file).splitlines())
        return int(fields[name])

    def _read(self, file: str) -> str:
        return (self.folder / file).read_text(encoding="ascii")
