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
_CLOSED = ("not-writable", "see who owns it, or use another folder")
_TAKEN = ("not-writable", "see what has that name, or use another folder")
# The system's error number of each refusal -> the code of the error to show, and its cure.
_REFUSALS = {
    errno.ENOSPC: ("disk-full", ""),
    errno.EDQUOT: ("disk-full", ""),
    errno.EFBIG: ("disk-full", ""),
    errno.EROFS: _CLOSED,
    errno.EACCES: _CLOSED,
    errno.EPERM: _CLOSED,
    errno.EEXIST: _TAKEN,
    errno.ENOTDIR: _TAKEN,
    errno.EISDIR: _TAKEN,
    errno.ENAMETOOLONG: _TAKEN,
    errno.ENOENT: ("not-writable", "create the folder that it should be in, or use another"),
    errno.EIO: ("disk-failed", "the disk, or its server, is failing"),
    errno.ESTALE: ("disk-failed", "the disk, or its server, is failing"),
    errno.EMFILE: ("too-many-files", "raise the limit (`ulimit -n 4096`)"),
    errno.ENFILE: ("too-many-files", "raise the limit (`ulimit -n 4096`)"),
    errno.ENOMEM: ("no-memory", "free some memory, and run the command again to go on"),
}


@contextlib.contextmanager
def report_unwritable(path: Path, *more_paths: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Raise HostError if the system refuses what is done in the block.

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
    for number, cure in _REFUSALS.items():
        message = os.strerror(number)
        # Programs also say "File exists" and the like in other matters.
        if cure == _TAKEN or message.lower() not in text.lower():
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
    """Return the error to show if a program failed because the disk of one of its folders is full.

    Some programs say so in their output, `text`. For the others, each of the `folders` that they
    write to, and the folder for temporary files, is tried: for a file of _TRIAL_BYTES, and for
    _TRIAL_FILES more files. None if all have room.
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
                refusal = OSError(error.errno, os.strerror(error.errno or 0))
                return machine_error(refusal, folder)
    return None


def is_of_system(error: BaseException) -> bool:
    """Tell whether an error comes from the system; gzip, ssl and requests raise OSErrors, too."""
    if not isinstance(error, OSError) or error.errno is None:
        return False
    return type(error).__module__ == "builtins"


def machine_error(
    error: OSError, path: Path | None, *more_paths: Path, needed_bytes: int = 0
) -> HostError:
    """Return the error to show if the system refused something at `path`, or at `more_paths`.

    `path` is None if nobody knows it. An error that names a file is about that file, unless a disk
    is full: the system does not always say which, so the disk with the least room is named.
    `needed_bytes` is 0 if unknown.
    """
    refused_path = path
    if isinstance(error.filename, str | bytes):
        refused_path = Path(os.fsdecode(error.filename))
    if error.errno in DISK_FULL:
        candidates = [candidate for candidate in (path, refused_path, *more_paths) if candidate]
        full_path = candidates[0] if candidates else Path()
        if more_paths and error.errno == errno.ENOSPC:
            full_path = min(candidates, key=_room)
        return disk_full_error(full_path, needed_bytes, error.errno)
    code, cure = _REFUSALS.get(error.errno or 0, ("system-error", "see what is wrong there"))
    return HostError(
        f"{refused_path or 'the system'}: {error.strerror or error}: {cure}", code=code
    )


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
        files = free_files(existing) or "no"
        reason = (
            f"the disk of {path} can hold {files} more files, "
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
    """Return how many more files the disk of a folder can hold; None if it does not say.

    Some file systems make inodes as they are needed, and report a total of 0.
    """
    if not hasattr(os, "statvfs"):
        return None
    status = os.statvfs(folder)
    return status.f_favail if status.f_files else None


def _room(folder: Path) -> int:
    """Return the free bytes on the disk of a folder; 0 if it takes no more files."""
    existing = nearest_existing(folder)
    if _lacks_files(existing):
        return 0
    return shutil.disk_usage(existing).free


def _lacks_files(folder: Path) -> bool:
    """Tell whether the disk of a folder can hold few more files, however small."""
    files = free_files(folder)
    return files is not None and files < _TRIAL_FILES
