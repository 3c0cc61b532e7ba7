"""Write files in one move, so that nobody reads half of one and a killed run leaves the old one."""

import contextlib
import functools
import os
import platform
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.core.deletion import ABANDONED_SECONDS, delete_paths

_MARK_LENGTH = 8  # hexadecimal digits


def write_atomically(file: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write `content` to a file in one move, with its permissions (0o755) if they are given.

    The folder is made if it is missing. Raises OSError if the file cannot be written; the old one
    stays then.
    """
    with fresh_path(file) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            fresh.chmod(mode)
        fresh.replace(file)


def write_script(file: Path, script: Path, names: Mapping[str, str]) -> None:
    """Write an executable from a template with @names@, unless it is there already, unchanged.

    A shell reads its script while it runs, so one that somebody may be running is not replaced by
    its own copy. Raises OSError.
    """
    template = script.read_text(encoding="utf-8")
    text = re.sub(r"@(\w+)@", lambda match: names[match[1]], template)
    if not (file.is_file() and file.read_bytes() == text.encode()):
        write_atomically(file, text, 0o755)


@contextlib.contextmanager
def fresh_path(target: Path) -> Iterator[Path]:
    """Yield a hidden path beside `target`, for a file or folder that is to take its place.

    The folder is made if it is missing. In the end the path is removed if something is still there.
    Paths that a killed run left there are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    start = f".{target.name}."
    names = os.listdir(target.parent)  # noqa: PTH208 - may be ten thousands
    hidden = [target.with_name(name) for name in names if name.startswith(start)]
    delete_paths(path for path in hidden if _is_abandoned(path))
    fresh = target.with_name(f"{start}{_machine_mark()}-{os.getpid()}")
    try:
        yield fresh
    finally:
        delete_paths([fresh])


def _is_abandoned(path: Path) -> bool:
    """Tell whether the run that wrote a path of `fresh_path` has ended.

    Processes of another machine or container cannot be seen from here: a path of theirs is
    abandoned when it is a day old.
    """
    mark, _, number = path.name.rpartition(".")[2].partition("-")
    if len(mark) != _MARK_LENGTH or not number.isdecimal():
        return False
    if mark != _machine_mark():
        with contextlib.suppress(OSError):
            return time.time() - path.lstat().st_mtime > ABANDONED_SECONDS
        return False
    import psutil

    return int(number) != os.getpid() and not psutil.pid_exists(int(number))


@functools.cache
def _machine_mark() -> str:
    """Return a digest of the machine and its container, because process numbers are each one's own."""
    namespace = Path("/proc/self/ns/pid")
    container = os.readlink(namespace) if os.path.lexists(namespace) else ""  # noqa: PTH115
    return f"{zlib.crc32(f'{platform.node()} {container}'.encode()):0{_MARK_LENGTH}x}"
