"""What ninja recorded of a tree's objects: the files that were read for each, and when.

ninja keeps the record in `.ninja_deps` beside each build.ninja, as it learned it from the
compilers.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torchmill.cell import machine_inputs
from torchmill.cell.folders import BuildTree
from torchmill.core.deletion import read_disk_clock
from torchmill.host.tree_users import TreeUser

# Objects, each with all files that were read for it, as absolute paths.
RecordedInputs = Sequence[tuple[str, Sequence[str]]]
OBJECTS = (".o", ".obj")  # endings of their names
CLOCK_SKEW_SECONDS = 2.0  # that a file system's clock may be ahead of ours


def read_recorded_inputs(source: Path) -> RecordedInputs | None:
    """Return the files that were read for each existing object that ninja compiled below a folder.

    None if ninja compiled nothing in the folder, or its log cannot be read.
    """
    logs = list(files_below(source, lambda name: name == ".ninja_deps"))
    if not logs:
        return None
    recorded: list[tuple[str, list[str]]] = []
    try:
        for log in logs:
            recorded += machine_inputs.outputs_with_inputs(log)
    except (OSError, ValueError):
        return None
    return recorded


def objects_reading(recorded: RecordedInputs, matches: Callable[[str], bool]) -> list[str]:
    """Return the objects for which at least one file was read that `matches` accepts."""
    files: set[str] = set()
    for _, inputs in recorded:
        files.update(inputs)
    # Each file is tested once, although thousands of objects read it.
    matching = {file for file in files if matches(file)}
    return [output for output, inputs in recorded if not matching.isdisjoint(inputs)]


def inputs_newer_than_objects(recorded: RecordedInputs, matches: Callable[[str], bool]) -> set[str]:
    """Return the files that `matches` accepts and that changed after an object read them.

    A package manager sets the date of a file (mtime), but nobody can set the time at which the
    kernel saw it change (ctime).
    """
    newer: set[str] = set()
    written_at: dict[str, int] = {}  # nanoseconds; 0 if the file is gone, or does not match
    for output, inputs in recorded:
        compiled_at, _ = _file_times(output)
        for file in inputs:
            if file not in written_at:
                written_at[file] = 0
                if matches(file):
                    _, written_at[file] = _file_times(file)
            if written_at[file] > compiled_at:
                newer.add(file)
    return newer


def find_foreign_object(recorded: RecordedInputs, user: TreeUser) -> tuple[str, str] | None:
    """Return an object that read the Python.h of another interpreter than `user`, and that header.

    None if there is no such object.
    """
    for output, inputs in recorded:
        for file in inputs:
            folder, name = os.path.split(file)
            if name == "Python.h" and os.path.realpath(folder) not in user.headers:
                return output, file
    return None


def has_future_objects(tree: BuildTree) -> bool:
    """Tell whether something was compiled later than now, because the clock was set back.

    ninja goes by the dates of files, and would take such objects for newer than any edit.
    """
    # The clock of the disk dates a new file, and it may be ahead of ours.
    now = max(time.time(), read_disk_clock(tree.folder)) + CLOCK_SKEW_SECONDS
    endings = (*OBJECTS, ".so", ".a", ".dylib")
    compiled = files_below(tree.build, lambda name: name.endswith(endings))
    return any(path.lstat().st_mtime > now for path in compiled)


def files_below(folder: Path, matches: Callable[[str], bool]) -> Iterator[Path]:
    """Yield the files below a folder whose names match; links to folders are not followed."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if matches(name):
                yield Path(parent, name)


def _file_times(path: str) -> tuple[int, int]:
    """Return a file's date, which anybody may set, and the time of its last change, in nanoseconds.

    Both are 0 if there is no such file.
    """
    with contextlib.suppress(OSError):
        status = os.stat(path)  # noqa: PTH116 - for ten thousands of files
        return status.st_mtime_ns, status.st_ctime_ns
    return 0, 0
