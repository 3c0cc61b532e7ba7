"""Processes that outlive who started them: found by a variable or by their group, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence

import psutil

PATIENCE = 5.0  # seconds that a process gets to put its files away
LOOK = 0.1  # seconds between two looks
ROUNDS = 5  # what is ended may have started more a moment before


def carrying(name: str, value: str) -> list[psutil.Process]:
    """Return the processes, other than this one, that were started with a variable."""
    return [one for one in _others() if _variable(one, name) == value]


def of_group(group: int) -> list[psutil.Process]:
    """Return the processes, other than this one, of a process group; none on Windows."""
    if sys.platform == "win32":
        return []
    return [one for one in _others() if _group(one.pid) == group]


def end_carrying(name: str, value: str) -> None:
    """End all processes that were started with a variable, other than this one."""
    for _ in range(ROUNDS):
        found = carrying(name, value)
        if not found:
            return
        end(found)


def outlasting(processes: Sequence[psutil.Process], patience: float) -> list[psutil.Process]:
    """Return those that still run after so many seconds, or as soon as none does."""
    until = time.monotonic() + patience
    left = list(processes)
    while left:  # looked at now and then: in a container, nobody may take note of one that has ended
        seconds = min(LOOK, max(0.0, until - time.monotonic()))
        left = [one for one in psutil.wait_procs(left, timeout=seconds)[1] if _lives(one)]
        if time.monotonic() >= until:
            break
    return left


def end(processes: Sequence[psutil.Process], patience: float = PATIENCE) -> None:
    """End processes, paused ones too: those that do not go within `patience` seconds are killed."""
    for one in processes:
        with contextlib.suppress(psutil.Error):
            one.terminate()
            if sys.platform != "win32":
                one.send_signal(signal.SIGCONT)  # one that is stopped learns of it only when it goes on
    left = outlasting(processes, patience)
    for one in left:
        with contextlib.suppress(psutil.Error):
            one.kill()
    outlasting(left, patience)


def _others() -> Iterator[psutil.Process]:
    try:
        there = list(psutil.process_iter())
    except (OSError, IndexError):  # without /proc nobody is seen
        return
    yield from (one for one in there if one.pid != os.getpid() and _lives(one))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):  # another user's, or gone
        return None


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None
