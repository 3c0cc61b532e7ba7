"""Hand a tree from one interpreter to another: delete what depends on the former, keep the rest."""

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from torchmill.cell.folders import BuildTree
from torchmill.cell.recorded_inputs import (
    OBJECTS,
    files_below,
    objects_reading,
    read_recorded_inputs,
)
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.deletion import delete_paths
from torchmill.host.tree_users import TreeUser, read_tree_user

# Objects that read these depend on Python, wherever the headers lie.
PYTHON_HEADERS = ("/Python.h", "/pyconfig.h")
# Made by setuptools, scikit-build-core and CMake for one interpreter, at paths that all use.
_MADE_FOR_ONE_INTERPRETER = (
    "build/lib.*",
    "build/temp.*",
    "build/bdist.*",
    "*.egg-info",
    "build/.skbuild-info.json",
    "*/lib/python3.*",
)
_NAMES_INTERPRETER = re.compile(r"\.(cpython|pypy|graalpy)-?\d+|\.cp\d+t?-")
_SETUPTOOLS_OBJECTS = "temp."  # begins the folder's name in build/


def claim_tree(tree: BuildTree, user: TreeUser, venv: Path) -> None:
    """Record an interpreter as the user of a tree in which nothing depends on another one.

    `venv` is its environment, to which the tree gets a link.
    """
    fresh = tree.env.with_name(f"{tree.env.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(venv)
    fresh.replace(tree.env)
    write_atomically(tree.interpreter_file, user.to_json())


def retarget_tree(tree: BuildTree, user: TreeUser, venv: Path) -> int | None:
    """Make an interpreter the user of a tree; return the number of objects that were deleted.

    None if nobody recorded which objects depend on the former user: then the tree must be made
    anew. It may be interrupted at any time: the tree has no user until all is done, and the next
    run begins again.
    """
    former = read_tree_user(tree.interpreter_file)
    if former is None:
        return None
    if former.identity == user.identity and tree.env.is_symlink() and tree.env.readlink() == venv:
        return 0
    write_atomically(tree.interpreter_file, replace(former, identity="").to_json())
    recorded = read_recorded_inputs(tree.source)
    if recorded is None:
        if any(files_below(tree.source, lambda name: name.endswith(OBJECTS))):
            return None
        recorded = ()
    former_folders = tuple(f"{folder}/" for folder in former.folders)

    def is_former_users(file: str) -> bool:
        return file.startswith(former_folders) or file.endswith(PYTHON_HEADERS)

    stale = objects_reading(recorded, is_former_users)
    _delete_objects(tree, stale)
    delete_paths(files_below(tree.source, lambda name: _NAMES_INTERPRETER.search(name) is not None))
    claim_tree(tree, user, venv)
    return len(stale)


def delete_outdated_objects(tree: BuildTree, changed: Collection[str]) -> int | None:
    """Delete the objects that read files which changed since; return their number.

    None if something else than recorded compiles may have read them: a library was linked, or make
    or FindCUDA compiled something. Then the tree must be made anew.
    """
    recorded = read_recorded_inputs(tree.source) or ()
    outputs = {output for output, _ in recorded}
    by_setuptools = str(tree.build / _SETUPTOOLS_OBJECTS)
    for path in files_below(tree.source, lambda name: name.endswith(OBJECTS)):
        if str(path) not in outputs and not str(path).startswith(by_setuptools):
            return None
    all_inputs = {file for _, inputs in recorded for file in inputs}
    if not all_inputs.issuperset(changed):
        return None
    changed_files = set(changed)
    stale = objects_reading(recorded, lambda file: file in changed_files)
    _delete_objects(tree, stale)
    return len(stale)


def delete_matches(tree: BuildTree, patterns: Iterable[str]) -> None:
    """Delete everything in a tree's source that matches one of several globs."""
    delete_paths([path for pattern in patterns for path in tree.source.glob(pattern)])


def _delete_objects(tree: BuildTree, objects: Collection[str]) -> None:
    """Delete objects, everything that was made of them, and CMake's cache."""
    delete_paths(Path(path) for path in objects)
    delete_matches(tree, _MADE_FOR_ONE_INTERPRETER)
    (tree.build / "CMakeCache.txt").unlink(missing_ok=True)
    # Whatever the clock says, ninja must take it for older than what CMake writes next.
    manifest = tree.build / "build.ninja"
    if manifest.exists():
        os.utime(manifest, (1, 1))
