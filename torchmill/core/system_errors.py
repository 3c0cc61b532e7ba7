"""Say in one sentence why the system refused something: a full disk, a closed folder, a limit."""

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

# Room that a disk is tried for, in bytes and in files: more than pip and setuptools take in a new
# environment, because the program that failed may have given some room back.
_TRIAL_BYTES = 2**25
_TRIAL_FILES = 2**11
# bytes; pip and compilers fail if no file may be larger than this (`ulimit -f`)
_SMALLEST_LIMIT_BYTES = 2**26
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = ("not-writable", "see who owns it, or use another folder")
_TAKEN = ("not-writable", "see what has that name, or use another folder")
# Refusals for reasons of the machine and not of the file: error code, and what helps.
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
def report_unwritable(where: Path, *others: Path, wanted: int = 0) -> Iterator[None]:
    """Raise HostError if the system refuses what is done in the block.

    `where` is the path that is written, `wanted` its size in bytes if that is known; `others` may
    be on other disks. Errors that a library raises, and errors of connections, pass.
    """
    try:
        yield
    except shutil.Error as error:  # copytree gathers its errors as text
        refusal = read_refusal(str(error), where, wanted=wanted)
        if refusal is None:
            raise
        raise refusal from None
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError) or not is_of_system(error):
            raise
        raise machine_error(error, where, *others, wanted=wanted) from None


def read_refusal(text: str, where: Path, *, wanted: int = 0) -> HostError | None:
    """Return the error to show if a program's output says that the system refused it something."""
    for number, (code, advice) in _REFUSALS.items():
        message = os.strerror(number)
        if (code, advice) == _TAKEN or message.lower() not in text.lower():
            continue
        path = where
        if number not in DISK_FULL:  # of a copy, a full disk may name the file that is read
            named = re.search(rf"(?i){re.escape(message)}: '(.+?)'", text)
            path = Path(named[1]) if named else where
        return machine_error(OSError(number, message), path, wanted=wanted)
    return None


def blame_disk(text: str, *folders: Path) -> HostError | None:
    """Return the error to show if a program failed because a folder that it writes to has no room.

    The program says so in its output `text`, or not at all: then each folder, and the one for
    temporary files, is tried for a small file and for as many files as an environment has. None if
    there is room.
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
                file.write(bytes(_TRIAL_BYTES))
        except OSError as error:
            if error.errno in numbers:
                refusal = OSError(error.errno, os.strerror(error.errno or 0))
                return machine_error(refusal, folder)
    return None


def is_of_system(error: BaseException) -> bool:
    """Tell whether the system refused something: gzip, ssl and requests raise OSErrors as well."""
    if not isinstance(error, OSError) or error.errno is None:
        return False
    return type(error).__module__ == "builtins"


def machine_error(error: OSError, where: Path | None, *others: Path, wanted: int = 0) -> HostError:
    """Return the error to show if the system refused something in `where`, or in `others`.

    `where` is None if nobody knows the path. The system does not always say which disk is full:
    the one with the least room is named. `wanted` is in bytes, 0 if unknown.
    """
    path = where
    if isinstance(error.filename, str | bytes):
        path = Path(os.fsdecode(error.filename))
    if error.errno in DISK_FULL:
        candidates = [candidate for candidate in (where, path, *others) if candidate]
        first = candidates[0] if candidates else Path()
        if others and error.errno == errno.ENOSPC:
            first = min(candidates, key=_room)
        return disk_full_error(first, wanted, error.errno)
    code, advice = _REFUSALS.get(error.errno or 0, ("system-error", "see what is wrong there"))
    return HostError(f"{path or 'the system'}: {error.strerror or error}: {advice}", code=code)


def disk_full_error(where: Path, wanted: int = 0, number: int = errno.ENOSPC) -> HostError:
    """Return the error for a disk without room for `wanted` bytes (0: unknown).

    `number` is the system's errno: it tells a full disk from a quota and a limit on files' sizes.
    """
    existing = nearest_existing(where)
    free = shutil.disk_usage(existing).free
    if number == errno.EFBIG:
        reason = f"{where} would be larger than files may be here (`ulimit -f`)"
    elif number == errno.EDQUOT:
        reason = f"your quota on the disk of {where} is used up (`quota -s`)"
    elif _lacks_files(existing):
        files = free_files(existing) or "no"
        reason = (
            f"the disk of {where} can hold {files} more files, "
            f"though {format_bytes(free)} are free (`df -i`)"
        )
    else:
        room = f"{format_bytes(free)} free"
        if wanted:
            room += f", {format_bytes(wanted)} wanted"
        reason = f"the disk of {where} is full ({room})"
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
    return 0 if _lacks_files(existing) else shutil.disk_usage(existing).free


def _lacks_files(folder: Path) -> bool:
    files = free_files(folder)
    return files is not None and files < _TRIAL_FILES
