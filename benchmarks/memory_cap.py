"""A memory control group of our own, version 1 or 2: a limit, and what the kernel says happened below it."""

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
_NAMES = {  # limit, usage, counter of kills
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    2: ("memory.max", "memory.current", "memory.events"),
}


def take_back(size: int) -> None:
    """Touch so many bytes of memory, and free them.

    A virtual machine may have handed what was free to its host. To get it back took 2.4 seconds a GiB on
    ours, for which no build is to blame.
    """
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


class Cap:
    """A control group that holds what is started in it to `limit` bytes, if any; needs root."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._version = 1 if (MOUNT / "memory").is_dir() else 2
        parent = MOUNT / "memory" if self._version == 1 else MOUNT
        self.folder = parent / f"torchmill-benchmark-{os.getpid()}-{time.monotonic_ns()}"

    def __enter__(self) -> Self:
        """Make the group; exit with a sentence where that is not allowed."""
        limit, _, _ = _NAMES[self._version]
        try:
            if self._version == 2:  # noqa: PLR2004
                (MOUNT / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
            self.folder.mkdir()
            if self.limit is not None:
                (self.folder / limit).write_text(str(self.limit), encoding="ascii")
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
        """Return the command that runs another within the group."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.folder / "cgroup.procs"), *argv]

    def members(self) -> list[int]:
        """Return the processes within."""
        return [int(word) for word in self._read("cgroup.procs").split()]

    def empty(self) -> None:
        """End every process within, and wait until none is left."""
        while members := self.members():
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def kills(self) -> int:
        """Return how many processes the kernel killed for want of memory."""
        return self._field(_NAMES[self._version][2], "oom_kill")

    def free(self) -> int:
        """Return the bytes that can still be had: the limit, less what is used and cannot be reclaimed."""
        used = int(self._read(_NAMES[self._version][1]))
        cache = self._field(
            "memory.stat", "total_inactive_file" if self._version == 1 else "inactive_file"
        )
        return (self.limit or sys.maxsize) - (used - cache)

    def _field(self, file: str, name: str) -> int:
        return next(
            int(line.split()[1])
            for line in self._read(file).splitlines()
            if line.split()[0] == name
        )

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="ascii")
