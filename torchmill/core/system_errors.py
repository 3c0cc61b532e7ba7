"""Say in one sentence why the operating system refused something, such as room on a disk.

A "refusal" is an error of the system that has to do with the machine: its disks, permissions and
limits. Each becomes a HostError with a code and a cure.
"""

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import exists
from torchmill.core.units import format_bytes

# A disk counts as full if it has no room for this. It is more than pip and setuptools take in a new
# environment, because a program that failed may have deleted its files.
_TRIAL_BYTES = 2**25
_TRIAL_FILES = 2**11
# pip and compilers fail if no file may be larger than this (`ulimit -f`).
_SMALLEST_LIMIT_BYTES = 2**26
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Refusal(NamedTuple):
    """A kind of refusal, and the error to show for it."""

    code: str  # of the error
    cure: str  # the end of its message; "" for a full disk, whose message is `disk_full_error`'s


_FULL = _Refusal("disk-full", "")
_FAILED = _Refusal("disk-failed", "the disk, or its server, is failing")
_FORBIDDEN = _Refusal("not-writable", "see who owns it, or use another folder")
_NAME_TAKEN = _Refusal("not-writable", "see what has that name, or use another folder")
_FOLDER_MISSING = _Refusal("not-writable", "create the folder that it should be in, or use another")
_MANY_FILES = _Refusal("too-many-files", "raise the limit (`ulimit -n 4096`)")
_NO_MEMORY = _Refusal("no-memory", "free some memory, and run the command again to go on")
_OTHER = _Refusal("system-error", "see what is wrong there")
# By the system's error number. `read_refusal` searches in this order.
_REFUSALS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: _FORBIDDEN,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EEXIST: _NAME_TAKEN,
    errno.ENOTDIR: _NAME_TAKEN,
    errno.EISDIR: _NAME_TAKEN,
    errno.ENAMETOOLONG: _NAME_TAKEN,
    errno.ENOENT: _FOLDER_MISSING,
    errno.EIO: _FAILED,
    errno.ESTALE: _FAILED,
    errno.EMFILE: _MANY_FILES,
    errno.ENFILE: _MANY_FILES,
    errno.ENOMEM: _NO_MEMORY,
}


@contextlib.contextmanager
def report_unwritable(path: Path, *more_paths: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Raise HostError if the system refuses to let the block write its files.

    The block writes `path`, which needs `needed_bytes` (0: unknown), and `more_paths`, which may be
    on other disks. Other errors pass, such as those of connections and of libraries.
    """
    try:
        yield
    except shutil.Error as error:  # copytree gathers its errors as text
        refusal = read_refusal(str(error), path, needed_bytes=needed_bytes)
        if refusal is None:
            raise
        raise refusal from None
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError) or not is_of_system(error):
            raise
        raise machine_error(error, path, *more_paths, needed_bytes=needed_bytes) from None


def read_refusal(text: str, path: Path, *, needed_bytes: int = 0) -> HostError | None:
    """Return the error to show if a program's output has the system's words for a refusal.

    The error names the path in the output, or else `path`, which the program was writing. None if
    the output has no such words.
    """
    for number, refusal in _REFUSALS.items():
        message = os.strerror(number)
        # A program that says "File exists", or the like, may have other reasons.
        if refusal == _NAME_TAKEN or message.lower() not in text.lower():
            continue
        refused_path = path
        # A full disk is that of `path`, though a copying program may name the file that it reads.
        if number not in DISK_FULL:
            match = re.search(rf"(?i){re.escape(message)}: '(.+?)'", text)
            if match is not None:
                refused_path = Path(match[1])
        return machine_error(OSError(number, message), refused_path, needed_bytes=needed_bytes)
    return None


def blame_disk(text: str, *folders: Path) -> HostError | None:
    """Return the error to show if a program failed because a disk is full or read-only.

    None if neither is so. A limit on the size of files (`ulimit -f`) counts as a full disk.

    Some programs say so in their output, `text`. For others, the folders that they write to,
    `folders` and the one for temporary files, are tried: is there room for a file of _TRIAL_BYTES,
    and for _TRIAL_FILES more files?
    """
    from millguard.limits import process_limit

    folders = (*folders, Path(tempfile.gettempdir()))
    largest_file = process_limit("RLIMIT_FSIZE")
    if largest_file is not None and largest_file < _SMALLEST_LIMIT_BYTES:
        return disk_full_error(folders[0], number=errno.EFBIG)
    numbers = (*DISK_FULL, errno.EROFS)
    for number in numbers:
        if os.strerror(number).lower() in text.lower():
            fullest = min(folders, key=_room)
            return machine_error(OSError(number, os.strerror(number)), fullest)
    for folder in folders:
        existing = nearest_existing(folder)
        if _lacks_files(existing):
            return disk_full_error(folder)
        try:
            with tempfile.TemporaryFile(dir=existing) as file:
                # A new file needs no room yet: a full disk and a quota show when it is written.
                file.write(bytes(_TRIAL_BYTES))
        except OSError as error:
            if error.errno in numbers:
                # Without the name of the trial's file, of which the user knows nothing.
                nameless = OSError(error.errno, os.strerror(error.errno or 0))
                return machine_error(nameless, folder)
    return None


def is_of_system(error: BaseException) -> bool:
    """Tell whether an error comes from the operating system.

    Not every OSError does: gzip, ssl and requests derive errors of their own from it.
    """
    if not isinstance(error, OSError) or error.errno is None:
        return False
    return type(error).__module__ == "builtins"


def machine_error(
    error: OSError, path: Path | None, *more_paths: Path, needed_bytes: int = 0
) -> HostError:
    """Return the error to show if the system refused something at `path`, or at `more_paths`.

    `path` is None if nobody knows it. The message is about the file that the system names, else
    about `path`. But if a disk is full, the system may name a file of another disk: then the
    message is about `path` or, with `more_paths`, about the path whose disk has the least room.
    `needed_bytes` is 0 if unknown.
    """
    named_path: Path | None = None
    if isinstance(error.filename, str | bytes):
        named_path = Path(os.fsdecode(error.filename))
    if error.errno in DISK_FULL:
        candidates = [candidate for candidate in (path, named_path, *more_paths) if candidate]
        full_path = candidates[0] if candidates else Path()
        # A quota and a limit on the size of files say nothing about the room of a disk.
        if more_paths and error.errno == errno.ENOSPC:
            full_path = min(candidates, key=_room)
        return disk_full_error(full_path, needed_bytes, error.errno)
    refusal = _REFUSALS.get(error.errno or 0, _OTHER)
    subject = named_path or path or "the system"
    return HostError(f"{subject}: {error.strerror or error}: {refusal.cure}", code=refusal.code)


def disk_full_error(path: Path, needed_bytes: int = 0, number: int = errno.ENOSPC) -> HostError:
    """Return the error for a disk that has no room for `needed_bytes` (0: unknown) at a path.

    `number` is the system's: it differs for a full disk, a quota, and a limit on the size of files.
    """
    existing = nearest_existing(path)
    free = shutil.disk_usage(existing).free
    if number == errno.EFBIG:
        reason = f"{path} would be larger than files may be here (`ulimit -f`)"
    elif number == errno.EDQUOT:
        reason = f"your quota on the disk of {path} is used up (`quota -s`)"
    elif _lacks_files(existing):
        reason = (
            f"the disk of {path} can hold {free_files(existing) or 'no'} more files, "
            f"though {format_bytes(free)} are free (`df -i`)"
        )
    else:
        room = f"{format_bytes(free)} free"
        if needed_bytes:
            room += f", {format_bytes(needed_bytes)} wanted"
        reason = f"the disk of {path} is full ({room})"
    return HostError(
        f"{reason}: make room (`invoke status` shows what builds keep, `invoke clean` removes it), "
        "and run the command again to go on",
        code="disk-full",
    )


def nearest_existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    absolute = folder.absolute()
    return next(parent for parent in (absolute, *absolute.parents) if exists(parent))


def free_files(folder: Path) -> int | None:
    """Return how many more files the disk of a folder can hold; None if that is unknown.

    Some file systems make inodes as they are needed, and report a total of 0.
    """
    if not hasattr(os, "statvfs"):
        return None
    status = os.statvfs(folder)
    return status.f_favail if status.f_files else None


def _room(folder: Path) -> int:
    """Return the free bytes on the disk of a folder; 0 if it can hold only a few more files."""
    existing = nearest_existing(folder)
    if _lacks_files(existing):
        return 0
    return shutil.disk_usage(existing).free


def _lacks_files(folder: Path) -> bool:
    """Tell whether the disk of a folder can hold only a few more files, however small they are."""
    files = free_files(folder)
    return files is not None and files < _TRIAL_FILES
