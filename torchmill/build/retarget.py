"""Retarget a shared tree from one interpreter to another.

Delete what the last one left that would be wrong to keep.

CMake remembers the interpreter that it found, and ninja compiles nothing again because another one is
meant, or because a header is another one than it was, with an older date. So every object that read such a
file is deleted, and CMake's memory with it.
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
from torchmill.host import environments
from torchmill.host.environments import TreeUser

RecordedInputs = Sequence[tuple[str, Sequence[str]]]  # an object, and all that was read for it

OBJECTS = (".o", ".obj")
PYTHONS_OWN = ("/Python.h", "/pyconfig.h")  # who reads these depends on Python, wherever they lie
SKEW = 2.0  # seconds that a file system's clock may be ahead of ours
# Made by setuptools, scikit-build-core and CMake for one interpreter, at places that all interpreters use.
_MADE_FOR_ONE = (
    *("build/lib.*", "build/temp.*", "build/bdist.*", "*.egg-info", "build/.skbuild-info.json"),
    "*/lib/python3.*",
)
_SOABI = re.compile(r"\.(cpython|pypy|graalpy)-?\d+|\.cp\d+t?-")


def read_last_user(tree: BuildTree) -> TreeUser | None:
    """Return who used a tree last; None where nobody did, or that was not written down."""
    try:
        return environments.parse_tree_user(
            tree.interpreter_file.read_text(encoding="utf-8", errors="replace")
        )
    except OSError:
        return None


def claim_tree(tree: BuildTree, user: TreeUser, venv: Path) -> None:
    """Make a tree in which nothing depends on an interpreter the user's, whose environment `venv` is."""
    fresh = tree.env.with_name(f"{tree.env.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(venv)
    fresh.replace(tree.env)
    write_atomically(tree.interpreter_file, user.to_json())


def retarget_tree(tree: BuildTree, to: TreeUser, venv: Path) -> int | None:
    """Make a tree the new user's, whose environment `venv` is; return how many objects had to go.

    None: it cannot be known what depends on the former user, and the tree must be made anew. It may be
    interrupted at any time: until all is done the tree is nobody's, and the next one begins again.
    """
    former = read_last_user(tree)
    if former is None:
        return None
    if former.identity == to.identity and tree.env.is_symlink() and tree.env.readlink() == venv:
        return 0
    write_atomically(tree.interpreter_file, replace(former, identity="").to_json())
    known = read_recorded_inputs(tree.source)
    if known is None and _has_objects(tree.source):
        return None
    own = tuple(f"{folder}/" for folder in former.folders)
    stale = objects_that_read(known or (), lambda file: file.startswith(own) or file.endswith(PYTHONS_OWN))
    gone = _forget(tree, stale)
    for path in _files(tree.source, lambda name: _SOABI.search(name) is not None):
        path.unlink()
    claim_tree(tree, to, venv)
    return gone


def delete_outdated_objects(tree: BuildTree, changed: Collection[str]) -> int | None:
    """Delete what read files that changed since; return how many objects it was.

    None: not only compilers whose reading is known read them (a library was linked, make or FindCUDA
    compiled something), and the tree must be made anew.
    """
    known = read_recorded_inputs(tree.source) or ()
    if not set(changed) <= {file for _, files in known for file in files} or _unknown(tree, known):
        return None
    return _forget(tree, objects_that_read(known, set(changed).__contains__))


def _forget(tree: BuildTree, objects: Collection[str]) -> int:
    """Delete objects, what was made of them, and what CMake remembers; return how many objects there were."""
    for one in objects:
        Path(one).unlink()
    for path in [one for pattern in _MADE_FOR_ONE for one in tree.source.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tree.build / "CMakeCache.txt").unlink(missing_ok=True)
    # Whatever the clock says, ninja shall take it for older than what CMake remembers next.
    if (manifest := tree.build / "build.ninja").exists():
        os.utime(manifest, (1, 1))
    return len(objects)


def _unknown(tree: BuildTree, known: RecordedInputs) -> bool:
    """Tell whether there are objects of which nobody wrote down what they read, beside setuptools' own."""
    told, setuptools = {output for output, _ in known}, f"{tree.build / 'temp.'}"
    objects = map(str, _files(tree.source, lambda name: name.endswith(OBJECTS)))
    return any(path not in told for path in objects if not path.startswith(setuptools))


def read_recorded_inputs(source: Path) -> RecordedInputs | None:
    """Return what was read for each object that ninja compiled below a folder, all as absolute paths.

    Of what is not there any more nothing is said. None: ninja compiled nothing in the folder, or what it
    wrote down cannot be read.
    """
    logs = list(_files(source, lambda name: name == ".ninja_deps"))
    try:
        return [one for log in logs for one in _absolute(log)] if logs else None
    except (OSError, ValueError):
        return None


def _absolute(log: Path) -> Iterator[tuple[str, list[str]]]:
    known: dict[str, str] = {}  # a header is named once for each object that read it

    def absolute(path: str) -> str:
        if path not in known:
            known[path] = os.path.normpath(os.path.join(log.parent, path))  # noqa: PTH118 (thousands)
        return known[path]

    for output, read in ninja.read_dependencies(log).items():
        if os.path.exists(absolute(output)):  # noqa: PTH110 (thousands)
            yield absolute(output), [absolute(path) for path in read]


def objects_that_read(known: RecordedInputs, meant: Callable[[str], bool]) -> list[str]:
    """Return the objects for which a file that is meant was read."""
    files = {file for _, read in known for file in read}
    marked = {file for file in files if meant(file)}
    return [output for output, read in known if not marked.isdisjoint(read)]


def inputs_newer_than_objects(known: RecordedInputs, meant: Callable[[str], bool]) -> set[str]:
    """Return those files among the ones that are meant that changed after an object read them.

    Whatever date a package manager gives a file, when it wrote it cannot be given.
    """
    found = set[str]()
    written: dict[str, int] = {}  # when each file was, in nanoseconds; 0 where it is gone, or not meant
    for output, read in known:
        compiled = _times(output)[0]
        for file in read:
            if file not in written:
                written[file] = _times(file)[1] if meant(file) else 0
            if written[file] > compiled:
                found.add(file)
    return found


def _times(path: str) -> tuple[int, int]:
    """Return when a file says that it was written, and when it was."""
    try:
        seen = os.stat(path)  # noqa: PTH116 (thousands)
    except OSError:
        return 0, 0
    return seen.st_mtime_ns, seen.st_ctime_ns


def find_foreign_object(known: RecordedInputs, user: TreeUser) -> tuple[str, str] | None:
    """Return an object, and the Python.h of another interpreter that was read for it; None: there is none."""
    for output, read in known:
        for file in read:
            folder, name = os.path.split(file)
            if name == "Python.h" and os.path.realpath(folder) not in user.headers:
                return output, file
    return None


def has_future_objects(tree: BuildTree) -> bool:
    """Tell whether something was compiled later than now: the clock went back, and ninja goes by it."""
    now = time.time() + SKEW
    compiled = _files(tree.build, lambda name: name.endswith((*OBJECTS, ".so", ".a", ".dylib")))
    return any(path.lstat().st_mtime > now for path in compiled)


def _files(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (Path(where, name) for name in names if wanted(name))


def _has_objects(source: Path) -> bool:
    return any(_files(source, lambda name: name.endswith(OBJECTS)))
