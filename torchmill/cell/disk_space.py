"""How much disk space a build has and will need, before it starts."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torchmill.cell.folders import BuildFolders
from torchmill.config.facts import Facts
from torchmill.core.errors import SourceError
from torchmill.core.locks import list_contents
from torchmill.core.paths import Layout
from torchmill.core.system_errors import free_files, nearest_existing
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import read_record
from torchmill.host import disk_usage
from torchmill.host.disk_usage import list_children
from torchmill.host.host import DiskSpace, Host
from torchmill.host.own_runs import read_own_runs

_KIT = "kit"
# Characters in a tree's path that CMake 4.4, linkers and PATH misread, and bytes that are no UTF-8,
# in which scripts are written. setuptools takes braces for a variable in the paths of `install`
# (distutils.util.subst_vars).
_MISREAD = re.compile(rf'[|\n"$;\\\[\],{{}}{os.pathsep}\udc80-\udcff]')


def with_disk_space(
    host: Host, facts: Facts, layout: Layout, folders: BuildFolders, source: Source | None
) -> Host:
    """Return this machine with the disks of a build, and with the builds that it has made before."""
    disks = disk_spaces(folders, layout.cache, source)
    runs = read_own_runs(facts, layout.dist)
    return replace(host, resources=replace(host.resources, disks=disks), runs=runs)


def disk_spaces(folders: BuildFolders, cache: Path, source: Source | None) -> tuple[DiskSpace, ...]:
    """Return the disks that a build writes to, and the size of its parts that exist already."""
    parts = {
        "tree": (folders.tree, _size(_without_kit(folders))),
        "kit": (folders.tree, _size([folders.tree / _KIT])),
        "environment": (folders.environment, _size([folders.environment])),
        "trial": (folders.outputs, 0),
        "cache": (cache, 0),
    }
    places: dict[int, Path] = {}  # by device: the first folder that is on it
    present: dict[int, dict[str, int]] = {}
    for part, (folder, size) in parts.items():
        existing = nearest_existing(folder)
        device = existing.stat().st_dev
        places.setdefault(device, existing)
        present.setdefault(device, {})[part] = size
    is_copied = (folders.tree / "source").is_dir() or source is None
    source_files = 0 if is_copied else _count_files(source)
    disks = []
    for device, place in places.items():
        holds_tree = "tree" in present[device]
        misread = "".join(_MISREAD.findall(folders.tree.as_posix()))
        disk = DiskSpace(
            folder=str(place),
            free=shutil.disk_usage(place).free,
            present=present[device],
            inodes=free_files(place),
            source=source_files if holds_tree else 0,
            noexec=_is_noexec(place),
            misread=misread if holds_tree else "",
        )
        disks.append(disk)
    return tuple(disks)


def written_bytes(folders: BuildFolders) -> dict[str, int]:
    """Return the bytes that a finished build has written, by part.

    The next build is foreseen by them. The kit is left out, because the size of requirements is
    known.
    """
    paths = _without_kit(folders)
    tree = [path for path in paths if path.parent == folders.tree]
    outputs = [path for path in paths if path.parent != folders.tree]
    return {
        "tree": _size(tree),
        "outputs": _size(outputs),
        "environment": _size([folders.environment]),
    }


def newest_tree(layout: Layout, tag: str, family: str, identifier: str) -> Path:
    """Return the tree that a build of a cell may go on in, before its key is known.

    It need not exist.
    """
    own_tree = layout.tree(tag, identifier)
    trees = [own_tree]
    for path in list_children(layout.trees / tag):
        if path.name.startswith(f"{family}-"):
            trees.append(path)
    prepared = [path for path in trees if (path / "source").is_dir()]
    return max(prepared, key=lambda path: path.stat().st_mtime, default=own_tree)


def _without_kit(folders: BuildFolders) -> list[Path]:
    """Return the contents of a tree without its kit, and of the folder of a cell's outputs."""
    paths = []
    for folder in dict.fromkeys((folders.tree, folders.outputs)):
        if folder.is_dir():
            paths += [path for path in list_contents(folder) if path != folders.tree / _KIT]
    return paths


def _is_noexec(folder: Path) -> bool:
    """Tell whether a disk is mounted so that no program on it can run."""
    if not hasattr(os, "statvfs"):
        return False
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))


def _size(paths: Iterable[Path]) -> int:
    return disk_usage.measure_paths(paths).size


def _count_files(source: Source | None) -> int:
    """Return the number of files in a fetched source, as it was counted then; 0 if unknown."""
    if source is None:
        return 0
    with contextlib.suppress(SourceError):
        record = read_record(source.path.parent)
        if record:
            return record.fingerprint.files
    return 0
