"""How much disk space files take, counting hard links once."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = 512  # bytes, whatever the disk's own blocks are

Inode = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file with several names."""

    size: int  # bytes on the disk
    names: int  # wherever they are
    seen: int  # of them, where one looked


@dataclass(frozen=True, slots=True)
class DiskBytes:
    """What some files and folders take."""

    single: int = 0  # bytes of all that has one name
    files: int = 0
    linked: Mapping[Inode, LinkedFile] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the bytes that they take."""
        return self.single + sum(one.size for one in self.linked.values())

    @property
    def freed(self) -> int:
        """Return the bytes that come free when they go: a file whose other names stay frees none."""
        return self.single + sum(one.size for one in self.linked.values() if one.seen >= one.names)


def add_up(every: Iterable[DiskBytes]) -> DiskBytes:
    """Return what several usages, which overlap in nothing but linked files, come to."""
    single = files = 0
    linked: dict[Inode, LinkedFile] = {}
    for one in every:
        single += one.single
        files += one.files
        for inode, link in one.linked.items():
            before = linked[inode].seen if inode in linked else 0
            linked[inode] = LinkedFile(link.size, link.names, before + link.seen)
    return DiskBytes(single, files, linked)


def measure_paths(paths: Iterable[Path]) -> DiskBytes:
    """Return what files and folders take; links are not followed, what vanishes meanwhile counts nothing."""
    single = files = 0
    linked: dict[Inode, LinkedFile] = {}
    for status in _walk(paths):
        is_folder = stat.S_ISDIR(status.st_mode)
        files += not is_folder
        if is_folder or status.st_nlink == 1:
            single += _size(status)
        else:
            inode = (status.st_dev, status.st_ino)
            before = linked[inode].seen if inode in linked else 0
            linked[inode] = LinkedFile(_size(status), status.st_nlink, before + 1)
    return DiskBytes(single, files, linked)


def _walk(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Yield the status of all there is."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield path.lstat()
            for folder, inner, names in os.walk(path) if not path.is_symlink() else ():
                for name in (*inner, *names):
                    with contextlib.suppress(OSError):
                        yield os.lstat(f"{folder}{os.sep}{name}")


def _size(status: os.stat_result) -> int:
    blocks = getattr(status, "st_blocks", None)  # Windows does not say
    return status.st_size if blocks is None else blocks * _BLOCK


def list_names(folder: Path | str) -> list[str]:
    """Return the names of what lies in a folder, in order; nothing where it is none, or cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - the names alone, and fast
    except OSError:
        return []


def list_children(folder: Path) -> list[Path]:
    """Return what lies in a folder, by name; nothing where it is none, or cannot be read."""
    return [folder / name for name in list_names(folder)]


def newest_change(paths: Iterable[Path]) -> float:
    """Return when the newest of some files and folders was changed, 0 where there is none."""
    found = [0.0]
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(path.lstat().st_mtime)
    return max(found)
