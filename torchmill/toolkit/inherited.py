"""The files of a toolkit that is here, placed where they belong in one of ours that completes it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from torchmill.toolkit import conda_layout
from torchmill.toolkit.shape import TARGETS

_FOLDERS = ("bin", "nvvm", "include", "lib64", "lib")
_PROFILING = "extras/CUPTI"
_SAYING = ("version.json", "version.txt")


def files(home: Path, arch: str) -> Iterator[tuple[str, Path]]:
    """Yield where each file of a toolkit goes below CUDA_HOME, and the file: of two for one place the first.

    Of conda's environments only NVIDIA's packages count, of a toolkit for several machines only one's files.
    """
    seen = set()
    for path in _conda(home) if (home / "conda-meta").is_dir() else _walked(home, arch):
        where = path if path in _SAYING else conda_layout.place(path.removeprefix(f"{_PROFILING}/"))
        if where is not None and where not in seen and (home / path).is_file():
            seen.add(where)
            yield where, home / path


def place(home: Path, folder: Path, arch: str) -> None:
    """Put the files of a toolkit into a folder: links to the same contents where that can be, or copies."""
    for where, file in files(home, arch):
        target = folder / where
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink() and len((to := file.readlink()).parts) == 1:
            target.symlink_to(to)
            continue
        try:
            os.link(file.resolve(), target)
        except OSError:  # on another disk, or another user's
            shutil.copy(file, target)


def copied(home: Path, where: Path, arch: str) -> int:
    """Return the bytes that `place` will copy to a folder on the disk of `where`."""
    there = (file.stat() for _, file in files(home, arch) if not file.is_symlink())
    mine = (where.stat().st_dev, os.geteuid())
    return sum(one.st_size for one in there if (one.st_dev, one.st_uid) != mine)


def _walked(home: Path, arch: str) -> Iterator[str]:
    """Yield the paths of a toolkit's files below its folder."""
    target = f"targets/{TARGETS[arch]}"
    heads = [*_FOLDERS, *(f"{base}/{name}" for base in (target, _PROFILING) for name in _FOLDERS)]
    seen: set[Path] = set()
    for head in heads:
        for folder, inside, names in os.walk(home / head, followlinks=True):
            if (real := Path(folder).resolve()) in seen:  # folders of a toolkit lead to each other
                inside.clear()
                continue
            seen.add(real)
            yield from (Path(folder, name).relative_to(home).as_posix() for name in sorted(names))
    yield from _SAYING


def _conda(prefix: Path) -> Iterator[str]:
    """Yield the paths of the files that NVIDIA's packages have put into an environment."""
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        said = json.loads(file.read_text(encoding="utf-8"))
        if conda_layout.taken(said["name"]):
            yield from said["files"]
