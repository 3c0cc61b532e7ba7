"""Which processes and locks use a folder at the moment."""

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import psutil

from torchmill.core.errors import BusyError
from torchmill.core.files import hold_locks
from torchmill.core.locks import HOLDER_FILE, read_holder

_NOX = re.compile(r"nox(\.exe)?")
_GUARD = "torchmill.toolchain.guard"  # runs as long as a build
_NAMES_SESSIONS = ("-s", "-e", "--session", "--sessions")
_PROJECT = ("lint", "tests", "demo")  # sessions that build nothing with the user's caches
_ENVDIR, _NOXFILE = ("--envdir",), ("-f", "--noxfile")
_HASHED = re.compile(r"[0-9a-f]{8}")  # what nox calls an environment whose path would be too long
_WORDS = 60  # characters of a command that a message shows


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """One process of this machine."""

    number: int
    words: tuple[str, ...]  # of its command
    program: str = ""  # what it runs; "" where that may not be seen, as with the two below
    cwd: str = ""
    environ: Mapping[str, str] | None = None  # of a nox or a guard

    def __str__(self) -> str:
        """Return how a person finds it again."""
        command = shlex.join(self.words)
        shown = command if len(command) <= _WORDS else f"{command[: _WORDS - 1]}…"
        return f"process {self.number} ({shown})"

    @property
    def is_nox(self) -> bool:
        """Tell whether it is a nox, however that was started."""
        return any(_NOX.fullmatch(Path(word).name) for word in self.words[:4])

    @property
    def is_guard(self) -> bool:
        """Tell whether it guards a build."""
        return _GUARD in self.words

    def noxfile(self) -> Path | None:
        """Return the folder of a nox's noxfile, in which it works; None where it may not be seen."""
        named = _after(self.words, _NOXFILE)
        if self.cwd:
            return Path(self.cwd) / Path(named).parent if named else Path(self.cwd)
        return Path(named).parent if named and Path(named).is_absolute() else None

    def environments(self) -> Path | None:
        """Return the folder of a nox's environments; None where it may not be seen."""
        if self.environ is None:
            return None
        told = _after(self.words, _ENVDIR) or self.environ.get("NOX_ENVDIR") or ".nox"
        folder = self.noxfile()
        return folder / told if folder else None

    def home(self) -> Path | None:
        """Return the folder below which the builds of a nox are; None where it may not be seen."""
        if self.environ is None:
            return None
        told = self.environ.get("TORCHMILL_HOME")
        return Path(told) if told else self.noxfile()

    def caches(self) -> Path | None:
        """Return the folder of a build's caches; None where it may not be seen."""
        if self.environ is None:
            return None
        return (
            Path(self.environ.get("XDG_CACHE_HOME") or f"{self.environ.get('HOME', '')}/.cache") / "torchmill"
        )

    @property
    def may_build(self) -> bool:
        """Tell whether it is a guard, or a nox that does more than look after the project itself."""
        return self.is_guard or (self.is_nox and not (self._names_sessions and self.may_run(_PROJECT)))

    @property
    def _names_sessions(self) -> bool:
        return any(word.startswith(_NAMES_SESSIONS) for word in self.words)

    def may_run(self, sessions: Collection[str]) -> bool:
        """Tell whether a nox may run one of some sessions, given as their environments are called."""
        named = {nox_environment_name(word.rpartition("=")[2]) for word in self.words}
        return not self._names_sessions or not named.isdisjoint(sessions)


@dataclass(frozen=True, slots=True)
class RunningProcesses:
    """All processes but this one; of what may not be seen the worst is believed."""

    processes: tuple[RunningProcess, ...] = ()

    def within(self, folder: Path) -> RunningProcess | None:
        """Return a process that runs from a folder, stands in it or was told of something in it."""
        start = f"{folder}{os.sep}"
        for one in self.processes:
            texts = (*one.words, one.program, one.cwd)
            if str(folder) in texts or any(start in text for text in texts):
                return one
        return None

    def session(self, environment: Path) -> RunningProcess | None:
        """Return a nox that may be at work on an environment."""
        for one in filter(lambda one: one.is_nox, self.processes):
            named = one.may_run({environment.name}) or _HASHED.fullmatch(environment.name)
            if named and _is(one.environments(), environment.parent):
                return one
        return None

    def builder(self, root: Path, sessions: Collection[str]) -> RunningProcess | None:
        """Return a nox that may build one of some sessions below a folder."""
        noxes = (one for one in self.processes if one.is_nox and _is(one.home(), root))
        return next((one for one in noxes if one.may_run(sessions)), None)

    def build(self, cache: Path) -> RunningProcess | None:
        """Return a build with these caches, whichever checkout it is of."""
        builds = (one for one in self.processes if one.may_build)
        return next((one for one in builds if _is(one.caches(), cache)), None)

    def runs(self, program: str) -> RunningProcess | None:
        """Return a process that runs a program of that name."""
        return next((one for one in self.processes if one.words and Path(one.words[0]).name == program), None)


def _is(seen: Path | None, folder: Path) -> bool:
    return seen is None or os.path.realpath(seen) == os.path.realpath(folder)


def _after(words: Sequence[str], options: Sequence[str]) -> str:
    """Return the value of an option, "" where it is not there."""
    for word, after in pairwise((*words, "")):
        if word in options:
            return after
        if word.partition("=")[0] in options:
            return word.partition("=")[2]
    return ""


def nox_environment_name(session: str) -> str:
    """Return what nox calls the environment of a session: "wheel-3.10-cpu" becomes "wheel-3-10-cpu"."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "-", session).strip().lower()).strip("-")


def list_processes() -> RunningProcesses:
    """Look at the processes of this machine; of other users' one sees no more than their words."""
    mine, found = os.getpid(), []
    for one in psutil.process_iter(["pid", "cmdline", "exe", "cwd"]):
        seen = one.info
        if seen["pid"] != mine:
            words = tuple(seen["cmdline"] or ())
            process = RunningProcess(seen["pid"], words, seen["exe"] or "", seen["cwd"] or "")
            told = _environ(one) if process.is_nox or process.is_guard else None
            found.append(replace(process, environ=told))
    return RunningProcesses(tuple(found))


def _environ(process: psutil.Process) -> Mapping[str, str] | None:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return None


def find_occupant(locks: Iterable[Path]) -> str:
    """Return who holds one of some locks, as a clause; "" where nobody does."""
    try:
        with hold_locks(lock for lock in locks if lock.exists()):
            return ""
    except BusyError as error:
        return lock_holder(Path(str(error)))
    except PermissionError as error:
        return f"of another user ({error.filename})"


def lock_holder(lock: Path) -> str:
    """Return who holds a lock that somebody holds, as a clause."""
    return f"in use by {_holder(lock)}"


def _holder(lock: Path) -> str:
    """Return which build took a lock, or which process has it, as far as they or the kernel tell."""
    if (lock.parent / HOLDER_FILE).is_file():
        return read_holder(lock.parent)
    try:
        inode = lock.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return "another run"
    for words in map(str.split, lines):
        if len(words) > 5 and words[5].endswith(f":{inode}") and words[4].isdecimal():  # noqa: PLR2004
            return f"process {words[4]}"
    return "another run"
