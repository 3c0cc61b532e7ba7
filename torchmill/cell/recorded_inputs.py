"""What ninja recorded of a tree's objects: the files that were read for each, and when."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torchmill.cell import machine_inputs
from torchmill.cell.folders import BuildTree
from torchmill.host.tree_users import TreeUser

# Objects, each with all files that were read for it, as absolute paths.
RecordedInputs = Sequence[tuple[str, Sequence[str]]]
OBJECTS = (".o", ".obj")
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
    """Return the objects for which a file that matches was read."""
    files = {file for _, inputs in recorded for file in inputs}
    matching = {file for file in files if matches(file)}
    return [output for output, inputs in recorded if not matching.isdisjoint(inputs)]


def inputs_newer_than_objects(recorded: RecordedInputs, matches: Callable[[str], bool]) -> set[str]:
    """Return those of the matching files that changed after an object read them.

    A package manager sets the date of a file (mtime), but nobody can set when it was written
    (ctime).
    """
    newer: set[str] = set()
    written_at: dict[str, int] = {}  # nanoseconds; 0 if the file is gone, or does not match
    for output, inputs in recorded:
        compiled_at = _file_times(output)[0]
        for file in inputs:
            if file not in written_at:
                written_at[file] = _file_times(file)[1] if matches(file) else 0
            if written_at[file] > compiled_at:
                newer.add(file)
    return newer


def find_foreign_object(recorded: RecordedInputs, user: TreeUser) -> tuple[str, str] | None:
    """Return an object and the Python.h of another interpreter that was read for it; None without."""
    for output, inputs in recorded:
        for file in inputs:
            folder, name = os.path.split(file)
            if name == "Python.h" and os.path.realpath(folder) not in user.headers:
                return output, file
    return None


def has_future_objects(tree: BuildTree) -> bool:
    """Tell whether something was compiled later than now: the clock was set back.

    ninja goes by the dates of files.
    """
    # A new file is dated by the disk, whose clock may be ahead of ours.
    with tempfile.TemporaryFile(dir=tree.folder) as fresh:
        disk_time = os.fstat(fresh.fileno()).st_mtime
    now = max(time.time(), disk_time) + CLOCK_SKEW_SECONDS
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
    """Return a file's date, which anybody may set, and when it was written, in nanoseconds."""
    with contextlib.suppress(OSError):
        status = os.stat(path)  # noqa: PTH116 - for ten thousands of files
        return status.st_mtime_ns, status.st_ctime_ns
    return 0, 0
