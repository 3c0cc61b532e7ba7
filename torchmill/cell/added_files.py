"""Files that somebody put into a prepared tree: neither the source has them, nor did a build make them.

Builds put files of their own beside the source, so what is there when a build ends counts as made
by it. A build that was killed leaves no such list, and then only files that were found before count.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from torchmill.cell.folders import BuildTree
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.strict_json import load_object

_BUILD = "build"  # where CMake, ninja and setuptools work
_LEFT_ALONE = (".git", "__pycache__")  # written by git and by whatever Python looks at the tree


def find_added_files(tree: BuildTree, source: Path) -> list[str]:
    """Return the files that were added to a tree of the source since its last build ended."""
    record = load_object(_record_of(tree))
    made, added = record.get("made"), record.get("added")
    if not isinstance(made, list):
        before = added if isinstance(added, list) else []
        return [str(name) for name in before if os.path.lexists(tree.source / str(name))]
    return sorted({*_further_files(tree.source, source)} - {*made})


def begin_build(tree: BuildTree, added: Iterable[str]) -> None:
    """Note that a build begins, which makes files of its own; `added` are those that are not."""
    write_atomically(_record_of(tree), json.dumps({"added": sorted(added)}))


def end_build(tree: BuildTree, source: Path) -> None:
    """Note that a build ended: what it left beside the source is no addition."""
    added = find_added_files(tree, source)
    made = sorted({*_further_files(tree.source, source)} - {*added})
    write_atomically(_record_of(tree), json.dumps({"added": added, "made": made}))


def forget(tree: BuildTree) -> None:
    """Drop what is noted of a tree that is made anew."""
    _record_of(tree).unlink(missing_ok=True)


def _record_of(tree: BuildTree) -> Path:
    return tree.folder / "added"


def _further_files(tree: Path, source: Path) -> Iterator[str]:
    """Yield the files below a tree that the source lacks, as paths in the tree."""
    for folder, folders, names in os.walk(tree):
        place = os.path.relpath(folder, tree)
        folders[:] = [name for name in folders if not _is_left_alone(place, name)]
        there = _names(source / place)
        for name in names:
            if name not in there:
                yield os.path.normpath(os.path.join(place, name))  # noqa: PTH118 - a hundred thousand


def _is_left_alone(place: str, name: str) -> bool:
    if place == "." and name == _BUILD:
        return True
    return name in _LEFT_ALONE or name.endswith(".egg-info")


def _names(folder: Path) -> Collection[str]:
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone
    except OSError:
        return ()
