"""How much disk space a build has and will need, before it starts.

A tree holds the source and everything that is compiled in it. Its kit are the tools of the build
that all interpreters share, such as CMake.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torchmill.cell.folders import BuildFolders, BuildTree, find_shared_trees
from torchmill.config.facts import Facts
from torchmill.core.errors import SourceError
from torchmill.core.locks import list_contents
from torchmill.core.paths import Layout
from torchmill.core.system_errors import free_files, nearest_existing
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import read_record
from torchmill.host import disk_usage
from torchmill.host.host import DiskSpace, Host
from torchmill.host.own_runs import read_own_runs

# Characters in a tree's path that CMake 4.4, a linker or PATH would misread. PATH has its own
# separator. setuptools takes braces for a variable in the paths of `install`
# (distutils.util.subst_vars). The last range stands for bytes that are not UTF-8, the encoding of a
# build's scripts.
_MISREAD = re.compile(rf'[|\n"$;\\\[\],{{}}{os.pathsep}\udc80-\udcff]')


def with_disk_space(
    host: Host, facts: Facts, layout: Layout, folders: BuildFolders, source: Source | None
) -> Host:
    """Return a copy of `host` to which a build's disks and earlier measurements are added."""
    disks = disk_spaces(folders, layout.cache, source)
    runs = read_own_runs(facts, layout.dist)
    return replace(host, resources=replace(host.resources, disks=disks), runs=runs)


def disk_spaces(folders: BuildFolders, cache: Path, source: Source | None) -> tuple[DiskSpace, ...]:
    """Return the disks that a build writes to, with the sizes of the parts that exist already.

    `cache` is the folder of the compiler cache. Without `source` it is not fetched yet.
    """
    # The parts are those of `storage_needs` in plan/storage.py.
    parts = {
        # The outputs count as a part of the tree. Both folders are in the folder of all trees.
        "tree": (folders.tree, _size(_without_kit(folders))),
        "kit": (folders.tree, _size([BuildTree(folders.tree).kit])),
        "environment": (folders.environment, _size([folders.environment])),
        # Nothing of these two counts as present: an earlier trial is deleted before the next one,
        # and the estimate is of the bytes by which the cache grows.
        "trial": (folders.outputs, 0),
        "cache": (cache, 0),
    }
    # Each subvolume of btrfs has a number of its own. Parts on several subvolumes of one disk are
    # then compared with the same free space one by one.
    places: dict[int, Path] = {}  # number of a device -> the first folder that is on it
    present: dict[int, dict[str, int]] = {}  # number of a device -> bytes of each part
    for part, (folder, size) in parts.items():
        existing = nearest_existing(folder)
        device = existing.stat().st_dev
        places.setdefault(device, existing)
        present.setdefault(device, {})[part] = size
    # The copy of a source takes as many inodes as the source has files.
    source_files = 0
    if source is not None and not BuildTree(folders.tree).source.is_dir():
        source_files = _count_files(source)
    misread_characters = "".join(_MISREAD.findall(folders.tree.as_posix()))
    disks = []
    for device, place in places.items():
        holds_tree = "tree" in present[device]
        disk = DiskSpace(
            folder=str(place),
            free=shutil.disk_usage(place).free,
            present_bytes=present[device],
            free_inodes=free_files(place),
            source_files=source_files if holds_tree else 0,
            noexec=_has_flag(place, "ST_NOEXEC"),
            misread_characters=misread_characters if holds_tree else "",
            read_only=_has_flag(place, "ST_RDONLY"),
        )
        disks.append(disk)
    return tuple(disks)


def written_bytes(folders: BuildFolders) -> dict[str, int]:
    """Return the bytes that a finished build has written, by part.

    The manifest has them, and the needs of later builds are estimated by them. The kit is left out,
    because the sizes of requirements are known from the facts. If the tree and the cell's outputs
    are one folder, "tree" has the bytes of both.
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
    """Return the folder of the tree that a build of a cell probably goes on in.

    The key of the tree is not known yet, so this is the cell's own tree, or the newest one of the
    cells of its `family`. It need not exist.
    """
    own_tree = layout.tree(tag, identifier)
    prepared = []
    for folder in (own_tree, *find_shared_trees(layout.trees / tag, family)):
        if BuildTree(folder).source.is_dir():
            prepared.append(folder)
    return max(prepared, key=lambda folder: folder.stat().st_mtime, default=own_tree)


def _without_kit(folders: BuildFolders) -> list[Path]:
    """Return the contents of a tree without its kit, and of the folder of a cell's outputs."""
    kit = BuildTree(folders.tree).kit
    paths = []
    # The two are one folder if no other cell shares the tree.
    for folder in dict.fromkeys((folders.tree, folders.outputs)):
        if folder.is_dir():
            paths += [path for path in list_contents(folder) if path != kit]
    return paths


def _has_flag(folder: Path, flag: str) -> bool:
    """Tell whether a disk is mounted with a flag: "ST_NOEXEC", "ST_RDONLY".

    False on Windows, and for ST_NOEXEC on macOS, where Python does not have it.
    """
    if not hasattr(os, "statvfs"):
        return False
    return bool(os.statvfs(folder).f_flag & getattr(os, flag, 0))


def _size(paths: Iterable[Path]) -> int:
    """Return the bytes on disk of files and folders."""
    return disk_usage.measure_paths(paths).size


def _count_files(source: Source) -> int:
    """Return the number of files in a source, as `invoke fetch` recorded it; 0 if unknown."""
    with contextlib.suppress(SourceError):
        record = read_record(source.path.parent)
        if record:
            return record.fingerprint.files
    return 0
