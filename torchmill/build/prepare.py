"""Make the tree of a cell ready to compile: reuse the existing one where possible, else make a fresh copy."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torchmill.build import machine_inputs, retarget
from torchmill.build.context import BuildContext, build_environment
from torchmill.build.tree import copy_source, fill_placeholders
from torchmill.core import files
from torchmill.core.errors import BuildError
from torchmill.core.process import CommandError, capture
from torchmill.fetch.source import fetcher
from torchmill.host.environments import Install, TreeUser
from torchmill.plan import estimate


def prepare_tree(
    context: BuildContext, user: TreeUser, install: Install, note: Callable[[str], None]
) -> None:
    """Make the tree, which is held, ready for an interpreter; raises TorchmillError."""
    tree = context.tree
    if context.shares_tree:
        provide_shared_tools(tree.kit, context.plan.kit, install)
    made_of = context.tree_key if context.shares_tree else f"{context.compile_key} {user.identity}"
    key = f"{made_of} {tree.folder}"  # CMake remembers where everything lay
    if tree.is_prepared(key):
        unfit = _reuse_tree(context, user, note)
        if unfit is None:
            return
        note(f"recreating {tree.folder}: {unfit}")
    note(f"copying the source to {tree.source}")
    own_runs = estimate.read_own_runs(context.facts, context.layout.dist)
    if cost := estimate.expected_duration(context.facts, context.plan, own_runs):
        note(cost)
    with fetcher.hold_source(context.layout, context.source):
        copy_source(tree, context.source)
    if context.shares_tree:
        retarget.claim_tree(tree, user, context.venv)
    _run_preparations(context)
    files.write_atomically(tree.patched_file, json.dumps(_differing_sources(context, {})))
    tree.key_file.write_text(key, encoding="utf-8")


def provide_shared_tools(folder: Path, requirements: Sequence[str], install: Install) -> None:
    """Install the tools that all interpreters share into a folder, unless it exists; it appears whole.

    `install` is pip's in any environment. What it installs works whichever interpreter installed it.
    """
    if folder.is_dir():
        return
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "bin").mkdir(parents=True)
    if requirements:
        install("--ignore-installed", "--no-warn-script-location", "--prefix", str(fresh), *requirements)
    for script in (fresh / "bin").iterdir():  # in place of each Python script, a link to what it starts
        if not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            program = next(fresh.glob(f"**/data/bin/{script.name}"), None)
            script.unlink()
            if program is not None:
                script.symlink_to(Path("..") / program.relative_to(fresh))
    fresh.rename(folder)


def list_shared_tools(folder: Path) -> list[str]:
    """Return what is installed in the folder of shared tools, "name==version" each."""
    names = sorted(path.name.removesuffix(".dist-info") for path in folder.glob("**/*-packages/*.dist-info"))
    return [name.replace("-", "==", 1) for name in names]


def _reuse_tree(context: BuildContext, user: TreeUser, note: Callable[[str], None]) -> str | None:
    """Delete from a prepared tree what is out of date; return why that is impossible, else None."""
    tree = context.tree
    if retarget.has_future_objects(tree):
        return "object files are dated in the future (was the clock set back?)"
    if changed := _changed_inputs(context):
        deleted = retarget.delete_outdated_objects(tree, changed) if context.shares_tree else None
        what = f"{_first_of(changed)} changed"
        if deleted is None:
            return what
        note(f"{what}: recompiling {deleted} objects")
    if edited := sorted(_differing_sources(context, _read_digests(tree.patched_file))):
        note(
            f"{_first_of(edited)} in {tree.source} has local edits, which every wheel of this tree will "
            "contain: turn them into a patch"
        )
    if not context.shares_tree:
        note(f"reusing {tree.folder}")
        return None
    deleted = retarget.retarget_tree(tree, user, context.venv)
    if deleted is None:
        return "no record of which objects depend on the Python that used it last"
    less = f", recompiling {deleted} objects that depend on Python" if deleted else ""
    note(f"reusing {tree.folder}{less}")
    return None


def _first_of(names: Sequence[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _run_preparations(context: BuildContext) -> None:
    """Run the commands that a fresh tree needs, patches first."""
    variables = build_environment(context, {})
    for command in context.plan.prepare:
        argv = [fill_placeholders(word, context.placeholders) for word in command.argv]
        try:
            capture(argv, cwd=context.tree.source, env=variables)
        except CommandError as error:
            raise BuildError(
                f"{context.plan.identifier}: {command.title} failed: {error}", code="preparation-failed"
            ) from error


def _changed_inputs(context: BuildContext) -> list[str]:
    """Return the files outside of the tree that changed since they were read.

    A build that was killed recorded no digests: there the time of a change must tell.
    """
    digests = _read_digests(context.tree.external_inputs_file)
    own = tuple(f"{folder}/" for folder in (context.tree.folder, context.venv))
    recorded = retarget.read_recorded_inputs(context.tree.source) or ()
    late = retarget.inputs_newer_than_objects(
        recorded, lambda file: file not in digests and not file.startswith(own)
    )
    return sorted({*machine_inputs.find_changed_inputs(digests, context.stat_cache), *late})


def _differing_sources(context: BuildContext, patched: Mapping[str, str]) -> dict[str, str]:
    """Return the source files, with digests, that are neither as fetched nor as the patches left them."""
    differing = {}
    for folder, folders, names in os.walk(context.source.path):
        folders[:] = set(folders) - {".git"}  # its index, git itself writes anew
        for name in names:
            fetched = Path(folder, name)
            path = fetched.relative_to(context.source.path)
            copy = context.tree.source / path
            if _size_and_date(copy) != _size_and_date(fetched) and fetched.is_file():
                digest = context.stat_cache.digest(copy) or ""
                if digest not in {patched.get(str(path)), context.stat_cache.digest(fetched)}:
                    differing[str(path)] = digest
    return differing


def _size_and_date(file: Path) -> tuple[int, int] | None:
    """Return what a copy has from its original; None where there is no file."""
    try:
        status = file.lstat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _read_digests(file: Path) -> Mapping[str, str]:
    """Return the digests by path in a file of the tree; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        digests = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(digests, dict):
            return digests
    return {}


def record_external_inputs(context: BuildContext, user: TreeUser, began: float) -> Mapping[str, str]:
    """Write down in the tree what a build that began then (seconds since 1970) read outside; return it.

    An interpreter's own files are left out of the record: when they change, the tree is retargeted.
    """
    read = machine_inputs.read_external_inputs(
        context.tree.source, [context.tree.folder, context.venv], context.stat_cache, began
    )
    own = tuple(f"{folder}/" for folder in user.folders)
    lasting = {path: digest for path, digest in read.items() if not path.startswith(own)}
    files.write_atomically(context.tree.external_inputs_file, json.dumps(lasting))
    return read


def refuse_foreign_objects(context: BuildContext, user: TreeUser) -> None:
    """Raise BuildError where an object was compiled with the headers of another interpreter."""
    foreign = retarget.find_foreign_object(retarget.read_recorded_inputs(context.tree.source) or (), user)
    if foreign is not None:
        context.tree.key_file.unlink()  # the next run begins with a fresh tree
        raise BuildError(
            f"{context.plan.identifier}: {foreign[0]} was compiled with {foreign[1]}, which belongs to "
            "another Python: run the same command again to start with a fresh tree",
            code="foreign-object",
        )
