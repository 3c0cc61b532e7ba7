"""Lock folders against other runs: refuse, or wait for the holder to end.

A folder's lock is never removed, whatever else is: all who open it must mean the same file.
"""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from torchmill.core.errors import BusyError, HostError, InterruptedBuildError

LOCK_FILE = "lock"
HOLDER_FILE = "holder"  # says who took the folder last; its time says when
_LONGEST_COMMAND = 300  # characters of another process's command that a message shows
SHORT_WAIT_SECONDS = 1.0  # seconds within which who only looks at a folder has let go of it


def hold_lock(folder: Path, what: str) -> AbstractContextManager[None]:
    """Hold the folder for this process alone. Raises BusyError when another run holds it."""
    message = f"{what} is being built by another run: wait for it, or stop it"
    return hold_folder(folder, SHORT_WAIT_SECONDS, message, "cell-locked")


@contextlib.contextmanager
def hold_folder(folder: Path, seconds: float, message: str, code: str) -> Iterator[None]:
    """Hold the folder for this process alone; raises BusyError where another run holds it for so many seconds."""
    lock = _try_lock(folder, seconds)
    if lock is None:
        raise BusyError(f"{message}{describe_owner(folder)}{_left_behind(folder)}", code=code)
    with lock:
        yield


@contextlib.contextmanager
def wait_for_lock(folder: Path, who: str, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder for this process alone, as soon as whoever holds it has ended.

    `who` is told to those who wait for this run in turn. Raises InterruptedBuildError where the user stops the waiting.
    """
    lock = _try_lock(folder)
    try:
        if lock is None:
            note(
                f"waiting for {read_holder(folder)}, which is building in the tree that both share "
                f"({folder}){describe_owner(folder)}{_left_behind(folder)}"
            )
        while lock is None:
            lock = _try_lock(folder, -1.0)
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"interrupted: {who} was waiting for {read_holder(folder)}; run the same command again",
            code="interrupted",
        ) from None
    with lock:
        (folder / HOLDER_FILE).write_text(who, encoding="utf-8")
        yield


def describe_owner(folder: Path) -> str:
    """Return " (held by process 123: `nox -s wheel-3.10-cpu`)" for the process that has a folder's lock.

    It is "" if the system does not say: only Linux lists locks with their processes (proc_locks(5)), and not those of
    another container.
    """
    import psutil

    with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
        inode = (folder / LOCK_FILE).stat().st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()  # "1:", "FLOCK", "ADVISORY", "WRITE", process, "08:01:INODE", …
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                process = psutil.Process(int(fields[4]))
                program, *arguments = process.cmdline()
                if Path(program).name.startswith("python") and arguments:
                    program, *arguments = arguments
                command = shlex.join([Path(program).name, *arguments])
                return f" (held by process {process.pid}: `{command[:_LONGEST_COMMAND]}`)"
    return ""


def _left_behind(folder: Path) -> str:
    """Return what helps where a holder was killed on a disk without locks: only there, the file says who holds it."""
    said: list[str] = []
    with contextlib.suppress(OSError):
        said = (folder / LOCK_FILE).read_text(encoding="utf-8", errors="replace").split()
    who = f"process {said[0]} of {said[1]}" if len(said) > 1 else ""
    return (
        f"; its disk has no locks: if {who} is gone, `rm {shlex.quote(str(folder / LOCK_FILE))}`"
        if who
        else ""
    )


def read_holder(folder: Path) -> str:
    """Return who took the folder last."""
    with contextlib.suppress(OSError):
        if who := (folder / HOLDER_FILE).read_text(encoding="utf-8", errors="replace"):
            return who
    return "another run"


def _try_lock(folder: Path, patience: float = 0.0) -> AbstractContextManager[object] | None:
    """Take the folder's lock, and return what lets go of it; None where another run holds it for so many seconds.

    Below 0 they are any number. Raises HostError where nothing can be locked: another user's folder, a full disk.
    """
    from filelock import FileLock, Timeout  # loaded by who locks: not every command does

    try:
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / LOCK_FILE, timeout=patience).acquire()
    except Timeout:
        return None
    except OSError as error:
        raise HostError(
            f"{folder} cannot be locked ({error.strerror or error}): see who owns it, and how much room its "
            "disk has (`invoke status`), or let TORCHMILL_HOME (of the cache XDG_CACHE_HOME, of nox's environments "
            "NOX_ENVDIR) name another folder",
            code="not-lockable",
        ) from error
