"""Delete files and folders: out of sight in one move first, and also while others delete them."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path

DELETED_NAME = ".gone-"  # begins the name of a path that is hidden and not yet deleted
# A hidden path names the process that made it by number. After a day, a process with this number
# is taken for another one, because systems use numbers again.
ABANDONED_SECONDS = 86400


def move_out_of_sight(paths: Iterable[Path]) -> list[Path]:
    """Give files and folders hidden names, each in one move, and return their new paths.

    Paths that are gone already are left out. Raises OSError if one cannot be moved; those that
    were moved before it stay hidden.
    """
    hidden = []
    for path in paths:
        for number in count():
            name = f"{DELETED_NAME}{os.getpid()}-{number}-{path.name}"
            if not os.path.lexists(path.with_name(name)):
                break
        with contextlib.suppress(FileNotFoundError):
            hidden.append(path.rename(path.with_name(name)))
    return hidden


def is_being_deleted(path: Path) -> bool:
    """Tell whether the process that hid a path may still be deleting it.

    Also true if the path is gone: the process has just finished.
    """
    import psutil

    number = path.name.removeprefix(DELETED_NAME).partition("-")[0]
    try:
        hidden_at = path.lstat().st_ctime
    except FileNotFoundError:
        return True
    is_recent = time.time() - hidden_at < ABANDONED_SECONDS
    return number.isdecimal() and psutil.pid_exists(int(number)) and is_recent


def is_abandoned(path: Path) -> bool:
    """Tell whether a path has not changed for a day; False if that cannot be told.

    What a run writes on another machine that shares the disk can be judged by its age alone. A
    folder changes if something directly in it does.
    """
    with contextlib.suppress(OSError):
        # Not st_mtime: whoever copies a file may give it the date of the original.
        return read_disk_clock(path.parent) - path.lstat().st_ctime > ABANDONED_SECONDS
    return False


def read_disk_clock(folder: Path) -> float:
    """Return the time by which the files in a folder are dated, in seconds since the epoch.

    It is the clock of a server if the disk is shared, and the clock of this machine may differ from
    it. Raises OSError if no file can be made in the folder.
    """
    with tempfile.TemporaryFile(dir=folder) as fresh:
        return os.fstat(fresh.fileno()).st_ctime


def delete_paths(paths: Iterable[Path]) -> None:
    """Delete files and whole folders; links are deleted, not followed.

    Paths that another process deletes at the same time are left to it. Raises OSError if something
    cannot be deleted.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                _delete_folder(path)
            else:
                path.unlink()


def _delete_folder(folder: Path) -> None:
    """Delete a folder; raise OSError if something in it cannot be deleted."""
    # Errors are ignored at first: another process may be deleting files of the same folder.
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    # A file can be deleted only by a user who may read and write the folder that it is in.
    _allow_user(folder)
    for parent, names, _ in os.walk(folder):
        # os.walk reads these folders only after this.
        for name in names:
            _allow_user(Path(parent, name))
    shutil.rmtree(folder)


def _allow_user(folder: Path) -> None:
    """Let the owner of a folder read and write it, if this user may allow that."""
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            folder.chmod(0o700)


def trim_folder(folder: Path, limit: int) -> None:
    """Delete the files that were used least recently until a folder holds at most `limit` bytes.

    A file counts as used at its time of modification, which readers of a cache renew. Hidden files
    stay for a day after their last change, because another process may be writing them, and do not
    count. Files that cannot be deleted stay, too.
    """
    files = []
    total = 0
    # os.walk, unlike rglob, goes on if somebody deletes a folder while it runs.
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                status = path.stat()
                is_being_written = name.startswith(".") and not is_abandoned(path)
                if path.is_file() and not is_being_written:
                    files.append((status.st_mtime_ns, status.st_size, path))
                    total += status.st_size
    excess = total - limit
    for _, size, path in sorted(files):
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            excess -= size
