"""Remove what can be made again, such that nobody ever meets half of it and no lock loses its file.

A folder with a lock in it stays, and the lock with it: whoever has opened the lock must go on meaning the
same file as everybody who opens it later.
"""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout

from torchmill.errors import BusyError
from torchmill.locks import HOLDER, LOCK

GONE = ".gone-"  # begins the name of what was put away and is not deleted yet
KEY = "key"  # says that a tree is complete, so it goes first
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DAY = 86400  # seconds; what was put away longer ago is nobody's, whoever has that number now
PASSING = 0.2  # seconds within which another status or clean is done with a lock


@contextlib.contextmanager
def holding(locks: Iterable[Path]) -> Iterator[None]:
    """Hold all of some locks; one whose folder is not there counts as held.

    Raises BusyError that names the first which somebody else holds, PermissionError for one of another user.
    """
    with contextlib.ExitStack() as stack:
        for lock in dict.fromkeys(locks):
            if lock.parent.is_dir():
                stack.enter_context(_holding(lock))
        yield


@contextlib.contextmanager
def _holding(lock: Path) -> Iterator[None]:
    held = FileLock(lock, timeout=PASSING)
    try:
        held.acquire()
    except PermissionError:
        raise
    except (Timeout, OSError) as error:
        if getattr(error, "errno", None) in _FULL and not lock.exists():
            yield  # where no lock can be made, nobody has one, and here room is wanted
            return
        raise BusyError(str(lock)) from None
    try:
        yield
    finally:
        held.release()


def put_away(paths: Iterable[Path]) -> list[Path]:
    """Take files and folders out of sight, each in one move, and return where they lie now.

    What is gone already is left out. Raises OSError where one cannot be moved; what was moved before it
    stays away.
    """
    moved = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            moved.append(path.rename(_free_name(path)))
    return moved


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{GONE}{os.getpid()}-{number}-{path.name}") for number in count())
    return next(name for name in names if not os.path.lexists(name))


def contents(folder: Path) -> list[Path]:
    """Return what a folder holds beside its lock, in the order in which it may go; of none, nothing."""
    staying, there = {LOCK, HOLDER}, list(folder.iterdir()) if folder.is_dir() else []
    found = [path for path in there if path.name not in staying and not path.name.startswith(GONE)]
    return sorted(found, key=lambda path: (path.name != KEY, path.name))


def is_being_deleted(path: Path) -> bool:
    """Tell whether the process that put a path away may still be at it, or has just ended it."""
    import psutil  # noqa: PLC0415 (slow to load, and seldom needed)

    number = path.name.removeprefix(GONE).partition("-")[0]
    try:
        put_away = path.lstat().st_ctime
    except FileNotFoundError:
        return True
    return number.isdecimal() and psutil.pid_exists(int(number)) and time.time() - put_away < _DAY


def delete(paths: Iterable[Path]) -> None:
    """Delete files and whole folders; links are deleted, not followed.

    What another process deletes at the same time is left to it. Raises OSError for what cannot be deleted.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                _delete_folder(path)
            else:
                path.unlink()


def _delete_folder(folder: Path) -> None:
    """Delete a folder; where two do so at a time, each goes on behind the other."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # something in it may be deleted only by who may write to the folder it is in
        for inner, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                Path(inner).chmod(0o700)
        shutil.rmtree(folder)


def trim(folder: Path, limit: int) -> int:
    """Delete the files that were used least recently until a folder holds `limit` bytes; return what went.

    A file counts as used when it was last written or its time was set anew. Hidden files, which somebody
    is writing, stay.
    """
    found = []
    # unlike rglob, it goes on where a folder has gone meanwhile
    for path in (Path(inner, name) for inner, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(OSError):
            if not path.name.startswith(".") and path.is_file():
                seen = path.stat()
                found.append((seen.st_mtime_ns, seen.st_size, path))
    excess = sum(size for _, size, _ in found) - limit
    gone = 0
    for _, size, path in sorted(found):
        if gone >= excess:
            break
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            gone += size
    return gone
