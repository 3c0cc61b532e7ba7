"""Files that appear whole or not at all, and errors that name the file they are about."""

import contextlib
import errno
import functools
import os
import platform
import shutil
import sys
import time
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

    A full disk is that of `path`, although the system may name the hidden file beside it. Errors of
    libraries and connections, which are OSErrors without a number or of a class of their own, pass
    unchanged.
    """
    try:
        yield
    except OSError as error:
        is_of_system = error.errno is not None and type(error).__module__ == "builtins"
        if is_of_system and (error.errno in DISK_FULL or error.filename is None):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextlib.contextmanager
def fresh_path(target: Path) -> Iterator[Path]:
    """Give the path of a hidden file beside `target`, for the block to write and move onto it.

    The folder is created. What is left at the hidden path after the block is deleted, and so is
    what a killed run left there: a half-written wheel may have gigabytes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}."
    for name in os.listdir(target.parent):  # noqa: PTH208 - folders of wheels can be large
        if name.startswith(prefix) and _is_abandoned(
            name.removeprefix(prefix), target.parent / name
        ):
            _delete(target.with_name(name))
    fresh = target.with_name(f"{prefix}{_machine_mark()}-{os.getpid()}")
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
    """Tell whether the run that wrote a hidden path, whose name ends with `suffix`, has ended.

    Process numbers mean something on their own machine only: what another machine wrote, on a
    shared disk, is abandoned after a day.
    """
    mark, _, number = suffix.partition("-")
    if len(mark) != MARK_LENGTH or not number.isdecimal():
        return False
    if mark != _machine_mark():
        try:
            return time.time() - path.lstat().st_mtime > DAY_SECONDS
        except OSError:
            return False
    return int(number) != os.getpid() and not _is_running(int(number))


def _is_running(process: int) -> bool:
    """Tell whether a process of this number runs; on Windows asking would end it, so assume it."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(process, 0)  # signal 0 is not delivered: it only asks whether one could be
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or a number that no process has
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
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
