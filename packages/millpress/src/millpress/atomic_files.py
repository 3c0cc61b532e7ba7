"""Files that appear whole or not at all, and errors that name the file they are about.

A file is written under a hidden name beside its target and then moved onto it. The hidden name of
"spam.whl" is ".spam.whl.0a1b2c3d-4711": a mark of the machine and the number of the process that
writes it. By them a later run recognizes what a killed run left.
"""

import contextlib
import errno
import functools
import os
import platform
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

MARK_LENGTH = 8  # hexadecimal digits that stand for a machine
DAY_SECONDS = 86400.0
# The system names no file when a disk is full: what failed is a write to a file that is already
# open.
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Let an OSError of the block name `path` if it names no file, or if the disk is full.

    If the disk is full, the system may name the hidden file beside `path`, which no user knows.
    OSErrors that are not about files pass unchanged: those of connections, and those of libraries,
    which have no number or a class of their own.
    """
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        is_from_system = error.errno is not None and type(error).__module__ == "builtins"
        if is_from_system and (error.errno in DISK_FULL or error.filename is None):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextlib.contextmanager
def fresh_path(target: Path) -> Iterator[Path]:
    """Yield the path of a hidden file beside `target`, for the block to write and move onto it.

    The folder is created. If the block leaves anything at the hidden path, it is deleted; so is
    what killed runs left for the same target, because a half-written wheel may have gigabytes. The
    path is the same for all threads of a process.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}."
    for name in os.listdir(target.parent):  # noqa: PTH208 - folders of wheels can be large
        path = target.with_name(name)
        if name.startswith(prefix) and _is_abandoned(name.removeprefix(prefix), path):
            _delete(path)
    fresh = target.with_name(f"{prefix}{_machine_mark()}-{os.getpid()}")
    _delete(fresh)  # of a killed run that had this process's number, as in a restarted container
    try:
        yield fresh
    finally:
        _delete(fresh)


def write_atomically(file: Path, content: bytes, mode: int) -> None:
    """Write `content` to a file in one move, with these permissions (0o644). Raises OSError."""
    with fresh_path(file) as fresh:
        fresh.write_bytes(content)
        fresh.chmod(mode)
        fresh.replace(file)


def _is_abandoned(suffix: str, path: Path) -> bool:
    """Tell whether the run that wrote a hidden path has ended.

    `suffix` is the end of its name: the mark of the machine and the number of the process. A number
    means nothing on another machine, so what another one wrote, on a shared disk, counts as
    abandoned when it has not changed for a day.
    """
    mark, _, number = suffix.partition("-")
    if len(mark) != MARK_LENGTH or not number.isdecimal():
        return False
    if mark != _machine_mark():
        return _is_day_old(path)
    return int(number) != os.getpid() and not _is_running(int(number))


def _is_day_old(path: Path) -> bool:
    """Tell whether a path has not changed for a day; False if that cannot be told."""
    with contextlib.suppress(OSError):
        # The clock of a shared disk dates its files, and the clock of this machine may be ahead.
        with tempfile.TemporaryFile(dir=path.parent) as fresh:
            now = os.fstat(fresh.fileno()).st_ctime
        # Not st_mtime: whoever copies a file may give it the date of the original.
        return now - path.lstat().st_ctime > DAY_SECONDS
    return False


def _is_running(process: int) -> bool:
    """Tell whether a process with this number runs; True if that cannot be known."""
    if sys.platform == "win32":  # os.kill would end the process
        return True
    try:
        os.kill(process, 0)  # signal 0 is not delivered: it only asks whether one could be
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or a number that is too large
        return True
    return True


@functools.cache
def _machine_mark() -> str:
    """Return hexadecimal digits that stand for this machine and the container in it."""
    namespace = ""
    with contextlib.suppress(OSError):  # only Linux has namespaces
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    return f"{zlib.crc32(f'{platform.node()} {namespace}'.encode()):0{MARK_LENGTH}x}"


def _delete(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
