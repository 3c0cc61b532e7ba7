"""The memory of compilers' process groups, read cheaply: it is read many times a second."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator

_LINUX = sys.platform == "linux"
_PAGE = os.sysconf("SC_PAGE_SIZE") if _LINUX else 1


def used(groups: Collection[int]) -> dict[int, int]:
    """Return the resident bytes of process groups; one that has ended has none."""
    total = dict.fromkeys(groups, 0)
    for pid in _processes() if total else ():
        try:
            group = os.getpgid(pid)
            if group in total:
                total[group] += _resident(pid)
        except OSError:  # it ended meanwhile
            continue
    return total


def _processes() -> Iterator[int]:
    if _LINUX:
        return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 (names alone, and fast)
    import psutil  # noqa: PLC0415 (not needed on Linux)

    return iter(psutil.pids())


def _resident(pid: int) -> int:
    """Return the bytes of a process; raise OSError where it has ended."""
    if _LINUX:
        descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(descriptor, 256).split()[1]) * _PAGE
        finally:
            os.close(descriptor)
    import psutil  # noqa: PLC0415

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        raise ProcessLookupError from None
