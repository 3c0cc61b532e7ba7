"""The processes and locks that use a folder at the moment."""

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
from torchmill.core.locks import HOLDER_FILE, hold_lock_files, read_holder
from torchmill.plan.session_names import asked_sessions

_NOX = re.compile(r"nox(\.exe)?")
_GUARD = "millguard.service"  # runs as long as a build
# Sessions that build nothing in the folders of a checkout or a user. `nox -s demo` builds in a home
# of its own.
_PROJECT_SESSIONS = {"coverage", "demo", "docs", "lint", "tests", "tests-lowest"}
_SCCACHE = "sccache"
_COMMAND_CHARACTERS = 60  # that a message shows


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """One process of this machine."""

    number: int
    words: tuple[str, ...]  # of its command
    program: str = ""  # its executable; "" if another user's
    cwd: str = ""  # its folder; "" if another user's
    # Read only of a process that may build, and of sccache's server; None if another user's.
    environ: Mapping[str, str] | None = None
    user: int | None = None  # the number of its user; None: not visible

    def __str__(self) -> str:
        """Return the number and the shortened command of the process."""
        command = shlex.join(self.words)
        if len(command) > _COMMAND_CHARACTERS:
            command = f"{command[: _COMMAND_CHARACTERS - 1]}…"
        return f"process {self.number} ({command})"

    @property
    def may_build(self) -> bool:
        """Tell whether the process is a guard, or a nox that may run the session of a build."""
        if _GUARD in self.words:
            return True
        # "nox", or "python -P -m nox".
        if not any(_NOX.fullmatch(Path(word).name) for word in self.words[:4]):
            return False
        sessions = set(asked_sessions(self.words))
        # Without names, a filter such as -t chooses the sessions.
        return not sessions or not sessions <= _PROJECT_SESSIONS

    def builds_with(self, folder: Path) -> bool:
        """Tell whether the process may build with a folder: of a checkout, or a user's cache."""
        if not self.may_build:
            return False
        if self.environ is None:
            return may_write(self.user, folder)
        if not self.cwd:
            return True
        # The home of the build: nox works in the folder of its noxfile, which is the checkout.
        home = self.environ.get("TORCHMILL_HOME") or self.cwd
        caches = self.environ.get("XDG_CACHE_HOME") or f"{self.environ.get('HOME')}/.cache"
        return real_path(folder) in {real_path(home), real_path(f"{caches}/{folder.name}")}

    def serves_sccache(self, folder: Path) -> bool:
        """Tell whether the process is a server of sccache that may have its cache in a folder."""
        if not self.words or Path(self.words[0]).name != _SCCACHE:
            return False
        if self.environ is None:
            return may_write(self.user, folder)
        return real_path(self.environ.get("SCCACHE_DIR", "")) == real_path(folder)


def may_write(user: int | None, folder: Path) -> bool:
    """Tell whether a user may write to a folder, which every build with that folder must.

    True for a user who is not visible (None), and for a folder that does not exist.
    """
    try:
        status = folder.stat()
    except OSError:
        return True
    # With an access control list, the rights of the group are the mask of the list: acl(5).
    is_shared = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    return user is None or is_shared or user in {0, status.st_uid}


@dataclass(frozen=True, slots=True)
class RunningProcesses:
    """All processes but this one.

    Each method returns the first process with some property, as a clause ("in use by process 7"),
    or "".
    """

    processes: tuple[RunningProcess, ...] = ()

    def first(self, test: Callable[[RunningProcess], object]) -> str:
        """Return the first process that passes a test."""
        for process in self.processes:
            if test(process):
                return f"in use by {process}"
        return ""

    def using(self, *folders: Path) -> str:
        """Return a process that runs from a folder, works in it or names it in its command."""
        names = tuple(str(folder) for folder in folders)
        beginnings = tuple(f"{name}{os.sep}" for name in names)

        def is_within(process: RunningProcess) -> bool:
            # A path may be inside a word, as in "--prefix=/folder/env".
            for text in (*process.words, process.program, process.cwd):
                if text in names or any(beginning in text for beginning in beginnings):
                    return True
            return False

        return self.first(is_within)

    def building_with(self, folder: Path) -> str:
        """Return a build with a folder: of a checkout, or a user's cache."""
        return self.first(lambda process: process.builds_with(folder))

    def serving_sccache(self, folder: Path) -> str:
        """Return a server of sccache that has its cache in a folder."""
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
            number=info["pid"],
            words=words,
            program=info["exe"] or "",
            cwd=info["cwd"] or "",
            user=info["uids"].effective if info["uids"] else None,
        )
        # The environment costs a system call: it is read only if it is needed.
        if running.may_build or (words and Path(words[0]).name == _SCCACHE):
            with contextlib.suppress(psutil.Error, OSError):
                running = replace(running, environ=process.environ())
        processes.append(running)
    return RunningProcesses(tuple(processes))


def find_occupant(locks: Iterable[Path]) -> str:
    """Return who holds one of some locks, as a clause; "" if nobody does.

    To find out, the locks that exist are taken for a moment.
    """
    try:
        with hold_lock_files(lock for lock in locks if lock.exists()):
            return ""
    except BusyError as error:
        return lock_holder(Path(str(error)))
    except PermissionError as error:
        return f"of another user ({error.filename})"


def lock_holder(lock: Path) -> str:
    """Return the build or the process that holds a lock, as a clause.

    A build writes its name beside the lock. Of any other holder, the kernel's list of locks has the
    process (`man 5 proc_locks`). Without such a list, the clause names "another run".
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
