"""Merge a project's own facts with the shipped ones: a file replaces the shipped file of its name.

The project's folder may be a clone of a stranger's repository. So only files are taken that have
the name of a shipped file, or lie in a folder for kinds, packages and their wheels, releases or
patches. The merged folder lies in the user's cache, not in the clone.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.errors import ConfigError
from torchmill.core.stat_cache import digest_data

_FOLDERS = ("kinds", "package_wheels", "packages", "releases", "wheel_code")  # of *.toml
_PATCHES = "patches"
_MAX_DEPTH = 4  # of folders in `patches`; files in deeper ones are left out
_MAX_FILE_BYTES = 1 << 24  # the largest shipped file has 2 ** 18
_NAME_DIGITS = 32  # of the digest that names a merged folder


def merge_facts(project: Path, shipped: Path, cache: Path) -> Path | None:
    """Return a folder in `cache` with the shipped facts and a project's own.

    None if the folder `project` has no facts. The merged folder is named by the paths, sizes and
    dates of its originals: if one of them changes, another folder is made, and the old one stays as
    it is. Raises ConfigError for a fact that is not a file or too large, OSError for one that
    cannot be read.
    """
    own_files = dict(_list_facts(project, shipped))
    if not own_files:
        return None
    files = dict(_list_facts(shipped, shipped)) | own_files
    states: list[tuple[str, str, int, int]] = []
    for name, path in sorted(files.items()):
        status = path.stat()
        states.append((name, str(path), status.st_size, status.st_mtime_ns))
    merged = cache / digest_data(states)[:_NAME_DIGITS]
    if not merged.is_dir():
        _copy_facts(files, merged)
    return merged


def _copy_facts(files: Mapping[str, Path], merged: Path) -> None:
    """Make a folder with copies of files, whose names are paths in it.

    It gets its name only when it is complete.
    """
    with fresh_path(merged) as fresh:
        for name, path in files.items():
            target = fresh / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        try:
            fresh.rename(merged)
        except OSError:
            # Another command that began at the same time may have made the folder.
            if not merged.is_dir():
                raise


def _list_facts(folder: Path, shipped: Path) -> Iterator[tuple[str, Path]]:
    """Yield the facts in a folder, by their paths in it; other files are left out.

    At the top of the folder these are the names of shipped files.
    """
    for path in sorted(shipped.glob("*.toml")):
        yield from _find_fact(folder, path.name)
    for inner in _FOLDERS:
        for name in _visible_names(folder / inner):
            if name.endswith(".toml"):
                yield from _find_fact(folder, f"{inner}/{name}")
    yield from _list_patches(folder, _PATCHES, _MAX_DEPTH)


def _list_patches(folder: Path, inner: str, depth: int) -> Iterator[tuple[str, Path]]:
    """Yield the patches in the folder `inner` of a folder of facts; `depth` folders deep, no more.

    Links to folders are not followed.
    """
    for name in _visible_names(folder / inner):
        path = folder / inner / name
        if not path.is_dir():
            yield from _find_fact(folder, f"{inner}/{name}")
        elif depth and not path.is_symlink():
            yield from _list_patches(folder, f"{inner}/{name}", depth - 1)


def _visible_names(folder: Path) -> list[str]:
    """Return the names in a folder that are not hidden; none if there is no such folder."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if not name.startswith("."))


def _find_fact(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of a fact if it exists; nothing if it does not.

    Raises ConfigError if it is not a file, or too large.
    """
    path = folder / name
    # A broken link exists, too. It is refused: to leave it out would hide a mistake.
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
