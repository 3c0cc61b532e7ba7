"""Put a project's own facts beside the shipped ones: a file of its own stands for the shipped file of that name.

The project's folder may be a clone of somebody's repository. So only files that have a place among facts are taken,
and what is made of them lies in the user's cache, not in the clone.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.errors import ConfigError
from torchmill.core.stat_cache import digest_data

_FOLDERS = ("packages", "releases")  # of *.toml
_PATCHES = "patches"
_MAX_FOLDERS = 4  # of a patch, below `patches`
_MAX_FILE_BYTES = 1 << 24  # the largest shipped file has 2 ** 18


def merge_facts(own: Path, shipped: Path, place: Path) -> Path | None:
    """Return a folder in `place` with the shipped facts and a project's own; None if the project has none.

    The folder's name is the digest of what it was made of, and nothing in it is ever changed. Raises ConfigError for
    a fact that is no file or too large, OSError for one that cannot be read.
    """
    added = dict(_list_facts(own, shipped))
    if not added:
        return None
    files = dict(_list_facts(shipped, shipped)) | added
    merged = (
        place
        / digest_data([(name, str(path), *_look(path)) for name, path in sorted(files.items())])[
            :32
        ]
    )
    if not merged.is_dir():
        _copy(files, merged)
    return merged


def _copy(files: Mapping[str, Path], merged: Path) -> None:
    with fresh_path(merged) as fresh:
        for name, path in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, fresh / name)
        try:
            fresh.rename(merged)
        except OSError:
            if not merged.is_dir():  # two commands may begin at a time
                raise


def _list_facts(folder: Path, shipped: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder of facts, by their places in it; what has no place among facts is left out."""
    for path in sorted(shipped.glob("*.toml")):
        yield from _fact(folder, path.name)
    for inner in _FOLDERS:
        for name in _list_names(folder / inner):
            if name.endswith(".toml"):
                yield from _fact(folder, f"{inner}/{name}")
    yield from _list_patches(folder, _PATCHES, _MAX_FOLDERS)


def _list_patches(folder: Path, place: str, depth: int) -> Iterator[tuple[str, Path]]:
    for name in _list_names(folder / place):
        path = folder / place / name
        if not path.is_dir():
            yield from _fact(folder, f"{place}/{name}")
        elif depth and not path.is_symlink():
            yield from _list_patches(folder, f"{place}/{name}", depth - 1)


def _list_names(folder: Path) -> list[str]:
    """Return the names in a folder that are not hidden; none if there is no such folder."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208 - names alone
    except (FileNotFoundError, NotADirectoryError):
        return []


def _fact(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    path = folder / name
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise ConfigError(
            f"{path} is not a file: facts are read from files, remove it", code="fact-not-a-file"
        )
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has more than {_MAX_FILE_BYTES} bytes, too many for facts",
            code="fact-not-a-file",
        )
    yield name, path


def _look(path: Path) -> tuple[int, int]:
    """Return the size (bytes) and the time (nanoseconds) of a file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns
