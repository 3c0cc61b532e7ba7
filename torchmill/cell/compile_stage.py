"""The first stage of a cell: compile the raw wheel in a prepared tree, and record how.

See `torchmill.cell.folders` for what a tree, its kit and a family are.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from torchmill.cell import added_files, crossing, machine_inputs, prepare, source_edits
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

# Trees of one family that are not emptied. With two, a user who tries a switch and then goes back
# to the former setting finds the trees of both.
TREES_KEPT = 2


def compile_stage(
    context: BuildContext, stages: StageLog, install: Install, line: ProgressLine
) -> Path:
    """Compile the raw wheel in the cell's tree, record it, and return its file.

    `stages` is the record of the cell's stages, and `install` puts requirements into the session's
    environment. If another cell uses the tree, this waits for it. Raises TorchmillError.
    """
    # The inputs are read before the build: if somebody changes one of them during it, the record
    # does not match, and the next run compiles again.
    inputs = stage_inputs(context, "compile", {})
    python = environments.environment_python(context.venv)
    seconds: dict[str, float] = {}
    with _timed(seconds, "requirements"):
        provide_requirements(context, install)
        if context.target is not None:
            crossing.provide_target(
                context.plan,
                context.target,
                context.interpreter,
                context.layout.environments,
                line.note,
            )
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
            # Somebody added the files that the fetched source does not have.
            additions = [name for name in edits if not os.path.lexists(context.source.path / name)]
            added_files.begin_build(context.tree, additions)
        with _timed(seconds, "compile"):
            try:
                with prepare.mark_unfinished(context.tree):
                    raw, compile_report = compile_wheel(context, line)
            finally:
                # Recorded after a failure, too: the next run goes on in this tree.
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
        # Until the tree was free: `seconds` has only the steps of the build itself.
        "waited": waited,
    }
    # What is installed is read again: a new environment had no packages before.
    inputs |= installed_inputs(context)
    digest = context.stat_cache.digest(raw) or ""  # "" if somebody removed the wheel meanwhile
    stages.record("compile", StageRecord(inputs, digest, files, report))
    return raw


def empty_old_trees(context: BuildContext, note: Callable[[str], None]) -> None:
    """Empty all but the most recently used trees of the cell's family (its package and variant).

    TREES_KEPT trees stay, this cell's own included. Every other cell and tree of the release is
    locked meanwhile, because a cell that is packing may still use tools from a tree whose lock it
    has already released. So nothing is emptied while one of them is in use, or if one belongs to
    another user. `note` gets a line for each emptied tree.
    """
    own_tree = context.tree.folder
    trees = []
    for folder in find_shared_trees(own_tree.parent, context.tree_family):
        if folder != own_tree and BuildTree(folder).source.is_dir():
            trees.append(folder)
    # A cell that takes a tree writes HOLDER_FILE, so the date of that file is the last use.
    trees.sort(key=lambda folder: newest_change([folder / locks.HOLDER_FILE]), reverse=True)
    held_here = {own_tree, context.outputs.folder}
    cell_locks = []
    for lock in own_tree.parent.glob(f"*/{locks.LOCK_FILE}"):
        if lock.parent not in held_here:
            cell_locks.append(lock)
    others_kept = TREES_KEPT - 1  # the cell's own tree is the other one
    for folder in trees[others_kept:]:
        with contextlib.suppress(BusyError, OSError):
            # Under the locks the contents are only renamed: to delete them may take minutes.
            with hold_lock_files(cell_locks):
                hidden = move_out_of_sight(list_contents(folder))
            note(f"emptied {folder}, which had been unused the longest")
            delete_paths(hidden)


@contextlib.contextmanager
def _hold_tree(context: BuildContext, line: ProgressLine) -> Iterator[None]:
    """Hold the cell's tree during the block, as soon as no other cell does.

    A tree that cells do not share is in the cell's folder, which is held already.
    """
    if not context.shares_tree:
        yield
        return
    with locks.wait_for_folder(context.tree.folder, context.plan.identifier, line.note):
        yield


@contextlib.contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Put the seconds that the block takes into `seconds`, by its step; none if it fails."""
    start = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - start, 1)


def _refuse_edits_under_git_label(context: BuildContext, edits: Collection[str]) -> None:
    """Raise BuildError if the wheel's version would name a commit, although files were edited.

    `edits` are the names of these files.
    """
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
