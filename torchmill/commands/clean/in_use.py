"""Which processes and locks use a folder at the moment."""

import contextlib
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from torchmill.core.errors import BusyError
from torchmill.core.lenient_paths import real_path
from torchmill.core.locks import HOLDER_FILE, hold_locks, read_holder

_NOX = re.compile(r"nox(\.exe)?")
_GUARD = "millguard.service"  # runs as long as a build
# Sessions that build nothing with the folders of a checkout or a user.
_PROJECT_SESSIONS = {"lint", "tests", "demo"}
_SCCACHE = "sccache"
_COMMAND_CHARACTERS = 60  # that a message shows


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """One process of this machine."""

    number: int
    words: tuple[str, ...]  # of its command
    program: str = ""  # its executable; "" if not visible, as with the two below
    cwd: str = ""
    environ: Mapping[str, str] | None = None  # of a process that may build, or of sccache's server
    user: int | None = None  # whose it is; None: not visible

    def __str__(self) -> str:
        """Return its number and its command, shortened."""
        command = shlex.join(self.words)
        if len(command) > _COMMAND_CHARACTERS:
            command = f"{command[: _COMMAND_CHARACTERS - 1]}…"
        return f"process {self.number} ({command})"

    @property
    def may_build(self) -> bool:
        """Tell whether it is a guard, or a nox that does more than look after the project."""
        if _GUARD in self.words:
            return True
        # "nox", or "python -P -m nox".
        if not any(_NOX.fullmatch(Path(word).name) for word in self.words[:4]):
            return False
        sessions = {word.rpartition("=")[2] for word in self.words}
        return sessions.isdisjoint(_PROJECT_SESSIONS)

    def builds_with(self, folder: Path) -> bool:
        """Tell whether it may build with a folder: a checkout's, or a user's cache."""
        if not self.may_build:
            return False
        if self.environ is None:
            return may_write(self.user, folder)
        if not self.cwd:
            return True
        # Nox works in the folder of its noxfile.
        home = self.environ.get("TORCHMILL_HOME") or self.cwd
        caches = self.environ.get("XDG_CACHE_HOME") or f"{self.environ.get('HOME')}/.cache"
        return real_path(folder) in {real_path(home), real_path(f"{caches}/{folder.name}")}

    def serves_sccache(self, folder: Path) -> bool:
        """Tell whether it is a server of sccache that may keep a cache in a folder."""
        if not self.words or Path(self.words[0]).name != _SCCACHE:
            return False
        if self.environ is None:
            return may_write(self.user, folder)
        return real_path(self.environ.get("SCCACHE_DIR", "")) == real_path(folder)


def may_write(user: int | None, folder: Path) -> bool:
    """Tell whether a user may write to a folder: a build that cannot does not work with it.

    Nothing rules it out for a user who is not visible, and for a folder that does not exist.
    """
    try:
        status = folder.stat()
    except OSError:
        return True
    # Access lists show as rights of the group.
    is_shared = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return user is None or is_shared or user in {0, status.st_uid}


@dataclass(frozen=True, slots=True)
class RunningProcesses:
    """All processes but this one; each method returns a clause, "" if nothing is in use."""

    processes: tuple[RunningProcess, ...] = ()

    def first(self, test: Callable[[RunningProcess], object]) -> str:
        """Return "in use by" the first process that passes a test."""
        for process in self.processes:
            if test(process):
                return f"in use by {process}"
        return ""

    def within(self, *folders: Path) -> str:
        """Look for a process that runs from a folder, works in it or names it in its command."""
        names = tuple(str(folder) for folder in folders)
        beginnings = tuple(f"{name}{os.sep}" for name in names)

        def is_within(process: RunningProcess) -> bool:
            # A path may be inside a word, as in "--prefix=/folder/env".
            for text in (*process.words, process.program, process.cwd):
                if text in names or any(beginning in text for beginning in beginnings):
                    return True
            return False

        return self.first(is_within)

    def build(self, folder: Path) -> str:
        """Look for a build with a folder: a checkout's, or a user's cache."""
        return self.first(lambda process: process.builds_with(folder))

    def sccache_server(self, folder: Path) -> str:
        """Look for a server of sccache that keeps a cache in a folder."""
        return self.first(lambda process: process.serves_sccache(folder))


def list_processes() -> RunningProcesses:
    """Return the processes of this machine.

    Only the command and the user are visible of other users' processes.
    """
    processes = []
    for process in psutil.process_iter(["pid", "cmdline", "exe", "cwd", "uids"]):
        info = process.info
        if info["pid"] == os.getpid():
            continue
        words = tuple(info["cmdline"] or ())
        running = RunningProcess(
            info["pid"],
            words,
            info["exe"] or "",
            info["cwd"] or "",
            user=info["uids"].effective if info["uids"] else None,
        )
        # The environment costs a system call: it is read only if it is needed.
        if running.may_build or (words and Path(words[0]).name == _SCCACHE):
            with contextlib.suppress(psutil.Error, OSError):
                running = replace(running, environ=process.environ())
        processes.append(running)
    return RunningProcesses(tuple(processes))


def find_occupant(locks: Iterable[Path]) -> str:
    """Return who holds one of some locks, as a clause; "" if nobody does."""
    try:
        with hold_locks(lock for lock in locks if lock.exists()):
            return ""
    except BusyError as error:
        return lock_holder(Path(str(error)))
    except PermissionError as error:
        return f"of another user ({error.filename})"


def lock_holder(lock: Path) -> str:
    """Return the build or the process that holds a lock, as a clause.

    It is in the folder of the lock, or in the kernel's list (`man 5 proc_locks`).
    """
    if (lock.parent / HOLDER_FILE).is_file():
        return f"in use by {read_holder(lock.parent)}"
    with contextlib.suppress(OSError):
        inode = lock.stat().st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # A line has a number, three words on the kind, the process, the file, and the range.
            fields = line.split()
            if len(fields) <= 5:  # noqa: PLR2004
                continue
            process, device = fields[4:6]
            if device.endswith(f":{inode}") and process.isdecimal():
                return f"in use by process {process}"
    return "in use by another run"
