"""Folders that are made once, stored, and copied from then on."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.lenient_paths import read_text
from torchmill.core.stat_cache import digest_data

# In a stored folder: the folder that is copied, and a digest of its files once it was complete.
_MADE = "made"
_WHOLE = "whole"


def copy_stored(
    stored: Path, target: Path, make: Callable[[Path], object], copy: Callable[[Path, Path], object]
) -> None:
    """Copy a stored folder to `target`; one that is missing or incomplete is made first.

    `make` makes the contents in a folder, `copy` copies them from one to another. If nothing can
    be stored, or others remove the stored folder meanwhile, the contents are made in `target`.
    """
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
