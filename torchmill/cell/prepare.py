"""Make a tree ready to compile: a fresh copy, the old one, or that of another interpreter, retargeted."""

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torchmill.cell import added_files, machine_inputs
from torchmill.cell.context import BuildContext
from torchmill.cell.environment import build_environment, fill_placeholders
from torchmill.cell.folders import BuildTree, copy_source
from torchmill.core import reaper
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.deletion import delete_paths
from torchmill.core.errors import BuildError
from torchmill.core.lenient_paths import is_file, read_text
from torchmill.core.process import CommandError, capture
from torchmill.core.strict_json import load_object
from torchmill.core.units import name_few
from torchmill.fetch.source import fetcher
from torchmill.host.environments import Install
from torchmill.host.own_runs import read_own_runs
from torchmill.host.shared_tools import provide_shared_tools
from torchmill.host.tree_users import TreeUser, read_tree_user
from torchmill.plan import estimate_report, input_digests

RecordedInputs = Sequence[
    tuple[str, Sequence[str]]
]  # an object, and all files that were read for it
OBJECTS = (".o", ".obj")
PYTHON_HEADERS = (
    "/Python.h",
    "/pyconfig.h",
)  # what reads these depends on Python, wherever they lie
CLOCK_SKEW_SECONDS = 2.0  # that a file system's clock may be ahead of ours
# Made by setuptools, scikit-build-core and CMake for one interpreter, at places that all interpreters use.
_MADE_FOR_ONE = (
    *("build/lib.*", "build/temp.*", "build/bdist.*", "*.egg-info", "build/.skbuild-info.json"),
    "*/lib/python3.*",
)
_SOABI = re.compile(r"\.(cpython|pypy|graalpy)-?\d+|\.cp\d+t?-")
# What setuptools copies and links, and takes for up to date by its age, though it be half of a file.
_COPIES = ("build/lib", "build/lib.*", "build/bdist.*", "*.egg-info")


def prepare_tree(
    context: BuildContext, user: TreeUser, install: Install, note: Callable[[str], None]
) -> None:
    """Make the tree, which is held, ready for an interpreter; raises TorchmillError."""
    tree = context.tree
    if context.shares_tree:
        provide_shared_tools(tree.kit, context.plan.tree.kit, install, context.layout.environments)
    made_of = context.tree_key if context.shares_tree else f"{context.compile_key} {user.identity}"
    key = f"{made_of} {tree.folder}"  # CMake remembers where everything lay
    if read_text(tree.key_file) == key:  # it is complete, and was made for that
        unfit = _reuse_tree(context, user, note)
        if unfit is None:
            return
        note(f"recreating {tree.folder}: {unfit}")
    if changes := _changes_since_last_tree(context):
        note(f"a new tree, because of what changed since the last build: {name_few(changes, 3)}")
    note(f"copying the source to {tree.source}")
    own_runs = read_own_runs(context.facts, context.layout.dist)
    if cost := estimate_report.expected_duration(context.facts, context.plan, own_runs):
        note(cost)
    added_files.forget(tree)
    with fetcher.hold_source(context.layout, context.source):
        copy_source(tree, context.source)
    if context.links_environment:
        claim_tree(tree, user, context.venv)
    _run_preparations(context)
    write_atomically(tree.patched_file, json.dumps(_differing_sources(context, {})))
    write_atomically(tree.inputs_file, json.dumps(dict(context.tree_inputs)))
    tree.key_file.write_text(key, encoding="utf-8")


def _changes_since_last_tree(context: BuildContext) -> list[str]:
    """Return what differs from the inputs of the newest tree of the same release and variant; [] if there is none."""
    folder = context.tree.folder
    family = (
        folder.name.removesuffix(context.tree_key[:8]) + "????????"
        if context.shares_tree
        else folder.name
    )
    records = [
        record
        for tree in folder.parent.glob(family)
        if is_file(record := BuildTree(tree).inputs_file)
    ]
    if not records:
        return []
    newest = max(records, key=lambda record: record.stat().st_mtime)
    return input_digests.describe_changed_inputs(load_object(newest), context.tree_inputs)


def _reuse_tree(context: BuildContext, user: TreeUser, note: Callable[[str], None]) -> str | None:
    """Delete from a prepared tree what is out of date; return why that is impossible, else None."""
    tree = context.tree
    if has_future_objects(tree):
        return "object files are dated in the future (was the clock set back?)"
    if changed := _changed_inputs(context):
        deleted = delete_outdated_objects(tree, changed) if context.shares_tree else None
        what = f"{name_few(changed, 1)} changed"
        if deleted is None:
            return what
        note(f"{what}: recompiling {deleted} objects")
    patched = load_object(tree.patched_file)
    differing = _differing_sources(context, patched)
    gone = sorted(name for name, digest in differing.items() if not digest)
    if any(name in patched for name in gone):
        return f"{name_few(gone, 1)} is gone"
    for name in gone:
        (tree.source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(
            context.source.path / name, tree.source / name
        )  # as old as it was: nothing is recompiled
    if edited := sorted(find_edits(context)):
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
    less = f", recompiling {deleted} objects that depend on Python" if deleted else ""
    note(f"reusing {tree.folder}{less}")
    return None


def find_edits(context: BuildContext) -> dict[str, str]:
    """Return the source files in the tree that somebody edited or added, with the digests that they have now.

    What the patches, or a build in the tree, made of them is no edit, nor is what setuptools writes anew each time.
    """
    differing = _differing_sources(context, load_object(context.tree.patched_file))
    edits = {name: digest for name, digest in differing.items() if digest}
    for name in added_files.find_added_files(context.tree, context.source.path):
        edits[name] = context.stat_cache.digest(context.tree.source / name) or ""
    return edits


def record_generated_files(context: BuildContext, edits: Mapping[str, str]) -> None:
    """Write down which source files a build has changed itself; `edits` were there before it began."""
    added_files.end_build(context.tree, context.source.path)
    made = {name: digest for name, digest in find_edits(context).items() if name not in edits}
    if made:
        patched = load_object(context.tree.patched_file) | made
        write_atomically(context.tree.patched_file, json.dumps(patched))


def _run_preparations(context: BuildContext) -> None:
    """Run the commands that a fresh tree needs, patches first."""
    variables, plan = build_environment(context, {}) | reaper.mark_of_run(), context.plan
    given = {f"${{patches}}/{name}": path for name, path in plan.tree.user_patches.items()}
    for step in plan.tree.preparation:
        argv = [
            given.get(word) or fill_placeholders(word, context.placeholders) for word in step.argv
        ]
        try:
            capture(argv, cwd=context.tree.source, env=variables)
        except CommandError as error:
            raise BuildError(
                f"{plan.identifier}: {step.title} failed: {error}", code="preparation-failed"
            ) from error


def _changed_inputs(context: BuildContext) -> list[str]:
    """Return the files outside of the tree that changed since they were read.

    A build that was killed recorded no digests: there the time of a change must tell.
    """
    digests = load_object(context.tree.external_inputs_file)
    own = tuple(f"{folder}/" for folder in (context.tree.folder, context.venv))
    recorded = read_recorded_inputs(context.tree.source) or ()
    late = inputs_newer_than_objects(
        recorded, lambda file: file not in digests and not file.startswith(own)
    )
    return sorted({*machine_inputs.find_changed_inputs(digests, context.stat_cache), *late})


def _differing_sources(context: BuildContext, patched: Mapping[str, str]) -> dict[str, str]:
    """Return the source files, with digests, that are neither as fetched nor as the patches left them."""
    differing = {}
    for folder, folders, names in os.walk(context.source.path):
        # git itself writes its index anew, and setuptools an .egg-info that a source archive ships
        folders[:] = [name for name in folders if name != ".git" and not name.endswith(".egg-info")]
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


def record_external_inputs(
    context: BuildContext, user: TreeUser, began: float
) -> Mapping[str, str]:
    """Write down in the tree what a build that began then (seconds since 1970) read outside; return it.

    An interpreter's own files are left out of the record: when they change, the tree is retargeted.
    """
    tree = context.tree
    read = machine_inputs.read_external_inputs(
        tree.source, [tree.folder, context.venv], context.stat_cache, began
    )
    own = tuple(f"{folder}/" for folder in user.folders)
    lasting = {path: digest for path, digest in read.items() if not path.startswith(own)}
    write_atomically(tree.external_inputs_file, json.dumps(lasting))
    return read


def refuse_foreign_objects(context: BuildContext, user: TreeUser) -> None:
    """Raise BuildError where an object was compiled with the headers of another interpreter."""
    foreign = find_foreign_object(read_recorded_inputs(context.tree.source) or (), user)
    if foreign is not None:
        context.tree.key_file.unlink()  # the next run begins with a fresh tree
        raise BuildError(
            f"{context.plan.identifier}: {foreign[0]} was compiled with {foreign[1]}, which belongs to "
            "another Python: run the same command again to start with a fresh tree",
            code="foreign-object",
        )


@contextlib.contextmanager
def trust_copies(tree: BuildTree) -> Iterator[None]:
    """Let a build begin without the copies of one that did not end well: each may be half of a file."""
    if tree.unfinished_file.exists():
        _delete_made(tree, _COPIES)
    tree.unfinished_file.touch()
    yield
    tree.unfinished_file.unlink()


def _delete_made(tree: BuildTree, patterns: Iterable[str]) -> None:
    delete_paths([path for pattern in patterns for path in tree.source.glob(pattern)])


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
    stale = _readers(
        recorded or (), lambda file: file.startswith(own) or file.endswith(PYTHON_HEADERS)
    )
    _forget(tree, stale)
    delete_paths(_files(tree.source, lambda name: _SOABI.search(name) is not None))
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
    delete_paths(map(Path, objects))
    _delete_made(tree, _MADE_FOR_ONE)
    (tree.build / "CMakeCache.txt").unlink(missing_ok=True)
    # Whatever the clock says, ninja shall take it for older than what CMake remembers next.
    if (manifest := tree.build / "build.ninja").exists():
        os.utime(manifest, (1, 1))


def read_recorded_inputs(source: Path) -> RecordedInputs | None:
    """Return what was read for each existing object that ninja compiled below a folder, as absolute paths.

    None: ninja compiled nothing in the folder, or its log cannot be read.
    """
    logs = list(_files(source, lambda name: name == ".ninja_deps"))
    with contextlib.suppress(OSError, ValueError):
        return (
            [one for log in logs for one in machine_inputs.outputs_with_inputs(log)]
            if logs
            else None
        )
    return None


def inputs_newer_than_objects(recorded: RecordedInputs, matches: Callable[[str], bool]) -> set[str]:
    """Return those of the matching files that changed after an object read them.

    A package manager sets the date of a file, but nobody can set when it was written.
    """
    newer = set[str]()
    written: dict[
        str, int
    ] = {}  # when each file was, in nanoseconds; 0 where it is gone, or does not match
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
    with tempfile.TemporaryFile(
        dir=tree.folder
    ) as fresh:  # dated by the disk, whose clock may be ahead of ours
        now = max(time.time(), os.fstat(fresh.fileno()).st_mtime) + CLOCK_SKEW_SECONDS
    compiled = _files(tree.build, lambda name: name.endswith((*OBJECTS, ".so", ".a", ".dylib")))
    return any(path.lstat().st_mtime > now for path in compiled)


def _files(folder: Path, matches: Callable[[str], bool]) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names if matches(name))
