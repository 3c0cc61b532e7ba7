"""From a job to its raw wheel: the tree is taken, made ready for the cell's interpreter, and built in."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from torchmill import against, environments, locks, preparing, removal
from torchmill.buildline import Line
from torchmill.compiling import Compiled, compile_wheel
from torchmill.environments import Install
from torchmill.errors import BusyError
from torchmill.tree import Tree
from torchmill.workshop import Job

KEPT = 2  # trees of one family: whoever tries a switch, and goes back, finds both


def compiled(job: Job, install: Install, line: Line) -> Compiled:
    """Build the raw wheel of a cell, whose own folder is held, in its tree.

    Where other interpreters' cells share the tree it is waited for, and given back once the wheel is made.
    `install` puts requirements into the session's environment. Raises SuiteError.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "requirements"):
        own_kit = () if job.shares else job.plan.kit
        wanted = [*links(job), *own_kit, *job.plan.requirements]
        environments.provide(job.venv, job.interpreter, job.environment_key, install, *wanted)
        user = environments.user(job.venv, job.python, job.environment_key, job.tree.env)
    asked = time.monotonic()
    with _taken(job, line):
        waited = round(time.monotonic() - asked, 1)
        began = time.time()
        with _timed(seconds, "prepare"):
            if job.shares and not job.tree.key_file.exists():
                retire(job, line.note)
            preparing.prepare(job, user, install, line.note)
        with _timed(seconds, "compile"):
            try:
                made = compile_wheel(job, line)
            finally:  # whoever goes on where this one stopped must know, too
                read = preparing.write_down(job, user, began)
            preparing.refuse_foreign(job, user)
    return replace(made, seconds=seconds, waited=waited, read=read)


def links(job: Job) -> list[str]:
    """Return what leads pip to our own wheels, where it is not PyPI's that is built against."""
    ours = job.plan.torch is not None and job.options.torch != against.PYPI
    return ["--find-links", str(job.layout.dist)] if ours else []


@contextlib.contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - start, 1)


@contextlib.contextmanager
def _taken(job: Job, line: Line) -> Iterator[None]:
    """Hold the tree; a tree of the cell's own is in its folder, which is held already."""
    if not job.shares:
        yield
        return
    with locks.awaited(job.tree.folder, job.plan.identifier, line.note):
        yield


def retire(job: Job, note: Callable[[str], None]) -> None:
    """Empty the trees of the cell's family that were unused longest, unless somebody is at work.

    What is another user's stays. Whoever packs needs the kit of a tree that he has given back.
    """
    own = job.tree.folder
    alike = own.parent.glob(f"{job.family}-{'?' * 8}")
    others = [one for one in alike if one != own and Tree(one).source.is_dir()]
    cells = [one for one in own.parent.glob(f"*/{locks.LOCK}") if one.parent not in {own, job.outputs.folder}]
    for folder in sorted(others, key=locks.taken_at, reverse=True)[KEPT - 1 :]:
        with contextlib.suppress(BusyError, OSError):
            with removal.holding(cells):
                away = removal.put_away(removal.contents(folder))
            note(f"removed {folder}, the tree that was unused longest")
            removal.delete(away)
