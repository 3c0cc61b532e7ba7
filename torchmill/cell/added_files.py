"""Files that somebody put into a prepared tree: they are neither the source's nor a build's.

A build puts files of its own beside the source. So the files that are there when it ends count as
made by it, unless they were there when it began. A record in the tree has both lists: "made" and
"added". A build that was killed leaves only "added", and then no further file counts as added.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from torchmill.cell.folders import BuildTree
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.strict_json import load_object

_BUILD = "build"  # the folder in which CMake, ninja and setuptools work
_LEFT_ALONE = (".git", "__pycache__")  # written by git and by whatever Python looks at the tree


def find_added_files(tree: BuildTree, source: Path) -> list[str]:
    """Return the files that somebody added to a tree of `source`, as paths in it.

    Files that the last build left there are not among them, nor any below build/, .git, __pycache__
    or an .egg-info. A tree in which no build began has none.
    """
    record = load_object(_record_file(tree))
    made = record.get("made")
    if isinstance(made, list):
        return sorted(set(_unfetched_files(tree.source, source)).difference(made))
    # The last build did not end, or there was none.
    added = record.get("added")
    names = added if isinstance(added, list) else []
    return [str(name) for name in names if os.path.lexists(tree.source / str(name))]


def begin_build(tree: BuildTree, added: Iterable[str]) -> None:
    """Record that a build begins, and the files that somebody added before."""
    write_atomically(_record_file(tree), json.dumps({"added": sorted(added)}))


def end_build(tree: BuildTree, source: Path) -> None:
    """Record that a build ended: all other files that are beside the source now count as made by it."""
    added = find_added_files(tree, source)
    made = sorted(set(_unfetched_files(tree.source, source)).difference(added))
    write_atomically(_record_file(tree), json.dumps({"added": added, "made": made}))


def delete_record(tree: BuildTree) -> None:
    """Delete the record of a tree that is made anew."""
    _record_file(tree).unlink(missing_ok=True)


def _record_file(tree: BuildTree) -> Path:
    """Return the file with the record of a tree."""
    return tree.folder / "added"


def _unfetched_files(tree: Path, source: Path) -> Iterator[str]:
    """Yield the files in a tree's source that the fetched `source` lacks, as paths in it."""
    for folder, folders, names in os.walk(tree):
        inner = os.path.relpath(folder, tree)
        folders[:] = [name for name in folders if not _is_left_alone(inner, name)]
        fetched_names = _names(source / inner)
        for name in names:
            if name not in fetched_names:
                # pathlib would be slow for a hundred thousand files.
                yield os.path.normpath(os.path.join(inner, name))  # noqa: PTH118


def _is_left_alone(parent: str, name: str) -> bool:
    """Tell whether a folder in `parent` belongs to programs: nobody puts files into it by hand."""
    if parent == "." and name == _BUILD:
        return True
    return name in _LEFT_ALONE or name.endswith(".egg-info")


def _names(folder: Path) -> Collection[str]:
    """Return the names in a folder; none if there is no such folder."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone
    except OSError:
        return ()
