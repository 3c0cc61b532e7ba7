"""The first stage of a cell: compile the raw wheel in a prepared tree, and record how."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from torchmill.cell import added_files, machine_inputs, prepare, source_edits
from torchmill.cell.compile import compile_wheel
from torchmill.cell.context import BuildContext
from torchmill.cell.folders import BuildTree, find_shared_trees
from torchmill.cell.progress_line import ProgressLine
from torchmill.cell.session_environment import provide_requirements
from torchmill.cell.up_to_date import StageLog, StageRecord, installed_inputs, stage_inputs
from torchmill.core import locks
from torchmill.core.deletion import delete_paths, move_out_of_sight
from torchmill.core.errors import BuildError, BusyError
from torchmill.core.locks import hold_lock_files, list_contents
from torchmill.core.process import capture
from torchmill.core.units import name_few
from torchmill.host import environments, shared_tools, tree_users
from torchmill.host.disk_usage import newest_change
from torchmill.host.environments import Install
from torchmill.wheel import statement

# Trees of one family that stay. With two, a user who tries a switch and then goes back to the
# former setting finds the trees of both.
TREES_KEPT = 2


def compile_stage(
    context: BuildContext, stages: StageLog, install: Install, line: ProgressLine
) -> Path:
    """Compile the raw wheel in the cell's tree, record it, and return its file.

    `stages` is the record of the cell's stages, and `install` puts requirements into the session's
    environment. If another cell uses the tree, this waits for it. Raises TorchmillError.
    """
    # The inputs are read first: what somebody changes during the build is out of date afterwards,
    # and the next run sees it.
    inputs = stage_inputs(context, "compile", {})
    python = environments.environment_python(context.venv)
    seconds: dict[str, float] = {}
    with _timed(seconds, "requirements"):
        provide_requirements(context, install)
        user = tree_users.tree_user(context.venv, python, context.environment_key, context.tree.env)
    wait_began = time.monotonic()
    with _hold_tree(context, line):
        waited = round(time.monotonic() - wait_began, 1)
        build_began = time.time()
        with _timed(seconds, "prepare"):
            if context.shares_tree and not context.tree.key_file.exists():
                empty_old_trees(context, line.note)
            prepare.prepare_tree(context, user, install, line.note)
            edits = source_edits.find_edits(context)
            _refuse_edits_under_git_label(context, edits)
            # Edits of files that the source does not have: somebody added them.
            additions = [name for name in edits if not os.path.lexists(context.source.path / name)]
            added_files.begin_build(context.tree, additions)
        with _timed(seconds, "compile"):
            try:
                with prepare.mark_unfinished(context.tree):
                    raw, compile_report = compile_wheel(context, line)
            finally:
                # Recorded after a failure as well, for the run that goes on in this tree.
                files = prepare.record_external_inputs(context, user, build_began)
                source_edits.record_generated_files(context, edits)
            prepare.refuse_foreign_objects(context, user)
    static_libraries = []
    for path in machine_inputs.linked_archives(context.tree.source):
        library = {"source": str(path), "sha256": context.stat_cache.digest(path)}
        static_libraries.append(library)
    report = {
        "builder": statement.describe_builder(os.environ),
        "static": static_libraries,
        "requirements": _installed_requirements(context, python),
        **compile_report,
        "edits": edits,
        "jobs": context.plan.jobs,
        "seconds": seconds,
        # For the tree. It is not one of the build's own steps, which `seconds` sums up.
        "waited": waited,
    }
    # A new environment had no packages when the inputs were read.
    inputs |= installed_inputs(context)
    digest = context.stat_cache.digest(raw) or ""  # "" if somebody removed the wheel meanwhile
    stages.record("compile", StageRecord(inputs, digest, files, report))
    return raw


def empty_old_trees(context: BuildContext, note: Callable[[str], None]) -> None:
    """Empty all but the most recently used trees of the cell's family (its package and variant).

    TREES_KEPT trees stay, this cell's own included. Trees that are in use, or belong to another
    user, are left alone. Every cell of the release is locked during a deletion, because a cell that
    is packing may still use tools from a tree whose lock it has already released.
    """
    own_tree = context.tree.folder
    trees = []
    for folder in find_shared_trees(own_tree.parent, context.tree_family):
        if folder != own_tree and BuildTree(folder).source.is_dir():
            trees.append(folder)
    # Whoever takes a lock writes its holder's file, so the date of that file is the last use.
    trees.sort(key=lambda folder: newest_change([folder / locks.HOLDER_FILE]), reverse=True)
    held_here = {own_tree, context.outputs.folder}
    cell_locks = []
    for lock in own_tree.parent.glob(f"*/{locks.LOCK_FILE}"):
        if lock.parent not in held_here:
            cell_locks.append(lock)
    others_kept = TREES_KEPT - 1  # the cell's own tree is the other one
    for folder in trees[others_kept:]:
        with contextlib.suppress(BusyError, OSError):
            # Under the locks the tree only disappears, by renames: to delete it may take minutes.
            with hold_lock_files(cell_locks):
                hidden = move_out_of_sight(list_contents(folder))
            note(f"emptied {folder}, which was unused for longest")
            delete_paths(hidden)


@contextlib.contextmanager
def _hold_tree(context: BuildContext, line: ProgressLine) -> Iterator[None]:
    """Hold a tree that cells share; a cell's own tree is in its folder, which is held already."""
    if not context.shares_tree:
        yield
        return
    with locks.wait_for_folder(context.tree.folder, context.plan.identifier, line.note):
        yield


@contextlib.contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Put the seconds that a step took into `seconds`, under its name; none if the step failed."""
    start = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - start, 1)


def _refuse_edits_under_git_label(context: BuildContext, edits: Iterable[str]) -> None:
    """Raise BuildError if the wheel's version would name a commit that does not match its files."""
    if edits and context.options.label == "git":
        raise BuildError(
            f"{context.plan.identifier}: there are local edits in {context.tree.source} "
            f"({name_few(sorted(edits))}), and --label git would name the version after a commit "
            "without them: turn them into a patch (`--patch FILE`), or leave out --label git",
            code="edits-under-git-label",
        )


def _installed_requirements(context: BuildContext, python: Path) -> list[str]:
    """Return the packages in the environment and in the tree's kit, "name==version", sorted."""
    argv = [str(python), "-I", "-m", "pip", "list", "--format=freeze"]
    installed = capture(argv, env=environments.pip_variables(os.environ)).split()
    return sorted({*installed, *shared_tools.list_shared_tools(context.tree.kit)})
