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
# in the name of a tree, by CMake 4.4, linkers and PATH; and bytes that are no UTF-8, in which scripts are written;
# setuptools takes what stands in braces for a variable, in the paths of `install` (distutils.util.subst_vars)
_MISREAD = re.compile(rf'[|\n"$;\\\[\],{{}}{os.pathsep}\udc80-\udcff]')


def with_disk_space(
    host: Host, facts: Facts, layout: Layout, folders: BuildFolders, source: Source | None
) -> Host:
    """Return this machine with the disks of a build, and with the builds that it has made before."""
    rooms, runs = (
        disk_spaces(folders, layout.cache, source),
        read_own_runs(facts, layout.dist),
    )
    return replace(host, resources=replace(host.resources, disks=rooms), runs=runs)


def disk_spaces(folders: BuildFolders, cache: Path, source: Source | None) -> tuple[DiskSpace, ...]:
    """Return the disks that a build writes to, and what of its parts exists already."""
    tree = folders.tree
    parts = {
        "tree": (tree, _size(_without_kit(folders))),
        "kit": (tree, _size([tree / _KIT])),
        "environment": (folders.environment, _size([folders.environment])),
        "trial": (folders.outputs, 0),
        "cache": (cache, 0),
    }
    files = 0 if (tree / "source").is_dir() or source is None else _count_files(source)
    disks: dict[int, tuple[Path, dict[str, int]]] = {}
    for part, (folder, size) in parts.items():
        existing = nearest_existing(folder)
        disks.setdefault(existing.stat().st_dev, (existing, {}))[1][part] = size
    return tuple(
        DiskSpace(
            str(folder),
            shutil.disk_usage(folder).free,
            sizes,
            free_files(folder),
            files if "tree" in sizes else 0,
            hasattr(os, "statvfs")
            and bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)),
            "".join(_MISREAD.findall(tree.as_posix())) if "tree" in sizes else "",
        )
        for folder, sizes in disks.values()
    )


def written_bytes(folders: BuildFolders) -> dict[str, int]:
    """Return the bytes that a finished build has written, by part: by them the next one is foreseen.

    The kit is left out: what requirements take is known.
    """
    both = _without_kit(folders)
    tree = [path for path in both if path.parent == folders.tree]
    outputs = [path for path in both if path.parent != folders.tree]
    return {
        "tree": _size(tree),
        "outputs": _size(outputs),
        "environment": _size([folders.environment]),
    }


def _without_kit(folders: BuildFolders) -> list[Path]:
    """Return what lies in a tree, but for its kit, and in the folder of a cell's outputs."""
    both = (folder for folder in dict.fromkeys((folders.tree, folders.outputs)) if folder.is_dir())
    return [
        path for folder in both for path in list_contents(folder) if path != folders.tree / _KIT
    ]


def newest_tree(layout: Layout, tag: str, family: str, identifier: str) -> Path:
    """Return the tree that a build of a cell may go on in, before its key is known; it need not be there."""
    mine = layout.tree(tag, identifier)
    shared = [
        path for path in list_children(layout.trees / tag) if path.name.startswith(f"{family}-")
    ]
    trees = [path for path in (*shared, mine) if (path / "source").is_dir()]
    return max(trees, key=lambda path: path.stat().st_mtime, default=mine)


def _size(paths: Iterable[Path]) -> int:
    return disk_usage.measure_paths(paths).size


def _count_files(source: Source) -> int:
    """Return how many files a fetched source has, as they were counted then."""
    with contextlib.suppress(SourceError):
        if record := read_record(source.path.parent):
            return record.fingerprint.files
    return 0
