"""Ask the file system about paths that this user may not be allowed to look at, without errors.

A path that cannot be looked at counts as missing. The methods of pathlib raise OSError in some of
these cases, and RuntimeError for links in a circle.
"""

import os
from pathlib import Path


def exists(path: Path) -> bool:
    """Tell whether a path exists; False if that cannot be seen."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Tell whether a path is a file, or a link to one; False if that cannot be seen."""
    return os.path.isfile(path)  # noqa: PTH113


def real_path(path: Path | str) -> Path:
    """Return the absolute path with its links followed, as far as they can be."""
    return Path(os.path.realpath(path))


def find_paths(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder that match a glob, sorted; [] if it cannot be read."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def read_text(file: Path) -> str:
    """Return the text of a file, with U+FFFD for what is not UTF-8; "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def link_file(file: Path, target: Path) -> bool:
    """Make `target` a hard link to a file, and tell whether that was possible.

    Not every file system has hard links, and none has them from one disk to another.
    """
    try:
        # If `file` is a symbolic link, the system would link to the link and not to the file.
        target.hardlink_to(real_path(file))
    except OSError:
        return False
    return True
