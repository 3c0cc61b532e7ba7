"""Hand a tree from one interpreter to another: delete what depends on the former, keep the rest.

The user of a tree is the interpreter, with its packages, that compiled in it last. A file of the
tree names it. ninja recorded for each object the files that were read for it (`recorded_inputs`).
"""

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

# An object that read one of these depends on Python, in whichever folder the header lies.
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
_SETUPTOOLS_OBJECTS = "temp."  # the beginning of their folder's name in build/


def claim_tree(tree: BuildTree, user: TreeUser, venv: Path) -> None:
    """Record an interpreter as the user of a tree in which nothing depends on another one.

    `venv` is its environment, to which the tree gets a link.
    """
    # The rename replaces the link to the former environment.
    fresh = tree.env.with_name(f"{tree.env.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(venv)
    fresh.replace(tree.env)
    write_atomically(tree.interpreter_file, user.to_json())


def retarget_tree(tree: BuildTree, user: TreeUser, venv: Path) -> int | None:
    """Make an interpreter the user of a tree; return the number of objects that were deleted.

    0 if it is the user already. None if there is no record of the former user, or of the objects
    that depend on it: then the tree must be made anew. If this is interrupted, the next run does it
    again.

    Objects of which ninja has no record stay if it has one of others. make compiles third-party
    libraries (NCCL), and FindCUDA the kernels of torch up to 1.13: both are for C++ programs, too,
    and read no header of Python.
    """
    former = read_tree_user(tree.interpreter_file)
    if former is None:
        return None
    if former.identity == user.identity and tree.env.is_symlink() and tree.env.readlink() == venv:
        return 0
    # Until all is done the tree has a user without identity, which differs from every interpreter.
    write_atomically(tree.interpreter_file, replace(former, identity="").to_json())
    recorded = read_recorded_inputs(tree.source)
    if recorded is None:
        if any(files_below(tree.source, lambda name: name.endswith(OBJECTS))):
            return None
        recorded = ()  # nothing is compiled yet
    former_folders = tuple(f"{folder}/" for folder in former.folders)

    def depends_on_former(file: str) -> bool:
        return file.startswith(former_folders) or file.endswith(PYTHON_HEADERS)

    stale = objects_reading(recorded, depends_on_former)
    _delete_objects(tree, stale)
    delete_paths(files_below(tree.source, lambda name: _NAMES_INTERPRETER.search(name) is not None))
    claim_tree(tree, user, venv)
    return len(stale)


def delete_outdated_objects(tree: BuildTree, changed: Collection[str]) -> int | None:
    """Delete the objects that read a file of `changed`; return the number of objects.

    Everything that setuptools made for one interpreter, and CMake's cache, are deleted, too. None
    if something of which ninja has no record may have read such a file: a link reads libraries, and
    make or FindCUDA may have compiled objects. Then the tree must be made anew.
    """
    recorded = read_recorded_inputs(tree.source) or ()
    outputs = {output for output, _ in recorded}
    # Objects of setuptools need no record, because `_delete_objects` deletes them in any case.
    setuptools_folder = str(tree.build / _SETUPTOOLS_OBJECTS)
    for path in files_below(tree.source, lambda name: name.endswith(OBJECTS)):
        if str(path) not in outputs and not str(path).startswith(setuptools_folder):
            return None
    all_inputs: set[str] = set()
    for _, inputs in recorded:
        all_inputs.update(inputs)
    if not all_inputs.issuperset(changed):
        return None  # a link read one of the files: ninja records only what compilers read
    changed_files = set(changed)
    stale = objects_reading(recorded, lambda file: file in changed_files)
    _delete_objects(tree, stale)
    return len(stale)


def delete_matches(tree: BuildTree, patterns: Iterable[str]) -> None:
    """Delete everything in a tree's source that matches one of several globs."""
    matches: list[Path] = []
    for pattern in patterns:
        matches.extend(tree.source.glob(pattern))
    delete_paths(matches)


def _delete_objects(tree: BuildTree, objects: Collection[str]) -> None:
    """Delete objects, everything that setuptools made of them, and CMake's cache.

    CMake's cache has the paths of the interpreter that CMake found in its first run.
    """
    delete_paths(Path(path) for path in objects)
    delete_matches(tree, _MADE_FOR_ONE_INTERPRETER)
    (tree.build / "CMakeCache.txt").unlink(missing_ok=True)
    # ninja compares the dates of files. With this date, build.ninja is older than whatever CMake
    # writes next, even after the clock was set back. Not 0, ninja's mark of a missing file.
    ninja_file = tree.build / "build.ninja"
    if ninja_file.exists():
        os.utime(ninja_file, (1, 1))
