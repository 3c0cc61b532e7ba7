"""Make the tree of a cell ready to compile: reuse the existing one where possible, else make a fresh copy."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torchmill.build import machine_inputs, retarget
from torchmill.build.context import BuildContext, build_environment
from torchmill.build.tree import copy_source, fill_placeholders, is_prepared
from torchmill.core import files
from torchmill.core.errors import BuildError
from torchmill.core.process import CommandError, capture
from torchmill.fetch.source import fetcher
from torchmill.host.environments import Install, TreeUser
from torchmill.plan import estimate


def provide_shared_tools(folder: Path, requirements: Sequence[str], install: Install) -> None:
    """Make the kit, unless it is there; it appears whole.

    `install` is pip's in any environment. Paths in the kit hold no matter which interpreter installed it.
    """
    if folder.is_dir():
        return
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "bin").mkdir(parents=True)
    if requirements:
        install("--ignore-installed", "--no-warn-script-location", "--prefix", str(fresh), *requirements)
    _without_python(fresh)
    fresh.rename(folder)


def list_shared_tools(folder: Path) -> list[str]:
    """Return what the kit was made of, "name==version" each."""
    found = sorted(path.name.removesuffix(".dist-info") for path in folder.glob("**/*-packages/*.dist-info"))
    return [name.replace("-", "==", 1) for name in found]


def _without_python(kit: Path) -> None:
    """Put a link to the program that it starts in place of each Python script; drop what starts none."""
    for script in (kit / "bin").iterdir():
        if not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            program = next(kit.glob(f"**/data/bin/{script.name}"), None)
            script.unlink()
            if program is not None:
                script.symlink_to(Path("..") / program.relative_to(kit))


def prepare_tree(
    context: BuildContext, user: TreeUser, install: Install, note: Callable[[str], None]
) -> None:
    """Make the tree, which is held, ready for an interpreter; raises SuiteError."""
    tree = context.tree
    if context.shares_tree:
        provide_shared_tools(tree.kit, context.plan.kit, install)
    made_of = context.tree_key if context.shares_tree else f"{context.compile_key} {user.identity}"
    wanted = f"{made_of} {tree.folder}"  # CMake remembers where everything lay
    if is_prepared(tree, wanted):
        unfit = _refitted(context, user, note)
        if unfit is None:
            return
        note(f"recreating {tree.folder}: {unfit}")
    note(f"copying the source to {tree.source}")
    if cost := estimate.expected_duration(
        context.facts, context.plan, estimate.read_own_runs(context.facts, context.layout.dist)
    ):
        note(cost)
    with fetcher.hold_source(context.layout, context.source):
        copy_source(tree, context.source)
    if context.shares_tree:
        retarget.claim_tree(tree, user, context.venv)
    _run_once(context)
    files.write_atomically(tree.patched_file, json.dumps(_differing(context, {})))
    tree.key_file.write_text(wanted, encoding="utf-8")


def _refitted(context: BuildContext, user: TreeUser, note: Callable[[str], None]) -> str | None:
    """Take from a prepared tree what may not be kept; return why that is not possible, None where it was."""
    tree = context.tree
    if retarget.has_future_objects(tree):
        return "object files are dated in the future (was the clock set back?)"
    if changed := _changed(context):
        gone = retarget.delete_outdated_objects(tree, changed) if context.shares_tree else None
        what = f"{changed[0]}{_more(changed)} changed"
        if gone is None:
            return what
        note(f"{what}: recompiling {gone} objects")
    if edited := sorted(_differing(context, _noted(tree.patched_file))):
        what = f"{edited[0]}{_more(edited)} in {tree.source} has local edits"
        note(f"{what}, which every wheel of this tree will contain: turn them into a patch")
    if not context.shares_tree:
        note(f"reusing {tree.folder}")
        return None
    gone = retarget.retarget_tree(tree, user, context.venv)
    if gone is None:
        return "no record of which objects depend on the Python that used it last"
    less = f", recompiling {gone} objects that depend on Python" if gone else ""
    note(f"reusing {tree.folder}{less}")
    return None


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _run_once(context: BuildContext) -> None:
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


def _changed(context: BuildContext) -> list[str]:
    """Return the files outside of the tree that are others than those which were read.

    Of a build that was killed nobody noted what it read: there the time of a change must tell.
    """
    known = _noted(context.tree.outside_file)
    own = tuple(f"{folder}/" for folder in (context.tree.folder, context.venv))
    recorded = retarget.read_recorded_inputs(context.tree.source) or ()
    late = retarget.inputs_newer_than_objects(
        recorded, lambda file: file not in known and not file.startswith(own)
    )
    return sorted({*machine_inputs.find_changed_inputs(known, context.recall), *late})


def _differing(context: BuildContext, patched: Mapping[str, str]) -> dict[str, str]:
    """Return the source files, with digests, that are neither as fetched nor as the patches left them."""
    found = {}
    for folder, folders, names in os.walk(context.source.path):
        folders[:] = set(folders) - {".git"}  # its index, git itself writes anew
        for name in names:
            fetched = Path(folder, name)
            path = fetched.relative_to(context.source.path)
            copy = context.tree.source / path
            if _look(copy) != _look(fetched) and fetched.is_file():
                digest = context.recall.digest(copy) or ""
                if digest not in {patched.get(str(path)), context.recall.digest(fetched)}:
                    found[str(path)] = digest
    return found


def _look(file: Path) -> tuple[int, int] | None:
    """Return size and date, which a copy has from its original; None where there is no file."""
    try:
        seen = file.lstat()
    except OSError:
        return None
    return seen.st_size, seen.st_mtime_ns


def _noted(file: Path) -> Mapping[str, str]:
    """Return digests by path from a note in the tree; none where there is none."""
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(known, dict):
            return known
    return {}


def record_external_inputs(context: BuildContext, user: TreeUser, began: float) -> Mapping[str, str]:
    """Note in the tree what was read outside of it by a build that began then, and return that.

    An interpreter's own is no part of the note: when that changes, the tree is handed over.
    """
    read = machine_inputs.read_external_inputs(
        context.tree.source, [context.tree.folder, context.venv], context.recall, began
    )
    own = tuple(f"{folder}/" for folder in user.folders)
    lasting = {path: digest for path, digest in read.items() if not path.startswith(own)}
    files.write_atomically(context.tree.outside_file, json.dumps(lasting))
    return read


def refuse_foreign_objects(context: BuildContext, user: TreeUser) -> None:
    """Raise BuildError where an object was compiled with the headers of another interpreter."""
    found = retarget.find_foreign_object(retarget.read_recorded_inputs(context.tree.source) or (), user)
    if found is not None:
        context.tree.key_file.unlink()  # whatever it was that went wrong, the next run begins anew
        raise BuildError(
            f"{context.plan.identifier}: {found[0]} was compiled with {found[1]}, which belongs to "
            "another Python: run the same command again to start with a fresh tree",
            code="foreign-object",
        )
