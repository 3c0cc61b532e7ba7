"""Write files in one move: readers see the old content or the new one, never half of it.

A file or folder is written under a hidden name beside its target, and then renamed. If the run is
killed before that, the target keeps its old content.
"""

import contextlib
import functools
import os
import platform
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.core.deletion import delete_paths, is_abandoned

_MARK_LENGTH = 8  # hexadecimal digits


def write_atomically(file: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write `content`, text as UTF-8, to a file in one move; a link is replaced, not followed.

    `mode` are the file's permissions, such as 0o755; None leaves them to the umask. The folder is
    made if it is missing. If the file cannot be written, raises OSError, and the old file stays.
    """
    if isinstance(content, str):
        content = content.encode()
    with fresh_path(file) as fresh:
        fresh.write_bytes(content)
        if mode is not None:
            fresh.chmod(mode)
        fresh.replace(file)


def write_script(file: Path, template: Path, values: Mapping[str, str]) -> None:
    """Write an executable script: the text of `template` with a value for each @NAME@ in it.

    `values` maps the names to the values. A script that has this text already is not written
    again. Raises OSError if the script cannot be written, KeyError if a value is missing.
    """
    text = re.sub(r"@(\w+)@", lambda match: values[match[1]], template.read_text("utf-8"))
    if file.is_file() and file.read_bytes() == text.encode():
        return
    write_atomically(file, text, 0o755)


@contextlib.contextmanager
def fresh_path(target: Path) -> Iterator[Path]:
    """Yield a hidden path beside `target`, at which the block makes the target's replacement.

    The block itself renames the path to `target`. If it does not, the path is deleted after the
    block. Hidden paths that killed runs left beside `target` are deleted first. The folder is made
    if it is missing. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    start = f".{target.name}."
    names = os.listdir(target.parent)  # noqa: PTH208 - may be ten thousands
    hidden = [target.with_name(name) for name in names if name.startswith(start)]
    delete_paths(path for path in hidden if _is_left_over(path))
    fresh = target.with_name(f"{start}{_machine_mark()}-{os.getpid()}")
    # A killed run may have had the number of this process: in a container they begin at 1.
    delete_paths([fresh])
    try:
        yield fresh
    finally:
        delete_paths([fresh])


def _is_left_over(path: Path) -> bool:
    """Tell whether the run that made a hidden path of `fresh_path` has ended.

    Its name ends with "MARK-NUMBER", the mark of the machine and the number of the process.
    Processes of another machine or container cannot be seen from here: their paths are left over
    when nobody has changed them for a day.
    """
    mark, _, number = path.name.rpartition(".")[2].partition("-")
    if len(mark) != _MARK_LENGTH or not number.isdecimal():
        return False
    if mark != _machine_mark():
        return is_abandoned(path)
    import psutil  # slow to load, and seldom needed

    return int(number) != os.getpid() and not psutil.pid_exists(int(number))


@functools.cache
def _machine_mark() -> str:
    """Return a digest of the machine and the container within which process numbers are unique."""
    container = ""
    with contextlib.suppress(OSError):  # only Linux has this link, which names the container
        container = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    return f"{zlib.crc32(f'{platform.node()} {container}'.encode()):0{_MARK_LENGTH}x}"
