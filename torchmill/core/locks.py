"""Lock folders against other runs: refuse, or wait for the holder to end.

To hold a folder is to hold the lock on the file LOCK_FILE in it; the holder is the run that does.
The folder is made if it is missing. The file is never removed, even if all else in the folder is:
everybody who opens it must mean the same file. A single file, such as a download, has a lock file
beside it.
"""

import contextlib
import errno
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from torchmill.core.deletion import DELETED_NAME
from torchmill.core.errors import BusyError, HostError, InterruptedBuildError
from torchmill.core.system_errors import DISK_FULL

LOCK_FILE = "lock"
HOLDER_FILE = "holder"  # has the name of the run that took the folder last, and dates from then
KEY_FILE = "key"  # a build tree counts as complete while it has this file
SHORT_WAIT_SECONDS = 1.0  # a run that only looks at a folder releases it within this time
CLEAN_WAIT_SECONDS = 0.2  # another `status` or `clean` releases a lock within this time
_LONGEST_COMMAND = 300  # characters of another process's command that a message shows
_FOREVER = -1.0  # filelock's number for a wait without an end


def hold_work_folder(folder: Path, product: str) -> AbstractContextManager[None]:
    """Hold a folder for this process alone, to build `product` in it.

    Raises BusyError if another run holds the folder, HostError if it cannot be locked.
    """
    message = f"{product} is being built by another run: wait for it, or stop it"
    return hold_folder(folder, SHORT_WAIT_SECONDS, message=message, code="cell-locked")


@contextlib.contextmanager
def hold_folder(folder: Path, seconds: float, message: str, code: str) -> Iterator[None]:
    """Hold a folder for this process alone.

    Raises BusyError, with the message and code, if another run still holds it after `seconds`,
    HostError if it cannot be locked.
    """
    lock = _try_lock(folder / LOCK_FILE, seconds)
    if lock is None:
        holder = _describe_lock(folder / LOCK_FILE)
        raise BusyError(f"{message}{holder}", code=code)
    with lock:
        yield


@contextlib.contextmanager
def wait_for_folder(folder: Path, run: str, report: Callable[[str], None]) -> Iterator[None]:
    """Hold a folder for this process alone, as soon as the run that holds it has ended.

    `run` is the name of this run, which is shown to runs that wait for it. If this run has to wait,
    `report` gets a line with the name of the other run. Raises InterruptedBuildError if the user
    interrupts the waiting, HostError if the folder cannot be locked.
    """

    def report_wait(holder: str) -> None:
        report(
            f"waiting for {read_holder(folder)}, which is building in the tree that both share "
            f"({folder}){holder}"
        )

    try:
        lock = _wait_for_lock(folder / LOCK_FILE, report_wait)
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"interrupted: {run} was waiting for {read_holder(folder)}; run the same command again",
            code="interrupted",
        ) from None
    with lock:
        (folder / HOLDER_FILE).write_text(run, encoding="utf-8")
        yield


@contextlib.contextmanager
def wait_for_file(lock_file: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock file for this process alone, as soon as the process that holds it has ended.

    If this process has to wait, `report` gets the end of a sentence about the holder, "" if it is
    unknown. Raises HostError if the file cannot be locked.
    """
    with _wait_for_lock(lock_file, report):
        yield


@contextlib.contextmanager
def hold_lock_files(lock_files: Iterable[Path]) -> Iterator[None]:
    """Hold the locks on several files at once.

    A file that nobody can lock is skipped: its folder is missing, or its disk is read-only or full.
    Raises BusyError with the path of the first file that another run has locked, PermissionError
    for a file of another user.
    """
    from filelock import FileLock

    with contextlib.ExitStack() as stack:
        # A file that is given twice is locked once: this process would wait for itself.
        for lock_file in dict.fromkeys(lock_files):
            if not lock_file.parent.is_dir():
                continue
            try:
                stack.enter_context(FileLock(lock_file, timeout=CLEAN_WAIT_SECONDS))
            except PermissionError:
                raise
            except OSError as error:  # filelock's Timeout is an OSError, too
                # Nobody can lock a folder on a read-only disk, nor on a full disk that has no room
                # for the lock file. A full disk must not stop `invoke clean`, which makes room.
                is_read_only = error.errno == errno.EROFS
                is_full = error.errno in DISK_FULL and not lock_file.exists()
                if not is_read_only and not is_full:
                    raise BusyError(str(lock_file), code="locked") from None
        yield


def list_contents(folder: Path) -> list[Path]:
    """Return the paths in a folder, except LOCK_FILE, HOLDER_FILE and what is being deleted.

    They are in the order in which they may be deleted: KEY_FILE is the first, so that a tree from
    which something is missing never counts as complete.
    """
    if not folder.is_dir():
        return []
    contents = []
    for path in folder.iterdir():
        if path.name in {LOCK_FILE, HOLDER_FILE} or path.name.startswith(DELETED_NAME):
            continue
        contents.append(path)
    return sorted(contents, key=lambda path: (path.name != KEY_FILE, path.name))


def _describe_lock(lock_file: Path) -> str:
    """Return the end of a sentence about the holder of a lock file."""
    return f"{describe_holder(lock_file)}{_stale_lock_cure(lock_file)}"


def describe_holder(lock_file: Path) -> str:
    """Return " (held by process 123: `nox -s wheel-3.10-cpu`)" for the holder of a lock file.

    Returns "" if the system does not say: only Linux lists locks with their processes
    (https://man7.org/linux/man-pages/man5/proc_locks.5.html), and not those of another container.
    """
    import psutil

    with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
        inode = lock_file.stat().st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()  # "1:", "FLOCK", "ADVISORY", "WRITE", process, "08:01:INODE", …
            # The disk is not compared: for some file systems, such as btrfs, the list and
            # `stat` give it different numbers.
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                process = psutil.Process(int(fields[4]))
                program, *arguments = process.cmdline()
                # People know the script (nox, invoke) and not the interpreter that runs it.
                if Path(program).name.startswith("python") and arguments:
                    program, *arguments = arguments
                command = shlex.join([Path(program).name, *arguments])
                return f" (held by process {process.pid}: `{command[:_LONGEST_COMMAND]}`)"
    return ""


def read_holder(folder: Path) -> str:
    """Return the name of the run that took a folder last, "another run" if it is unknown.

    Only `wait_for_folder` leaves a name. So `invoke clean`, which takes a folder for a moment, is
    not named.
    """
    with contextlib.suppress(OSError):
        holder = (folder / HOLDER_FILE).read_text(encoding="utf-8", errors="replace")
        if holder:
            return holder
    return "another run"


def _stale_lock_cure(lock_file: Path) -> str:
    """Return a clause with the command that removes the lock of a killed process; "" without such.

    On a disk without locks, filelock takes the mere existence of the file as the lock, and writes
    its process and machine into it. If that process is killed, the file stays.
    """
    try:
        text = lock_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    words = text.split()
    if len(words) < 2:  # noqa: PLR2004 - process and machine
        return ""
    process, machine, *_ = words
    remove = f"rm {shlex.quote(str(lock_file))}"
    return f"; its disk has no locks: if process {process} of {machine} is gone, `{remove}`"


def _wait_for_lock(
    lock_file: Path, report: Callable[[str], None]
) -> AbstractContextManager[object]:
    """Take the lock on a file when its holder has ended, and return what releases it.

    `report` is that of `wait_for_file`. Raises HostError if the file cannot be locked.
    """
    lock = _try_lock(lock_file, patience=0)
    if lock is None:
        report(_describe_lock(lock_file))
    while lock is None:
        lock = _try_lock(lock_file, patience=_FOREVER)
    return lock


def _try_lock(lock_file: Path, patience: float) -> AbstractContextManager[object] | None:
    """Take the lock on a file, which is made with its folder, and return what releases it.

    None if another run still holds it after `patience` seconds. Raises HostError if the folder
    cannot be locked, because it belongs to another user, or its disk is full.
    """
    from filelock import FileLock, Timeout  # loaded only by commands that lock

    folder = lock_file.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(lock_file, timeout=patience).acquire()
    except Timeout:
        return None
    except OSError as error:
        raise HostError(
            f"{folder} cannot be locked ({error.strerror or error}): see who owns it, and how much "
            "room its disk has (`invoke status`), or choose another folder with TORCHMILL_HOME "
            "(for the cache XDG_CACHE_HOME, for nox's environments NOX_ENVDIR)",
            code="not-lockable",
        ) from error
