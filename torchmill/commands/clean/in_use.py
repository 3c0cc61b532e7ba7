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
_PROJECT = {
    "lint",
    "tests",
    "demo",
}  # sessions that build nothing with the folders of a checkout or a user
_SCCACHE = "sccache"
_COMMAND_CHARACTERS = 60  # that a message shows


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """One process of this machine."""

    number: int
    words: tuple[str, ...]  # of its command
    program: str = ""  # what it runs; "" if not visible, as with the two below
    cwd: str = ""
    environ: Mapping[str, str] | None = (
        None  # of one that may build, or that is a server of sccache
    )
    user: int | None = None  # whose it is; None: not visible

    def __str__(self) -> str:
        """Return its number and its command, shortened."""
        command = shlex.join(self.words)
        short = len(command) <= _COMMAND_CHARACTERS
        return f"process {self.number} ({command if short else f'{command[: _COMMAND_CHARACTERS - 1]}…'})"

    @property
    def may_build(self) -> bool:
        """Tell whether it is a guard, or a nox that does more than look after the project itself."""
        is_nox = any(_NOX.fullmatch(Path(word).name) for word in self.words[:4])
        sessions = {word.rpartition("=")[2] for word in self.words}
        return _GUARD in self.words or (is_nox and sessions.isdisjoint(_PROJECT))

    def builds_with(self, folder: Path) -> bool:
        """Tell whether it may build with a folder: a checkout's, or a user's cache."""
        if not self.may_build:
            return False
        if self.environ is None:
            return may_write(self.user, folder)
        # nox works in the folder of its noxfile
        home = self.environ.get("TORCHMILL_HOME") or self.cwd
        caches = self.environ.get("XDG_CACHE_HOME") or f"{self.environ.get('HOME')}/.cache"
        return not self.cwd or real_path(folder) in {
            real_path(home),
            real_path(f"{caches}/{folder.name}"),
        }

    def serves_sccache(self, folder: Path) -> bool:
        """Tell whether it is a server of sccache that may keep a cache in a folder."""
        if not self.words or Path(self.words[0]).name != _SCCACHE:
            return False
        if self.environ is None:
            return may_write(self.user, folder)
        return real_path(self.environ.get("SCCACHE_DIR", "")) == real_path(folder)


def may_write(user: int | None, folder: Path) -> bool:
    """Tell whether a user may write to a folder: a build that cannot does not work with it.

    Of a user who is not visible that cannot be told, nor of a folder that is not there.
    """
    try:
        found = folder.stat()
    except OSError:
        return True
    shared = bool(
        found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )  # access lists show as rights of the group
    return user is None or shared or user in {0, found.st_uid}


@dataclass(frozen=True, slots=True)
class RunningProcesses:
    """All processes but this one; each method returns a clause, "" if nothing is in use."""

    processes: tuple[RunningProcess, ...] = ()

    def first(self, test: Callable[[RunningProcess], object]) -> str:
        """Return "in use by" the first process that passes a test."""
        return next((f"in use by {one}" for one in self.processes if test(one)), "")

    def within(self, *folders: Path) -> str:
        """Look for a process that runs from a folder, works in it or names it in its command."""
        names = [str(folder) for folder in folders]
        starts = [f"{name}{os.sep}" for name in names]
        return self.first(
            lambda one: any(
                text in names or any(start in text for start in starts)
                for text in (*one.words, one.program, one.cwd)
            )
        )

    def build(self, folder: Path) -> str:
        """Look for a build with a folder: a checkout's, or a user's cache."""
        return self.first(lambda one: one.builds_with(folder))

    def sccache_server(self, folder: Path) -> str:
        """Look for a server of sccache that keeps a cache in a folder."""
        return self.first(lambda one: one.serves_sccache(folder))


def list_processes() -> RunningProcesses:
    """List the processes of this machine; of other users' only the command and the user are visible."""
    processes = []
    for one in psutil.process_iter(["pid", "cmdline", "exe", "cwd", "uids"]):
        info = one.info
        if info["pid"] != os.getpid():
            words, user = (
                tuple(info["cmdline"] or ()),
                info["uids"].effective if info["uids"] else None,
            )
            process = RunningProcess(
                info["pid"], words, info["exe"] or "", info["cwd"] or "", user=user
            )
            if process.may_build or (words and Path(words[0]).name == _SCCACHE):
                with contextlib.suppress(psutil.Error, OSError):
                    process = replace(process, environ=one.environ())
            processes.append(process)
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
    """Return the build or the process that holds a lock, as far as its folder or the kernel records it."""
    if (lock.parent / HOLDER_FILE).is_file():
        return f"in use by {read_holder(lock.parent)}"
    with contextlib.suppress(OSError):
        inode = lock.stat().st_ino
        for words in map(str.split, Path("/proc/locks").read_text(encoding="ascii").splitlines()):
            if len(words) > 5 and words[5].endswith(f":{inode}") and words[4].isdecimal():  # noqa: PLR2004
                return f"in use by process {words[4]}"
    return "in use by another run"
