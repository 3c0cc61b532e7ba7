"""Ask the file system about paths that may be closed to us, and take no for an answer.

pathlib raises OSError, or RuntimeError for links in a circle, in some of these cases.
"""

import os
from pathlib import Path


def exists(path: Path) -> bool:
    """Tell whether something is at a path that may be looked at."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Tell whether a path is a file that may be looked at."""
    return os.path.isfile(path)  # noqa: PTH113


def real_path(path: Path | str) -> Path:
    """Return the path with all links followed, as far as they lead."""
    return Path(os.path.realpath(path))


def find_paths(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder that match a glob, sorted; none if it cannot be read."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def read_text(file: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def link_file(file: Path, target: Path) -> bool:
    """Give a file a second name (a hard link), and tell whether that was possible.

    It is not across disks, and not on every file system.
    """
    try:
        # the link's target, because the system would make a second link to a link
        target.hardlink_to(real_path(file))
    except OSError:
        return False
    return True
