"""Retarget a shared tree from one interpreter to another: delete what would be wrong to keep.

CMake remembers the interpreter that it found. ninja recompiles nothing because another one is used, or
because a header was replaced by one with an older date. So every object that read such a file is deleted,
and CMake's cache with it.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchmill.build.tree import BuildTree
from torchmill.core import ninja
from torchmill.core.files import write_atomically
from torchmill.host.environments import TreeUser, read_tree_user

RecordedInputs = Sequence[tuple[str, Sequence[str]]]  # an object, and all files that were read for it

OBJECTS = (".o", ".obj")
PYTHON_HEADERS = ("/Python.h", "/pyconfig.h")  # what reads these depends on Python, wherever they lie
CLOCK_SKEW_SECONDS = 2.0  # that a file system's clock may be ahead of ours
# Made by setuptools, scikit-build-core and CMake for one interpreter, at places that all interpreters use.
_MADE_FOR_ONE = (
    *("build/lib.*", "build/temp.*", "build/bdist.*", "*.egg-info", "build/.skbuild-info.json"),
    "*/lib/python3.*",
)
_SOABI = re.compile(r"\.(cpython|pypy|graalpy)-?\d+|\.cp\d+t?-")


def claim_tree(tree: BuildTree, user: TreeUser, venv: Path) -> None:
    """Make a tree in which nothing depends on an interpreter the user's, whose environment is `venv`."""
    fresh = tree.env.with_name(f"{tree.env.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(venv)
    fresh.replace(tree.env)
    write_atomically(tree.interpreter_file, user.to_json())


def retarget_tree(tree: BuildTree, user: TreeUser, venv: Path) -> int | None:
    """Make a tree the user's, whose environment is `venv`; return how many objects were deleted.

    None: nobody recorded what depends on the former user, and the tree must be made anew. It may be
    interrupted at any time: until all is done the tree is nobody's, and the next run begins again.
    """
    former = read_tree_user(tree.interpreter_file)
    if former is None:
        return None
    if former.identity == user.identity and tree.env.is_symlink() and tree.env.readlink() == venv:
        return 0
    write_atomically(tree.interpreter_file, replace(former, identity="").to_json())
    recorded = read_recorded_inputs(tree.source)
    if recorded is None and any(_files(tree.source, lambda name: name.endswith(OBJECTS))):
        return None
    own = tuple(f"{folder}/" for folder in former.folders)
    stale = _readers(recorded or (), lambda file: file.startswith(own) or file.endswith(PYTHON_HEADERS))
    _forget(tree, stale)
    for path in _files(tree.source, lambda name: _SOABI.search(name) is not None):
        path.unlink()
    claim_tree(tree, user, venv)
    return len(stale)


def delete_outdated_objects(tree: BuildTree, changed: Collection[str]) -> int | None:
    """Delete the objects that read files which changed since; return how many there were.

    None: others than compilers whose inputs are recorded read them (a library was linked, make or FindCUDA
    compiled something), and the tree must be made anew.
    """
    recorded = read_recorded_inputs(tree.source) or ()
    outputs, setuptools = {output for output, _ in recorded}, f"{tree.build / 'temp.'}"
    objects = map(str, _files(tree.source, lambda name: name.endswith(OBJECTS)))
    unrecorded = any(path not in outputs and not path.startswith(setuptools) for path in objects)
    if unrecorded or not set(changed) <= {file for _, files in recorded for file in files}:
        return None
    stale = _readers(recorded, set(changed).__contains__)
    _forget(tree, stale)
    return len(stale)


def _readers(recorded: RecordedInputs, matches: Callable[[str], bool]) -> list[str]:
    """Return the objects for which a file that matches was read."""
    matching = set(filter(matches, {file for _, files in recorded for file in files}))
    return [output for output, files in recorded if not matching.isdisjoint(files)]


def _forget(tree: BuildTree, objects: Collection[str]) -> None:
    """Delete objects, what was made of them, and CMake's cache."""
    for one in objects:
        Path(one).unlink()
    for path in [one for pattern in _MADE_FOR_ONE for one in tree.source.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tree.build / "CMakeCache.txt").unlink(missing_ok=True)
    # Whatever the clock says, ninja shall take it for older than what CMake remembers next.
    if (manifest := tree.build / "build.ninja").exists():
        os.utime(manifest, (1, 1))


def read_recorded_inputs(source: Path) -> RecordedInputs | None:
    """Return what was read for each existing object that ninja compiled below a folder, as absolute paths.

    None: ninja compiled nothing in the folder, or its log cannot be read.
    """
    logs = list(_files(source, lambda name: name == ".ninja_deps"))
    try:
        return [one for log in logs for one in _absolute(log)] if logs else None
    except (OSError, ValueError):
        return None


def _absolute(log: Path) -> Iterator[tuple[str, list[str]]]:
    seen: dict[str, str] = {}  # a header is named once for each object that read it

    def absolute(path: str) -> str:
        if path not in seen:
            seen[path] = os.path.normpath(os.path.join(log.parent, path))  # noqa: PTH118 (thousands)
        return seen[path]

    for output, files in ninja.read_dependencies(log).items():
        if os.path.exists(absolute(output)):  # noqa: PTH110 (thousands)
            yield absolute(output), [absolute(path) for path in files]


def inputs_newer_than_objects(recorded: RecordedInputs, matches: Callable[[str], bool]) -> set[str]:
    """Return those of the matching files that changed after an object read them.

    A package manager sets the date of a file, but nobody can set when it was written.
    """
    newer = set[str]()
    written: dict[str, int] = {}  # when each file was, in nanoseconds; 0 where it is gone, or does not match
    for output, files in recorded:
        compiled = _times(output)[0]
        for file in files:
            if file not in written:
                written[file] = _times(file)[1] if matches(file) else 0
            if written[file] > compiled:
                newer.add(file)
    return newer


def _times(path: str) -> tuple[int, int]:
    """Return the date of a file, which anybody may set, and when it was written, in nanoseconds."""
    try:
        status = os.stat(path)  # noqa: PTH116 (thousands)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ctime_ns


def find_foreign_object(recorded: RecordedInputs, user: TreeUser) -> tuple[str, str] | None:
    """Return an object, and the Python.h of another interpreter that was read for it; None without any."""
    for output, files in recorded:
        for file in files:
            folder, name = os.path.split(file)
            if name == "Python.h" and os.path.realpath(folder) not in user.headers:
                return output, file
    return None


def has_future_objects(tree: BuildTree) -> bool:
    """Tell whether something was compiled later than now: the clock was set back, and ninja goes by it."""
    now = time.time() + CLOCK_SKEW_SECONDS
    compiled = _files(tree.build, lambda name: name.endswith((*OBJECTS, ".so", ".a", ".dylib")))
    return any(path.lstat().st_mtime > now for path in compiled)


def _files(folder: Path, matches: Callable[[str], bool]) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names if matches(name))
