"""The disk space that files take: a file with several names (hard links) counts once.

Files of one store, such as the caches, may have names in several trees. To remove one tree frees
nothing of such a file while it has another name.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = 512  # bytes: the unit of st_blocks, whatever the disk's own blocks are

Inode = tuple[int, int]  # device and number


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file with several names."""

    size: int  # bytes on the disk
    names: int  # how many it has anywhere
    seen: int  # how many of them are in the folders that were measured


@dataclass(frozen=True, slots=True)
class DiskBytes:
    """The disk space that some files and folders take."""

    single: int = 0  # bytes of folders, and of files with one name
    files: int = 0  # how many names of files
    linked: Mapping[Inode, LinkedFile] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the bytes that the files and folders take."""
        return self.single + sum(link.size for link in self.linked.values())

    @property
    def freed(self) -> int:
        """Return the bytes that come free if they are removed: none of a file with another name."""
        whole = [link.size for link in self.linked.values() if link.seen >= link.names]
        return self.single + sum(whole)


class _Sum:
    """Adds up disk space; names of the same file are counted together."""

    def __init__(self) -> None:
        self.single = 0
        self.files = 0
        self.linked: dict[Inode, LinkedFile] = {}

    def add_link(self, inode: Inode, size: int, names: int, seen: int) -> None:
        """Add a file of which `seen` of its `names` were seen, further to those seen before."""
        if inode in self.linked:
            seen += self.linked[inode].seen
        self.linked[inode] = LinkedFile(size, names, seen)

    def total(self) -> DiskBytes:
        """Return the sum."""
        return DiskBytes(self.single, self.files, self.linked)


def add_up(usages: Iterable[DiskBytes]) -> DiskBytes:
    """Return the sum of usages that have no name of a file in common, but maybe linked files."""
    result = _Sum()
    for usage in usages:
        result.single += usage.single
        result.files += usage.files
        for inode, link in usage.linked.items():
            result.add_link(inode, link.size, link.names, link.seen)
    return result.total()


def measure_paths(paths: Iterable[Path]) -> DiskBytes:
    """Return the disk space of files and folders; links are not followed.

    Files that vanish meanwhile do not count.
    """
    result = _Sum()
    for status in _walk(paths):
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder:
            result.files += 1
        # The link count of a folder is the number of folders in it, not of its names.
        if is_folder or status.st_nlink == 1:
            result.single += _size(status)
        else:
            result.add_link((status.st_dev, status.st_ino), _size(status), status.st_nlink, 1)
    return result.total()


def _walk(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Yield the status of paths and of everything below them."""
    for path in paths:
        # Files may go, and folders may be closed to this user, at any time.
        with contextlib.suppress(OSError):
            yield path.lstat()
            if path.is_symlink():
                continue
            for folder, inner, names in os.walk(path):
                for name in (*inner, *names):
                    with contextlib.suppress(OSError):
                        yield os.lstat(f"{folder}{os.sep}{name}")


def _size(status: os.stat_result) -> int:
    """Return the bytes of a file on the disk; on Windows, which has no st_blocks, its length."""
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * _BLOCK


def list_names(folder: Path | str) -> list[str]:
    """Return the names in a folder, sorted; none if it is no folder, or cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - the names alone, and fast
    except OSError:
        return []


def list_children(folder: Path) -> list[Path]:
    """Return the paths in a folder, by name; none if it is no folder, or cannot be read."""
    return [folder / name for name in list_names(folder)]


def newest_change(paths: Iterable[Path]) -> float:
    """Return the time of the newest change of files and folders, in seconds since the epoch.

    0 if none of them exists. Files inside folders are not looked at.
    """
    newest = 0.0
    for path in paths:
        with contextlib.suppress(OSError):
            newest = max(newest, path.lstat().st_mtime)
    return newest
