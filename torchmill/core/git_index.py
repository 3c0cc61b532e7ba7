"""Read which files git tracks, without running git: a folder's git settings may name programs to run.

Formats: https://git-scm.com/docs/index-format and https://git-scm.com/docs/gitrepository-layout.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAX_INDEX_BYTES = 1 << 28  # that of Chromium, with 400,000 files, has 2 ** 26
_MAX_TEXT_BYTES = 1 << 16  # of a `.git` file, or of git's settings
_HEADER_BYTES = 12  # "DIRC", version, number of entries
_STAT_BYTES = 40  # of an entry, before its digest
_MODE_OFFSET = 24
_EXTENDED_FLAG = 0x4000
_SPLIT_INDEX = re.compile(rb"link\0\0\0[\x14-\xff]")
_VERSIONS = (2, 3, 4)
_COMPRESSED = 4  # the version in which paths are
_SHA1_BYTES, _SHA256_BYTES = 20, 32


class TrackedFile(NamedTuple):
    """An entry of git's index."""

    path: str  # relative to the folder that was asked about, with slashes
    link: bool


class WorkTree(NamedTuple):
    """A folder that git manages, and the file in which it notes what it tracks there."""

    top: Path
    file: Path  # git's index
    settings: Path


def find_work_tree(folder: Path) -> WorkTree | None:
    """Return the work tree that a folder lies in; None if no folder above has a `.git`.

    In a worktree and in a submodule, `.git` is a file that names the git folder.
    """
    for top in (folder, *folder.parents):
        place = top / ".git"
        if place.is_dir():
            return WorkTree(top, place / "index", place / "config")
        if place.is_file():
            word, _, name = _read_start(place).partition(b": ")
            git_folder = top / os.fsdecode(name.rstrip(b"\n"))
            if word == b"gitdir" and name:
                common = git_folder / os.fsdecode(
                    _read_start(git_folder / "commondir").rstrip(b"\n")
                )
                return WorkTree(top, git_folder / "index", common / "config")
    return None


def list_tracked(folder: Path, names: re.Pattern[bytes]) -> list[TrackedFile] | None:
    """Return the files in a folder that git tracks, or an empty list if none has a path that `names` occurs in.

    None means that it cannot be told: git's index is damaged, split, or of an unknown format. `names` saves reading
    an index whole that mentions nothing of interest.
    """
    tree = find_work_tree(folder)
    if tree is None:
        return []
    try:
        data = _read_index(tree.file)
        if not _mentions(data, names):
            return []
        digest_bytes = (
            _SHA256_BYTES if b"sha256" in _read_start(tree.settings).lower() else _SHA1_BYTES
        )
        entries = list(_read_entries(data, digest_bytes))
    except (OSError, ValueError, IndexError):
        return None
    prefix = "".join(f"{part}/" for part in folder.relative_to(tree.top).parts)
    inside = [entry for entry in entries if entry.path.startswith(prefix)]
    return [entry._replace(path=entry.path.removeprefix(prefix)) for entry in inside]


def _read_index(file: Path) -> bytes:
    """Return an index, or nothing if git tracks nothing yet. Raises ValueError for a format that is not known."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return b""
    if not stat.S_ISREG(status.st_mode) or not _HEADER_BYTES <= status.st_size <= _MAX_INDEX_BYTES:
        raise ValueError("it is not an index")
    data = file.read_bytes()
    if data[:4] != b"DIRC" or _number(data, 4) not in _VERSIONS:
        raise ValueError("its format is not known")
    return data


def _mentions(data: bytes, names: re.Pattern[bytes]) -> bool:
    """Tell whether an index may have a path that `names` occurs in; paths of version 4 are not stored whole."""
    if not data:
        return False
    return _number(data, 4) == _COMPRESSED or bool(_SPLIT_INDEX.search(data) or names.search(data))


def _read_entries(data: bytes, digest_bytes: int) -> Iterator[TrackedFile]:
    """Yield the entries of an index. Raises ValueError or IndexError if it is damaged, or another file has the rest."""
    version, count, at, path = _number(data, 4), _number(data, 8), _HEADER_BYTES, b""
    for _ in range(count):
        start = at
        mode = _number(data, start + _MODE_OFFSET)
        at += _STAT_BYTES + digest_bytes
        extended = int.from_bytes(data[at : at + 2]) & _EXTENDED_FLAG
        at += 4 if extended else 2
        if (
            version == _COMPRESSED
        ):  # a path begins with that of the entry before, without its last bytes
            dropped, at = _read_varint(data, at)
            path = path[: len(path) - dropped]
        else:
            path = b""
        end = data.index(b"\0", at)
        path += data[at:end]
        # Elsewhere, one to eight zeros fill an entry up to a multiple of eight bytes.
        at = end + 1 if version == _COMPRESSED else start + (end - start + 8) // 8 * 8
        yield TrackedFile(os.fsdecode(path), stat.S_ISLNK(mode))
    if data[at : at + 4] == b"link":
        raise ValueError("it is split: another file has more entries")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in the variable width of pack files, and where it ends."""
    byte = data[at]
    value = byte & 127
    while byte & 128:
        at += 1
        byte = data[at]
        value = (value + 1 << 7) | (byte & 127)
    return value, at + 1


def _number(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise ValueError("the index ends early")
    return int.from_bytes(data[at : at + 4])


def _read_start(file: Path) -> bytes:
    """Return the first bytes of a small file; none if it cannot be read."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return b""
        with file.open("rb") as content:
            return content.read(_MAX_TEXT_BYTES)
    except OSError:
        return b""
