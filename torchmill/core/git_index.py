"""Read which files git tracks, without running git.

git is not run because it starts programs that a repository's settings name, and the repository may
be a stranger's. The index is the file in which git lists the tracked files. Each has an entry with
its stat data, its digest and its path. If an index is split, a second file has most of the entries.
If it is sparse, an entry may stand for all files of a folder.
Formats: https://git-scm.com/docs/index-format and https://git-scm.com/docs/gitrepository-layout.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAX_INDEX_BYTES = 1 << 28  # the index of Chromium, with 400,000 files, has 2 ** 26
_MAX_TEXT_BYTES = 1 << 16  # of a `.git` file, or of git's settings
_HEADER_BYTES = 12  # "DIRC", version, number of entries
_STAT_BYTES = 40  # at the start of an entry, before its digest
_MODE_OFFSET = 24  # of the file's mode, from the start of an entry
_EXTENDED_FLAG = 0x4000  # two more bytes of flags follow
# The extension of a split index begins with its name and its size. The size is below 16 MiB, so the
# first of its four bytes is 0. A path that ends in "link" matches too: the index is then parsed,
# although that was not necessary.
_SPLIT_INDEX = re.compile(rb"link\0")
# The extension of a sparse index has this name and no content, so that its size is 0.
_SPARSE_INDEX = b"sdir\0\0\0\0"
# A setting of `[extensions]`. "sha256" alone might be a part of a URL among the settings.
_SHA256_SETTING = re.compile(rb"\bobjectformat\s*=\s*\"?sha256\b", re.IGNORECASE)
_VERSIONS = (2, 3, 4)
_COMPRESSED = 4  # the version whose paths are compressed
_SHA1_BYTES = 20
_SHA256_BYTES = 32


class TrackedFile(NamedTuple):
    """A file, a link or a submodule that git tracks."""

    path: str  # with slashes, relative to the work tree, or to the folder of `list_tracked`
    is_link: bool


class WorkTree(NamedTuple):
    """A folder that git manages, with its index and its settings."""

    top: Path
    index_file: Path
    settings_file: Path


def find_work_tree(folder: Path) -> WorkTree | None:
    """Return the work tree that a folder lies in, or is; None if git manages no folder above it.

    `folder` is an absolute path. A `.git` that is neither a folder nor names one is passed over.
    """
    for top in (folder, *folder.parents):
        dot_git = top / ".git"
        if dot_git.is_dir():
            return WorkTree(top, dot_git / "index", dot_git / "config")
        if dot_git.is_file():
            # In a submodule, and in a further work tree of a repository (`git worktree`), `.git` is
            # a file that names the git folder. That of a further work tree shares the settings of
            # the repository, and names their folder in `commondir`.
            key, _, name = _read_start(dot_git).partition(b": ")
            if key == b"gitdir" and name:
                git_folder = top / os.fsdecode(name.rstrip(b"\n"))
                common = os.fsdecode(_read_start(git_folder / "commondir").rstrip(b"\n"))
                return WorkTree(top, git_folder / "index", git_folder / common / "config")
    return None


def list_tracked(folder: Path, path_pattern: re.Pattern[bytes]) -> list[TrackedFile] | None:
    """Return the files that git tracks in a folder and in whose path a pattern is found.

    `folder` is an absolute path, to which the paths of the files are relative. The pattern is
    searched for in paths from the top of the work tree, and before that in the bytes of the whole
    index, so that a large one is parsed only if it matches. So it cannot have anchors such as ^.
    The result is also [] if git does not manage the folder. It is None if the index cannot be
    read, is damaged, split or sparse, or has an unknown format.
    """
    tree = find_work_tree(folder)
    if tree is None:
        return []
    try:
        data = _read_index(tree.index_file)
        if not _may_contain(data, path_pattern):
            return []
        is_sha256 = _SHA256_SETTING.search(_read_start(tree.settings_file)) is not None
        digest_bytes = _SHA256_BYTES if is_sha256 else _SHA1_BYTES
        entries = list(_read_entries(data, digest_bytes, path_pattern))
    except (OSError, ValueError, IndexError):
        return None
    prefix = "".join(f"{part}/" for part in folder.relative_to(tree.top).parts)
    files = []
    for entry in entries:
        if entry.path.startswith(prefix):
            files.append(entry._replace(path=entry.path.removeprefix(prefix)))
    # A file with a merge conflict has up to three entries, one for each version.
    return list(dict.fromkeys(files))


def _read_index(file: Path) -> bytes:
    """Return the content of an index; b"" if the file is missing: git tracks nothing yet.

    Raises ValueError if the file is not an index of a known format, OSError if it cannot be read.
    """
    try:
        status = file.stat()
    except FileNotFoundError:
        return b""
    if not stat.S_ISREG(status.st_mode) or not _HEADER_BYTES <= status.st_size <= _MAX_INDEX_BYTES:
        raise ValueError("it is not an index")
    data = file.read_bytes()
    if data[:4] != b"DIRC" or _read_number(data, 4) not in _VERSIONS:
        raise ValueError("its format is not known")
    return data


def _may_contain(data: bytes, path_pattern: re.Pattern[bytes]) -> bool:
    """Tell whether an index may have a path in which `path_pattern` is found."""
    if not data:
        return False
    if _read_number(data, 4) == _COMPRESSED or _SPLIT_INDEX.search(data) or _SPARSE_INDEX in data:
        return True  # not all paths are there in full
    return path_pattern.search(data) is not None


def _read_entries(
    data: bytes, digest_bytes: int, path_pattern: re.Pattern[bytes]
) -> Iterator[TrackedFile]:
    """Yield the entries of an index in whose path a pattern is found.

    The digests of the index have `digest_bytes` bytes each. The paths of the entries are relative
    to the work tree. Raises ValueError or IndexError if the index is damaged, split or sparse; if
    it is split, only after the last entry.
    """
    version = _read_number(data, 4)
    count = _read_number(data, 8)
    position = _HEADER_BYTES
    path = b""
    for _ in range(count):
        start = position
        mode = _read_number(data, start + _MODE_OFFSET)
        if stat.S_ISDIR(mode):
            raise ValueError("it is sparse: the files of some folders are not listed")
        position += _STAT_BYTES + digest_bytes
        is_extended = int.from_bytes(data[position : position + 2]) & _EXTENDED_FLAG
        position += 4 if is_extended else 2
        if version == _COMPRESSED:
            # Instead of a path, the entry has the number of bytes to drop from the end of the
            # path of the entry before it, and the bytes to append.
            drop_count, position = _read_varint(data, position)
            path = path[: len(path) - drop_count]
        else:
            path = b""
        end = data.index(b"\0", position)
        path += data[position:end]
        if version == _COMPRESSED:
            position = end + 1
        else:
            # One to eight zeros follow the path, so that the size is a multiple of eight bytes.
            position = start + (end - start + 8) // 8 * 8
        if path_pattern.search(path):
            yield TrackedFile(os.fsdecode(path), stat.S_ISLNK(mode))
    # Extensions follow the entries. That of a split index comes first.
    if data[position : position + 4] == b"link":
        raise ValueError("it is split: another file has more entries")


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number of variable width at a position, and the position after it.

    The encoding is that of offsets in pack files (https://git-scm.com/docs/gitformat-pack). Raises
    IndexError if the number does not end before the data.
    """
    byte = data[position]
    value = byte & 127
    while byte & 128:
        position += 1
        byte = data[position]
        value = ((value + 1) << 7) | (byte & 127)
    return value, position + 1


def _read_number(data: bytes, position: int) -> int:
    """Return the big-endian number in the four bytes at a position.

    Raises ValueError if the data ends before them.
    """
    if position + 4 > len(data):
        raise ValueError("the index ends early")
    return int.from_bytes(data[position : position + 4])


def _read_start(file: Path) -> bytes:
    """Return the first _MAX_TEXT_BYTES of a regular file; b"" if it is none, or cannot be read."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return b""
        with file.open("rb") as stream:
            return stream.read(_MAX_TEXT_BYTES)
    except OSError:
        return b""
