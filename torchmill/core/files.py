"""Write files atomically, hash them, read JSON objects strictly, and delete folders safely."""

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from torchmill.core.errors import BusyError, HostError
from torchmill.core.locks import HOLDER_FILE, LOCK_FILE
from torchmill.core.units import format_bytes

_TRIAL_BYTES = (
    2**25
)  # more than pip and setuptools in a new environment take: what failed may have given some back
_TRIAL_FILES = 2**11  # the same, in files
_SMALLEST_LIMIT_BYTES = 2**26  # of a file: below that pip and compilers fail
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = ("not-writable", "see who owns it, or use another folder")
_TAKEN = ("not-writable", "see what has that name, or use another folder")
# what the system refuses for reasons of the machine, not of the file: the code to show, and what helps
_REFUSALS = {
    **dict.fromkeys(_DISK_FULL, ("disk-full", "")),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _CLOSED),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG), _TAKEN),
    errno.ENOENT: ("not-writable", "create the folder that it should be in, or use another"),
    **dict.fromkeys(
        (errno.EIO, errno.ESTALE), ("disk-failed", "the disk, or its server, is failing")
    ),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE), ("too-many-files", "raise the limit (`ulimit -n 4096`)")
    ),
    errno.ENOMEM: ("no-memory", "free some memory, and run the command again to go on"),
}

_MARK_LENGTH = 8  # hexadecimal digits
LARGEST_JSON_BYTES = (
    1 << 26
)  # bytes; a manifest of torch has 10 000, and one of gigabytes is an attack
DELETED_NAME = ".gone-"  # begins the name of what was put away and is not deleted yet
DELETED_KEY = "key"  # says that a tree is complete, so it goes first
_DAY = 86400  # seconds; what was put away longer ago is nobody's, whoever has that number now
DELETE_GRACE_SECONDS = 0.2  # seconds within which another status or clean is done with a lock


def write_atomically(file: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write `content` to a file in one move, with its permissions (0o755) if they are given.

    Its folder is made where that is missing. Raise OSError where it cannot be written: what was there stays.
    """
    with fresh_path(file) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            fresh.chmod(mode)
        fresh.replace(file)


def write_script(file: Path, script: Path, names: Mapping[str, str]) -> None:
    """Write a program like `script`, its @names@ filled in, unless it is there: somebody may be running it."""
    text = re.sub(r"@(\w+)@", lambda match: names[match[1]], script.read_text(encoding="utf-8"))
    if not (file.is_file() and file.read_bytes() == text.encode()):
        write_atomically(file, text, 0o755)


@contextlib.contextmanager
def fresh_path(target: Path) -> Iterator[Path]:
    """Give a hidden name beside `target`, in a folder that is made, for what is to take its place.

    What is still there at the end goes, and at the beginning what a run that was killed left there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    start = f".{target.name}."
    left = [target.with_name(name) for name in os.listdir(target.parent) if name.startswith(start)]  # noqa: PTH208 - many
    delete_paths(filter(_is_abandoned, left))
    fresh = target.with_name(f"{start}{_machine_mark()}-{os.getpid()}")
    try:
        yield fresh
    finally:
        delete_paths([fresh])


def _is_abandoned(path: Path) -> bool:
    """Tell whether the run that wrote a path of `fresh_path` has ended; a day says so of other machines'."""
    mark, _, number = path.name.rpartition(".")[2].partition("-")
    if len(mark) != _MARK_LENGTH or not number.isdecimal():
        return False
    if mark != _machine_mark():
        with contextlib.suppress(OSError):
            return time.time() - path.lstat().st_mtime > _DAY
        return False
    import psutil

    return int(number) != os.getpid() and not psutil.pid_exists(int(number))


@functools.cache
def _machine_mark() -> str:
    """Return what stands for this machine, and the container in it: numbers of processes are its own."""
    space = Path("/proc/self/ns/pid")
    held = os.readlink(space) if os.path.lexists(space) else ""  # noqa: PTH115
    return f"{zlib.crc32(f'{platform.node()} {held}'.encode()):0{_MARK_LENGTH}x}"


def exists(path: Path) -> bool:
    """Tell whether something is there that may be looked at; pathlib raises OSError where that is forbidden."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Tell whether it is a file that may be looked at."""
    return os.path.isfile(path)  # noqa: PTH113


def real_path(path: Path | str) -> Path:
    """Return where links lead to; pathlib raises RuntimeError where they lead in a circle."""
    return Path(os.path.realpath(path))


def find_paths(folder: Path, pattern: str) -> list[Path]:
    """Return what matches a pattern in a folder, by name; nothing where that may not be read."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def read_text(file: Path) -> str:
    """Return the text of a file; "" where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def link_file(file: Path, target: Path) -> bool:
    """Give a file a second name, and say whether that could be done: other disks, and some, have no links."""
    try:
        target.hardlink_to(real_path(file))  # of a link, the system would make another link
    except OSError:
        return False
    return True


def hash_file(file: Path | str) -> str:
    """Return the sha256 of what a file holds, in hexadecimal. Raise OSError where it cannot be read."""
    with open(file, "rb") as content:  # noqa: PTH123 (a thousand times)
        return hashlib.file_digest(content, "sha256").hexdigest()


def read_table_beside(module: str, name: str) -> dict[str, Any]:
    """Return what a TOML file of the package holds; `module` is the `__file__` of the module that it lies beside."""
    import tomllib

    return tomllib.loads(Path(module).with_name(name).read_text("utf-8"))


def read_document(file: Path) -> bytes:
    """Return what a file about a wheel holds. Raises OSError where it cannot be read, ValueError with what is wrong."""
    if file.stat().st_size > LARGEST_JSON_BYTES:
        raise ValueError(f"it is larger than {LARGEST_JSON_BYTES} bytes")
    if not file.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    return file.read_bytes()


def read_json_object(file: Path) -> dict[str, Any]:
    """Return the object in a file. Raises as `read_document` and `parse_json_object` do."""
    return parse_json_object(read_document(file))


def parse_json(text: str | bytes, **hooks: Any) -> Any:
    """Return what a JSON text says, read with `hooks` of `json`. Raises ValueError for none, or too deep a nest."""
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_object(file: Path) -> dict[str, Any]:
    """Return the object in a file; an empty one where it is gone, spoiled or something else."""
    try:
        return read_json_object(file)
    except (OSError, ValueError):
        return {}


def parse_json_object(content: str | bytes) -> dict[str, Any]:
    """Return the object that a JSON text says. Raises ValueError with what is wrong.

    A name that an object has twice is refused: programs differ in which of the two they believe.
    """
    try:
        found = parse_json(content, object_pairs_hook=_once, parse_constant=_refuse)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}" if content.strip() else "it is empty") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - it is what was said that is wrong
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it says {twice!r} twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it says {constant}, which is not JSON")


@contextlib.contextmanager
def hold_locks(locks: Iterable[Path]) -> Iterator[None]:
    """Hold all of some locks; one whose folder is not there counts as held.

    Raises BusyError that names the first which somebody else holds, PermissionError for one of another user.
    """
    from filelock import FileLock

    with contextlib.ExitStack() as stack:
        for lock in (one for one in dict.fromkeys(locks) if one.parent.is_dir()):
            try:
                stack.enter_context(FileLock(lock, timeout=DELETE_GRACE_SECONDS))
            except PermissionError:
                raise
            except OSError as error:
                # where a full disk takes no lock, nobody has one, and here room is wanted; nor where nothing is written
                if error.errno != errno.EROFS and (error.errno not in _DISK_FULL or lock.exists()):
                    raise BusyError(str(lock), code="locked") from None
        yield


def move_out_of_sight(paths: Iterable[Path]) -> list[Path]:
    """Take files and folders out of sight, each in one move, and return where they lie now.

    What is gone already is left out. Raises OSError where one cannot be moved; what was moved before it stays away.
    """
    moved = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            names = (
                path.with_name(f"{DELETED_NAME}{os.getpid()}-{number}-{path.name}")
                for number in count()
            )
            moved.append(path.rename(next(name for name in names if not os.path.lexists(name))))
    return moved


def list_contents(folder: Path) -> list[Path]:
    """Return what a folder holds beside its lock, in the order in which it may go; of none, nothing."""
    staying, there = {LOCK_FILE, HOLDER_FILE}, list(folder.iterdir()) if folder.is_dir() else []
    found = [
        path
        for path in there
        if path.name not in staying and not path.name.startswith(DELETED_NAME)
    ]
    return sorted(found, key=lambda path: (path.name != DELETED_KEY, path.name))


def is_being_deleted(path: Path) -> bool:
    """Tell whether the process that put a path away may still be at it, or has just ended it."""
    import psutil

    number = path.name.removeprefix(DELETED_NAME).partition("-")[0]
    try:
        put_away = path.lstat().st_ctime
    except FileNotFoundError:
        return True
    return number.isdecimal() and psutil.pid_exists(int(number)) and time.time() - put_away < _DAY


def delete_paths(paths: Iterable[Path]) -> None:
    """Delete files and whole folders; links are deleted, not followed.

    What another process deletes at the same time is left to it. Raises OSError for what cannot be deleted.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if not path.is_dir() or path.is_symlink():
                path.unlink()
                continue
            shutil.rmtree(
                path, ignore_errors=True
            )  # where two do so at a time, each goes on behind the other
            if (
                path.exists()
            ):  # something in it may be deleted only by who may write to the folder it is in
                for inner, _, _ in os.walk(path):
                    with contextlib.suppress(OSError):
                        Path(inner).chmod(0o700)
                shutil.rmtree(path)


def trim_folder(folder: Path, limit: int) -> None:
    """Delete the files that were used least recently until a folder holds `limit` bytes.

    A file counts as used when it was last written or its time was set anew. Hidden files of today, which
    somebody is writing, stay.
    """
    found = []
    # unlike rglob, it goes on where a folder has gone meanwhile
    for path in (Path(inner, name) for inner, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(OSError):
            seen = path.stat()
            written = path.name.startswith(".") and time.time() - seen.st_mtime < _DAY
            if path.is_file() and not written:
                found.append((seen.st_mtime_ns, seen.st_size, path))
    excess = sum(size for _, size, _ in found) - limit
    for _, size, path in sorted(found):
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            excess -= size


@contextlib.contextmanager
def report_unwritable(where: Path, *others: Path, wanted: int = 0) -> Iterator[None]:
    """Raise HostError where the system refuses what is done inside: a full disk, a folder closed to us.

    `where` is what is written, `wanted` the bytes that it will have, where that is known, and `others` may be on
    other disks. What a library raises, and what connections do, passes.
    """
    try:
        yield
    except shutil.Error as error:  # copytree gathers what went wrong, as text
        if (refusal := read_refusal(str(error), where, wanted=wanted)) is None:
            raise
        raise refusal from None
    except OSError as error:
        if isinstance(error, ConnectionError | TimeoutError) or not is_of_system(error):
            raise
        raise machine_error(error, where, *others, wanted=wanted) from None


def read_refusal(text: str, where: Path, *, wanted: int = 0) -> HostError | None:
    """Return the error to show where a program's output says that the system refused it something."""
    numbers = (
        one
        for one in _REFUSALS
        if _REFUSALS[one] != _TAKEN and os.strerror(one).lower() in text.lower()
    )
    if (number := next(numbers, None)) is None:
        return None
    why = os.strerror(number)
    named = (
        None if number in _DISK_FULL else re.search(rf"(?i){re.escape(why)}: '(.+?)'", text)
    )  # may be what is read
    return machine_error(OSError(number, why), Path(named[1]) if named else where, wanted=wanted)


def blame_disk(text: str, *folders: Path) -> HostError | None:
    """Return the error to show where a program failed because a folder that it writes to has no room.

    The program says so in `text`, or nowhere: then each of the folders and the one for temporary files has to
    have room for a small file, and for as many files as an environment has. None where all is well.
    """
    folders = (*folders, Path(tempfile.gettempdir()))
    from millguard.limits import process_limit

    if (most := process_limit("RLIMIT_FSIZE")) is not None and most < _SMALLEST_LIMIT_BYTES:
        return disk_full_error(folders[0], number=errno.EFBIG)
    numbers = (*_DISK_FULL, errno.EROFS)
    number = next((one for one in numbers if os.strerror(one).lower() in text.lower()), None)
    if number is not None:
        return machine_error(OSError(number, os.strerror(number)), min(folders, key=_room))
    for folder in folders:
        if _lacks_files(nearest_existing(folder)):
            return disk_full_error(folder)
        try:
            with tempfile.TemporaryFile(dir=nearest_existing(folder)) as file:
                file.write(bytes(_TRIAL_BYTES))
        except OSError as error:
            if error.errno in numbers:
                return machine_error(OSError(error.errno, os.strerror(error.errno or 0)), folder)
    return None


def _room(folder: Path) -> int:
    """Return how many bytes are free on the disk of a folder; 0 where it takes no more files."""
    existing = nearest_existing(folder)
    return 0 if _lacks_files(existing) else shutil.disk_usage(existing).free


def nearest_existing(folder: Path) -> Path:
    """Return a folder, or where it is not there yet, the one that it would be made in."""
    whole = folder.absolute()
    return next(one for one in (whole, *whole.parents) if exists(one))


def is_of_system(error: BaseException) -> bool:
    """Tell whether the system refused something; what gzip, ssl or requests raise may be an OSError too."""
    return (
        isinstance(error, OSError)
        and error.errno is not None
        and type(error).__module__ == "builtins"
    )


def machine_error(error: OSError, where: Path | None, *others: Path, wanted: int = 0) -> HostError:
    """Return the error to show where the system refused something in `where`, if that is known, or in `others`.

    Which disk is full, the system does not always say: it is the one with the least room.
    """
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else where
    if error.errno in _DISK_FULL:
        tried = [one for one in (where, named, *others) if one]
        first = (
            min(tried, key=_room)
            if others and error.errno == errno.ENOSPC
            else (tried or [Path()])[0]
        )
        return disk_full_error(first, wanted, error.errno)
    code, advice = _REFUSALS.get(error.errno or 0, ("system-error", "see what is wrong there"))
    return HostError(f"{named or 'the system'}: {error.strerror or error}: {advice}", code=code)


def disk_full_error(where: Path, wanted: int = 0, number: int = errno.ENOSPC) -> HostError:
    """Return the error for a disk without room for `wanted` bytes (0: unknown); `number` is the system's."""
    existing = nearest_existing(where)
    free, files = shutil.disk_usage(existing).free, free_files(existing)
    why = f"the disk of {where} is full ({format_bytes(free)} free" + (
        f", {format_bytes(wanted)} wanted)" if wanted else ")"
    )
    if number == errno.EFBIG:
        why = f"{where} would be larger than files may be here (`ulimit -f`)"
    elif number == errno.EDQUOT:
        why = f"your quota on the disk of {where} is used up (`quota -s`)"
    elif files is not None and _lacks_files(existing):
        why = f"the disk of {where} can hold {files or 'no'} more files, though {format_bytes(free)} are free (`df -i`)"
    return HostError(
        f"{why}: make room (`invoke status` shows what builds keep, `invoke clean` removes it), and run the "
        "command again to go on",
        code="disk-full",
    )


def _lacks_files(folder: Path) -> bool:
    files = free_files(folder)
    return files is not None and files < _TRIAL_FILES


def free_files(folder: Path) -> int | None:
    """Return how many more files the disk of a folder can hold; None where it does not say."""
    if not hasattr(os, "statvfs"):
        return None
    seen = os.statvfs(folder)
    return (
        seen.f_favail if seen.f_files else None
    )  # some make files as they are needed, and count none
