"""The disk space that files take: a file with several names (hard links) counts once.

A file of a cache may have further names in several trees. Such a file frees nothing when one tree
is removed, as long as it has another name.
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
    names: int  # the number of its names anywhere
    seen: int  # the number of its names in the folders that were measured


@dataclass(frozen=True, slots=True)
class DiskBytes:
    """The disk space that some files and folders take."""

    single: int = 0  # bytes of folders, and of files with one name
    files: int = 0  # the number of files; one with several names counts once for each
    linked: Mapping[Inode, LinkedFile] = field(default_factory=dict)  # files with several names

    @property
    def size(self) -> int:
        """Return the bytes that the files and folders take."""
        return self.single + sum(link.size for link in self.linked.values())

    @property
    def freed(self) -> int:
        """Return the bytes that come free if the files and folders are removed.

        A linked file that has a name elsewhere, which was not seen, frees nothing.
        """
        freed_links = [link.size for link in self.linked.values() if link.seen >= link.names]
        return self.single + sum(freed_links)


class _Sum:
    """A sum of disk space in the making; names of the same file are counted together."""

    def __init__(self) -> None:
        self.single = 0
        self.files = 0
        self.linked: dict[Inode, LinkedFile] = {}

    def add_link(self, inode: Inode, size: int, names: int, seen: int) -> None:
        """Add a linked file with `names` names, of which `seen` more were seen now."""
        if inode in self.linked:
            seen += self.linked[inode].seen
        self.linked[inode] = LinkedFile(size, names, seen)

    def total(self) -> DiskBytes:
        """Return the sum."""
        return DiskBytes(self.single, self.files, self.linked)


def add_up(usages: Iterable[DiskBytes]) -> DiskBytes:
    """Return the sum of the usages of different folders, which may share linked files."""
    result = _Sum()
    for usage in usages:
        result.single += usage.single
        result.files += usage.files
        for inode, link in usage.linked.items():
            result.add_link(inode, size=link.size, names=link.names, seen=link.seen)
    return result.total()


def measure_paths(paths: Iterable[Path]) -> DiskBytes:
    """Return the disk space of files and folders; links are not followed.

    No path may lie in another one, whose files would count twice.
    Files that vanish while this runs do not count, nor does what this user may not read.
    """
    result = _Sum()
    for status in _walk(paths):
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder:
            result.files += 1
        # The link count of a folder tells how many folders are in it, not how many names it has.
        if is_folder or status.st_nlink == 1:
            result.single += _size(status)
        else:
            result.add_link(
                (status.st_dev, status.st_ino), size=_size(status), names=status.st_nlink, seen=1
            )
    return result.total()


def _walk(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Yield the status of paths and of everything below them."""
    for path in paths:
        # Files may vanish at any time, and this user may not be allowed to read a folder.
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

    0 if none of them exists. The time of a folder is its own, whatever is in it, and that of a link
    its own, wherever it leads.
    """
    newest = 0.0
    for path in paths:
        with contextlib.suppress(OSError):
            newest = max(newest, path.lstat().st_mtime)
    return newest
