"""Make a tree ready to compile: a fresh copy, the old one, or that of another interpreter."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping

from torchmill.cell import added_files, machine_inputs
from torchmill.cell.context import BuildContext
from torchmill.cell.environment import build_environment, fill_placeholders
from torchmill.cell.folders import BuildTree, copy_source
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
from torchmill.cell.source_edits import differing_sources, find_edits
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

_KEY_LENGTH = 8  # of a tree's key, in the name of its folder
# setuptools copies and links these, and judges them by their age, even if one is half of a file.
_COPIES = ("build/lib", "build/lib.*", "build/bdist.*", "*.egg-info")


def prepare_tree(
    context: BuildContext, user: TreeUser, install: Install, note: Callable[[str], None]
) -> None:
    """Make the cell's tree, whose lock is held, ready for an interpreter. Raises TorchmillError."""
    tree = context.tree
    if context.shares_tree:
        provide_shared_tools(tree.kit, context.plan.tree.kit, install, context.layout.environments)
        inputs_key = context.tree_key
    else:
        inputs_key = f"{context.compile_key} {user.identity}"
    # With the path, because CMake remembers where everything lay.
    key = f"{inputs_key} {tree.folder}"
    if read_text(tree.key_file) == key:
        unfit = _reuse_tree(context, user, note)
        if unfit is None:
            return
        note(f"recreating {tree.folder}: {unfit}")
    changes = _changes_since_last_tree(context)
    if changes:
        note(f"a new tree, because of what changed since the last build: {name_few(changes, 3)}")
    note(f"copying the source to {tree.source}")
    own_runs = read_own_runs(context.facts, context.layout.dist)
    duration = estimate_report.expected_duration(context.facts, context.plan, own_runs)
    if duration:
        note(duration)
    added_files.forget(tree)
    with fetcher.hold_source(context.layout, context.source):
        copy_source(tree, context.source)
    if context.links_environment:
        claim_tree(tree, user, context.venv)
    _run_preparations(context)
    write_atomically(tree.patched_file, json.dumps(differing_sources(context, {})))
    write_atomically(tree.inputs_file, json.dumps(dict(context.tree_inputs)))
    tree.key_file.write_text(key, encoding="utf-8")  # last: the tree is complete


def record_external_inputs(
    context: BuildContext, user: TreeUser, began: float
) -> Mapping[str, str]:
    """Record in the tree the files outside of it that a build read, and return their digests.

    `began` is when the build began, in seconds since 1970. An interpreter's own files are left out
    of the record: the tree is retargeted when they change.
    """
    tree = context.tree
    digests = machine_inputs.read_external_inputs(
        tree.source, [tree.folder, context.venv], context.stat_cache, began
    )
    interpreter_folders = tuple(f"{folder}/" for folder in user.folders)
    lasting = {}
    for path, digest in digests.items():
        if not path.startswith(interpreter_folders):
            lasting[path] = digest
    write_atomically(tree.external_inputs_file, json.dumps(lasting))
    return digests


def refuse_foreign_objects(context: BuildContext, user: TreeUser) -> None:
    """Raise BuildError if an object was compiled with the headers of another interpreter."""
    foreign = find_foreign_object(read_recorded_inputs(context.tree.source) or (), user)
    if foreign is None:
        return
    path, header = foreign
    context.tree.key_file.unlink()  # the next run begins with a fresh tree
    raise BuildError(
        f"{context.plan.identifier}: {path} was compiled with {header}, which belongs to "
        "another Python: run the same command again to start with a fresh tree",
        code="foreign-object",
    )


@contextlib.contextmanager
def trust_copies(tree: BuildTree) -> Iterator[None]:
    """Let a build begin without the copies of one that did not end well: each may be half a file."""
    if tree.unfinished_file.exists():
        delete_matches(tree, _COPIES)
    tree.unfinished_file.touch()
    yield
    tree.unfinished_file.unlink()


def _changes_since_last_tree(context: BuildContext) -> list[str]:
    """Return the differences to the newest tree of the same release and variant; none without one."""
    folder = context.tree.folder
    family = folder.name
    if context.shares_tree:
        family = family.removesuffix(context.tree_key[:_KEY_LENGTH]) + "?" * _KEY_LENGTH
    records = []
    for tree in folder.parent.glob(family):
        record = BuildTree(tree).inputs_file
        if is_file(record):
            records.append(record)
    if not records:
        return []
    newest = max(records, key=lambda record: record.stat().st_mtime)
    return input_digests.describe_changed_inputs(load_object(newest), context.tree_inputs)


def _reuse_tree(context: BuildContext, user: TreeUser, note: Callable[[str], None]) -> str | None:
    """Delete what is out of date in a prepared tree; return why that is impossible, or None."""
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
    unfit = _restore_missing_sources(context)
    if unfit is not None:
        return unfit
    edited = sorted(find_edits(context))
    if edited:
        note(
            f"{name_few(edited, 1)} in {tree.source} has local edits, which every wheel of this tree will "
            "contain: turn them into a patch (`--patch FILE`)"
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
    """Copy source files back that somebody deleted; return why that is impossible, or None.

    A file that a patch or a build made cannot be had from the source.
    """
    tree = context.tree
    patched = load_object(tree.patched_file)
    differing = differing_sources(context, patched)
    missing = sorted(name for name, digest in differing.items() if not digest)
    if any(name in patched for name in missing):
        return f"{name_few(missing, 1)} is gone"
    for name in missing:
        (tree.source / name).parent.mkdir(parents=True, exist_ok=True)
        # With its old date, so that nothing is recompiled.
        shutil.copy2(context.source.path / name, tree.source / name)
    return None


def _changed_inputs(context: BuildContext) -> list[str]:
    """Return the files outside of the tree that changed since they were read.

    A build that was killed recorded no digests: for its inputs the time of a change decides.
    """
    digests = load_object(context.tree.external_inputs_file)
    own_folders = (f"{context.tree.folder}/", f"{context.venv}/")
    recorded = read_recorded_inputs(context.tree.source) or ()

    def has_no_digest(file: str) -> bool:
        return file not in digests and not file.startswith(own_folders)

    late = inputs_newer_than_objects(recorded, has_no_digest)
    return sorted({*machine_inputs.find_changed_inputs(digests, context.stat_cache), *late})


def _run_preparations(context: BuildContext) -> None:
    """Run the commands that a fresh tree needs, patches first. Raises BuildError if one fails."""
    plan = context.plan
    variables = build_environment(context, {}) | reaper.mark_of_run()
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
