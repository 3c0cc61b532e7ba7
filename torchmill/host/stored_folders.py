"""Folders that are made once, stored, and copied from then on."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.lenient_paths import read_text
from torchmill.core.stat_cache import digest_data

# Names in a stored folder: the folder that is copied, and a file with the digest of its files,
# which is written once they are complete.
_MADE = "made"
_WHOLE = "whole"


def copy_stored(
    stored: Path, target: Path, make: Callable[[Path], object], copy: Callable[[Path, Path], object]
) -> None:
    """Copy a stored folder to `target`; if it is missing or incomplete, make it first.

    `make` makes the contents in a folder, `copy` copies them from one folder to another. If nothing
    can be stored, or another process removes the stored folder meanwhile, `target` is deleted, and
    the contents are made in it. So the store makes builds faster, but no build fails because of it.
    """
    # Whatever goes wrong with the store, there is the other way below.
    with contextlib.suppress(OSError):
        if not _is_whole(stored):
            shutil.rmtree(stored, ignore_errors=True)
            _store(stored, make)
        copy(stored / _MADE, target)
        if _is_whole(stored):
            return
    shutil.rmtree(target, ignore_errors=True)
    make(target)


def _store(stored: Path, make: Callable[[Path], object]) -> None:
    """Make a stored folder; it appears by a rename, once it is complete."""
    with fresh_path(stored) as fresh:
        contents = fresh / _MADE
        make(contents)
        with contextlib.suppress(OSError):  # another build was quicker
            (fresh / _WHOLE).write_text(_digest_files(contents), encoding="utf-8")
            fresh.rename(stored)


def _is_whole(stored: Path) -> bool:
    """Tell whether a stored folder is as it was made."""
    return read_text(stored / _WHOLE) == _digest_files(stored / _MADE)


def _digest_files(folder: Path) -> str:
    """Return a digest of the names, sizes and times of all files.

    Hard links to these files, which copies may have, change none of them.
    """
    paths: list[str] = []
    for home, _, names in os.walk(folder):
        paths.extend(f"{home}{os.sep}{name}" for name in names)
    files: list[tuple[str, int, int]] = []
    for path in sorted(paths):
        status = os.lstat(path)
        files.append((os.path.relpath(path, folder), status.st_size, status.st_mtime_ns))
    return digest_data(files)
