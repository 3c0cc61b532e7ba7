"""Make a tree ready to compile: make a fresh copy of the source, or use an earlier tree again.

A tree is used again as long as its key file names the same inputs. In such a tree only the objects
that depend on something that changed are deleted, and the build makes them anew. A shared tree
(`BuildContext.shares_tree`) serves all interpreters of a family of cells, one after the other. The
interpreter that a tree served last is its user. To claim a tree is to make an interpreter its user.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping

from torchmill.cell import added_files, machine_inputs
from torchmill.cell.context import BuildContext
from torchmill.cell.environment import build_environment, fill_placeholders
from torchmill.cell.folders import BuildTree, copy_source, find_shared_trees
from torchmill.cell.recorded_inputs import (
    find_foreign_object,
    has_future_objects,
    inputs_newer_than_objects,
    read_recorded_inputs,
)
from torchmill.cell.retarget import (
    claim_tree,
    delete_matches,
    delete_outdated_objects,
    retarget_tree,
)
from torchmill.cell.source_edits import find_differing_sources, find_edits
from torchmill.core import reaper
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import BuildError
from torchmill.core.lenient_paths import is_file, read_text
from torchmill.core.process import CommandError, capture
from torchmill.core.strict_json import load_object
from torchmill.core.units import name_few
from torchmill.fetch.source import fetcher
from torchmill.host.environments import Install
from torchmill.host.own_runs import read_own_runs
from torchmill.host.shared_tools import provide_shared_tools
from torchmill.host.tree_users import TreeUser
from torchmill.plan import estimate_report, input_digests

# setuptools copies files here and links its extensions here. It takes a file that is newer than its
# sources for complete, even if the process was killed while it wrote the file.
_COPIES = ("build/lib", "build/lib.*", "build/bdist.*", "*.egg-info")


def prepare_tree(
    context: BuildContext, user: TreeUser, install: Install, note: Callable[[str], None]
) -> None:
    """Make the cell's tree, whose lock is held, ready for an interpreter.

    `user` is that interpreter with its packages, and `install` puts requirements into the session's
    environment. Raises TorchmillError.
    """
    tree = context.tree
    if context.shares_tree:
        # The tree's kit: CMake, ninja and other tools that the builds of all interpreters use.
        provide_shared_tools(tree.kit, context.plan.tree.kit, install, context.layout.environments)
        inputs_key = context.tree_key
    else:
        inputs_key = f"{context.compile_key} {user.identity}"
    # The path is a part of the key, because CMake remembers where everything lay.
    key = f"{inputs_key} {tree.folder}"
    if read_text(tree.key_file) == key:
        obstacle = _reuse_tree(context, user, note)
        if obstacle is None:
            return
        note(f"recreating {tree.folder}: {obstacle}")
    changes = _changes_since_last_tree(context)
    if changes:
        note(f"a new tree, because of what changed since the last build: {name_few(changes, 3)}")
    note(f"copying the source to {tree.source}")
    own_runs = read_own_runs(context.facts, context.layout.dist)
    duration = estimate_report.expected_duration(context.facts, context.plan, own_runs)
    if duration:
        note(duration)
    added_files.delete_record(tree)
    with fetcher.hold_source(context.layout, context.source):
        copy_source(tree, context.source)
    if context.links_environment:
        # On Windows, no tree is shared, and nothing needs to know the user of a tree.
        claim_tree(tree, user, context.venv)
    _run_preparations(context)
    # What differs now was changed by a patch or a command, and by nobody else.
    write_atomically(tree.patched_file, json.dumps(find_differing_sources(context, {})))
    write_atomically(tree.inputs_file, json.dumps(dict(context.tree_inputs)))
    tree.key_file.write_text(key, encoding="utf-8")  # last: the tree is complete


def record_external_inputs(
    context: BuildContext, user: TreeUser, began: float
) -> Mapping[str, str]:
    """Record in the tree, and return, the files outside of it that a build read, with digests.

    `began` is when the build began, in seconds since 1970. The files of the interpreter `user` are
    returned, but not recorded: if they change, the tree gets another user.
    """
    tree = context.tree
    digests = machine_inputs.read_external_inputs(
        tree.source, [tree.folder, context.venv], context.stat_cache, began
    )
    interpreter_folders = tuple(f"{folder}{os.sep}" for folder in user.folders)
    recorded = {}
    for path, digest in digests.items():
        if not path.startswith(interpreter_folders):
            recorded[path] = digest
    write_atomically(tree.external_inputs_file, json.dumps(recorded))
    return digests


def refuse_foreign_objects(context: BuildContext, user: TreeUser) -> None:
    """Raise BuildError, and abandon the tree, if an object read another interpreter's headers."""
    foreign = find_foreign_object(read_recorded_inputs(context.tree.source) or (), user)
    if foreign is None:
        return
    path, header = foreign
    context.tree.key_file.unlink()  # so that the next run begins with a fresh tree
    raise BuildError(
        f"{context.plan.identifier}: {path} was compiled with {header}, which belongs to "
        "another Python: run the same command again to start with a fresh tree",
        code="foreign-object",
    )


@contextlib.contextmanager
def mark_unfinished(tree: BuildTree) -> Iterator[None]:
    """Mark a tree as unfinished while a build runs in it; the mark stays if the build fails.

    If an earlier build left the mark, what setuptools copied is deleted first.
    """
    if tree.unfinished_file.exists():
        delete_matches(tree, _COPIES)
    tree.unfinished_file.touch()
    yield
    tree.unfinished_file.unlink()  # not after an error, and so outside of a `finally`


def _changes_since_last_tree(context: BuildContext) -> list[str]:
    """Return the names of inputs that changed since the newest earlier tree of the cell.

    [] if there is no earlier tree. A cell that shares its tree had another folder for other inputs.
    """
    folder = context.tree.folder
    folders = [folder]
    if context.shares_tree:
        folders = list(find_shared_trees(folder.parent, context.tree_family))
    records = []
    for tree_folder in folders:
        record = BuildTree(tree_folder).inputs_file
        if is_file(record):
            records.append(record)
    if not records:
        return []
    newest = max(records, key=lambda record: record.stat().st_mtime)
    return input_digests.describe_changed_inputs(load_object(newest), context.tree_inputs)


def _reuse_tree(context: BuildContext, user: TreeUser, note: Callable[[str], None]) -> str | None:
    """Bring a prepared tree up to date for an interpreter: delete objects, restore sources.

    Returns None if that succeeded, or else the reason why the tree has to be made anew.
    """
    tree = context.tree
    if has_future_objects(tree):
        return "object files are dated in the future (was the clock set back?)"
    changed = _changed_inputs(context)
    if changed:
        change = f"{name_few(changed, 1)} changed"
        deleted = delete_outdated_objects(tree, changed) if context.shares_tree else None
        if deleted is None:
            return change
        note(f"{change}: recompiling {deleted} objects")
    obstacle = _restore_missing_sources(context)
    if obstacle is not None:
        return obstacle
    edited = sorted(find_edits(context))
    if edited:
        note(
            f"{name_few(edited, 1)} in {tree.source} has local edits, which every wheel of this "
            "tree will contain: turn them into a patch (`--patch FILE`)"
        )
    if not context.shares_tree:
        note(f"reusing {tree.folder}")
        return None
    deleted = retarget_tree(tree, user, context.venv)
    if deleted is None:
        return "no record of which objects depend on the Python that used it last"
    recompiled = f", recompiling {deleted} objects that depend on Python" if deleted else ""
    note(f"reusing {tree.folder}{recompiled}")
    return None


def _restore_missing_sources(context: BuildContext) -> str | None:
    """Copy source files back that somebody deleted.

    Returns None if all are back. A file that a patch or a build changed cannot be copied from the
    source. If one of those is missing, nothing is copied, and a sentence about it is returned.
    """
    tree = context.tree
    patched = load_object(tree.patched_file)
    differing = find_differing_sources(context, patched)
    missing = sorted(name for name, digest in differing.items() if not digest)
    if any(name in patched for name in missing):
        return f"{name_few(missing, 1)} is gone"
    for name in missing:
        (tree.source / name).parent.mkdir(parents=True, exist_ok=True)
        # copy2 keeps the date, so that nothing is recompiled.
        shutil.copy2(context.source.path / name, tree.source / name)
    return None


def _changed_inputs(context: BuildContext) -> list[str]:
    """Return the files outside of the tree that changed since a build read them."""
    digests = load_object(context.tree.external_inputs_file)
    inner_folders = (f"{context.tree.folder}{os.sep}", f"{context.venv}{os.sep}")
    recorded = read_recorded_inputs(context.tree.source) or ()

    def is_outside_without_digest(file: str) -> bool:
        return file not in digests and not file.startswith(inner_folders)

    changed = set(machine_inputs.find_changed_inputs(digests, context.stat_cache))
    # A build that was killed recorded no digests of the files that it read. Such a file counts as
    # changed if it is newer than an object for which it was read.
    changed.update(inputs_newer_than_objects(recorded, is_outside_without_digest))
    return sorted(changed)


def _run_preparations(context: BuildContext) -> None:
    """Run the commands that a fresh tree needs, patches first. Raises BuildError if one fails."""
    plan = context.plan
    # The mark lets the reaper end the commands if this process is killed.
    variables = build_environment(context, {}) | reaper.mark_of_run()
    # The placeholder ${patches} is the folder of the shipped patches. A patch of the user lies
    # elsewhere, so the whole word of the command is replaced by its path.
    user_patches = {}
    for name, path in plan.tree.user_patches.items():
        user_patches[f"${{patches}}/{name}"] = path
    for step in plan.tree.preparation:
        argv = []
        for word in step.argv:
            argv.append(user_patches.get(word) or fill_placeholders(word, context.placeholders))
        try:
            capture(argv, cwd=context.tree.source, env=variables)
        except CommandError as error:
            raise BuildError(
                f"{plan.identifier}: {step.title} failed: {error}", code="preparation-failed"
            ) from error
