"""Make the tree of a cell ready: the one that is there, less what may not be kept, else a fresh one."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torchmill import atomic, handover, kit, outside
from torchmill import source as sources
from torchmill import tree as trees
from torchmill.environments import Install, User
from torchmill.errors import BuildError
from torchmill.estimate import own, report
from torchmill.process import CommandError, capture
from torchmill.workshop import Job, environment


def prepare(job: Job, user: User, install: Install, note: Callable[[str], None]) -> None:
    """Make the tree, which is held, ready for an interpreter; raises SuiteError."""
    tree = job.tree
    if job.shares:
        kit.provide(tree.kit, job.plan.kit, install)
    made_of = job.tree_key if job.shares else f"{job.compile_key} {user.identity}"
    wanted = f"{made_of} {tree.folder}"  # CMake remembers where everything lay
    if trees.is_prepared(tree, wanted):
        unfit = _refitted(job, user, note)
        if unfit is None:
            return
        note(f"{tree.folder} is made anew: {unfit}")
    note(f"copying the source to {tree.source}")
    if cost := report.expected(job.facts, job.plan, own.runs(job.facts, job.layout.dist)):
        note(cost)
    with sources.kept(job.layout, job.source):
        trees.copy_source(tree, job.source)
    if job.shares:
        handover.claim(tree, user, job.venv)
    _run_once(job)
    atomic.write(tree.patched_file, json.dumps(_differing(job, {})))
    tree.key_file.write_text(wanted, encoding="utf-8")


def _refitted(job: Job, user: User, note: Callable[[str], None]) -> str | None:
    """Take from a prepared tree what may not be kept; return why that is not possible, None where it was."""
    tree = job.tree
    if handover.is_of_the_future(tree):
        return "it was compiled later than the clock says that it is"
    if changed := _changed(job):
        gone = handover.renew(tree, changed) if job.shares else None
        what = f"{changed[0]}{_more(changed)} is another than it was"
        if gone is None:
            return what
        note(f"{what}: {gone} files are compiled again")
    if edited := sorted(_differing(job, _noted(tree.patched_file))):
        what = f"{edited[0]}{_more(edited)} in {tree.source} was edited"
        note(f"{what}, and is so in every wheel of this tree: make a patch of it")
    if not job.shares:
        note(f"going on in {tree.folder}")
        return None
    gone = handover.hand_over(tree, user, job.venv)
    if gone is None:
        return "nobody wrote down what in it depends on the Python that it was used for last"
    less = f", less {gone} files compiled for another Python" if gone else ""
    note(f"going on in {tree.folder}{less}")
    return None


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _run_once(job: Job) -> None:
    """Run the commands that a fresh tree needs, patches first."""
    variables = environment(job, {})
    for command in job.plan.prepare:
        argv = [trees.resolve(word, job.places) for word in command.argv]
        try:
            capture(argv, cwd=job.tree.source, env=variables)
        except CommandError as error:
            raise BuildError(f"{job.plan.identifier}: {command.title} failed: {error}") from error


def _changed(job: Job) -> list[str]:
    """Return the files outside of the tree that are others than those which were read.

    Of a build that was killed nobody noted what it read: there the time of a change must tell.
    """
    known = _noted(job.tree.outside_file)
    own = tuple(f"{folder}/" for folder in (job.tree.folder, job.venv))
    recorded = handover.recorded(job.tree.source) or ()
    late = handover.younger(recorded, lambda file: file not in known and not file.startswith(own))
    return sorted({*outside.changed(known, job.recall), *late})


def _differing(job: Job, patched: Mapping[str, str]) -> dict[str, str]:
    """Return the source files, with digests, that are neither as fetched nor as the patches left them."""
    found = {}
    for folder, folders, names in os.walk(job.source.path):
        folders[:] = set(folders) - {".git"}  # its index, git itself writes anew
        for name in names:
            fetched = Path(folder, name)
            path = fetched.relative_to(job.source.path)
            copy = job.tree.source / path
            if _look(copy) != _look(fetched) and fetched.is_file():
                digest = job.recall.digest(copy) or ""
                if digest not in {patched.get(str(path)), job.recall.digest(fetched)}:
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


def write_down(job: Job, user: User, began: float) -> Mapping[str, str]:
    """Note in the tree what was read outside of it by a build that began then, and return that.

    An interpreter's own is no part of the note: when that changes, the tree is handed over.
    """
    read = outside.read(job.tree.source, [job.tree.folder, job.venv], job.recall, began)
    own = tuple(f"{folder}/" for folder in user.folders)
    lasting = {path: digest for path, digest in read.items() if not path.startswith(own)}
    atomic.write(job.tree.outside_file, json.dumps(lasting))
    return read


def refuse_foreign(job: Job, user: User) -> None:
    """Raise BuildError where an object was compiled with the headers of another interpreter."""
    found = handover.foreign(handover.recorded(job.tree.source) or (), user)
    if found is not None:
        job.tree.key_file.unlink()  # whatever it was that went wrong, the next run begins anew
        raise BuildError(
            f"{job.plan.identifier}: {found[0]} was compiled with {found[1]}, which is another Python's: "
            "run the same command again, and it begins with a fresh tree"
        )
