"""Compile one wheel under the memory guard: the command, its environment, and what it says when it fails."""

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from torchmill import gating
from torchmill import tree as trees
from torchmill.buildline import Line
from torchmill.diagnosis import causes
from torchmill.errors import BuildError, MemoryBuildError, SuiteError
from torchmill.guard import units
from torchmill.guard.expected import relevant
from torchmill.guard.jobs import jobs, largest
from torchmill.guard.session import Guarded, Site, guarded
from torchmill.guard.timeline import SUFFIX, Account
from torchmill.model import Command
from torchmill.ninja import parse_edge
from torchmill.plan import usable_memory
from torchmill.process import CommandError, stream
from torchmill.toolchain.cache import Hits, enter, hits
from torchmill.toolchain.watch import watched
from torchmill.workshop import Job, caching


@dataclass(frozen=True, slots=True)
class Compiled:
    """What compiling left behind."""

    raw: Path  # the wheel as the build made it
    edges: int  # that ninja counted
    cpu: float  # seconds
    slots: str  # how many compilers the build was told to start at a time
    account: Account | None  # None: there was no guard
    seconds: Mapping[str, float] = field(default_factory=dict)  # of each step that led to it
    waited: float = 0.0  # seconds, for another run that was in the tree
    read: Mapping[str, str] = field(default_factory=dict)  # outside the tree, with digests
    cache: Hits | None = None  # what the compiler cache did; None: there was none, or it does not say


def compile_wheel(job: Job, line: Line) -> Compiled:
    """Run the build and return what it left.

    Raises BuildError with the compiler's own last error, MemoryBuildError where memory was short.
    """
    shutil.rmtree(job.outputs.raw, ignore_errors=True)
    job.outputs.raw.mkdir(parents=True)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    edges = 0
    with contextlib.suppress(OSError):  # the guard tells of it
        timeline(job).unlink()  # one of an earlier build would be taken for this one's
    cache = caching(job, line.note)
    with guarded(_site(job), cache.variables) as guard, job.log.open("w", 1, "utf-8") as log:

        def seen(text: str) -> None:
            nonlocal edges
            edge = parse_edge(text)
            edges = max(edges, edge.total if edge else 0)
            line.edge(text, guard.account)
            _tell(guard, line)

        variables = gating.variables(job, guard, cache, line.note)
        before = _children_cpu()
        try:
            with watched(cache.watched if guard.gate else None, variables, guard.folder, guard.news.put):
                for command in job.plan.compile:
                    _run(job, command, variables, log, seen, guard.account)
        finally:
            _tell(guard, line)
        spent = _children_cpu() - before
        known = hits(cache, variables)  # while its server is there
    _tell(guard, line)  # what could not be kept, it says only at its end
    books = guard.account if guard.gate else None
    if books is not None and books.units:
        line.note(books.summary())
    if known is not None:
        line.note(str(known))
        enter(known, timeline(job), guard.account.now.at)
    return Compiled(_only_wheel(job), edges, spent, variables["MAX_JOBS"], books, cache=known)


def timeline(job: Job) -> Path:
    """Return the file that holds what the guard saw and did."""
    return job.log.with_suffix(SUFFIX)


def _site(job: Job) -> Site:
    return Site(
        tree=job.tree.folder,
        cache=job.layout.cache,
        timeline=timeline(job),
        compiler=shlex.split(job.host.tools.get("c++", "c++")),
        unguarded=_unwatched(job),
        cores=job.options.jobs,
        memory=job.options.memory,
        roots=(str(job.tree.source.resolve()),),
        known=relevant(job.facts.units, job.package.name, job.plan.release.version),
        wanted=job.options.guard,
    )


def _unwatched(job: Job) -> int:
    """Return how many compilers may run where the guard is gone: what was asked for, if memory carries it."""
    need = largest(job.facts, job.plan.build, job.plan.release.version)
    memory = usable_memory(job.host, job.options)
    return min(job.plan.jobs, jobs(job.host.cores, memory, int(need.high)).count)


def _tell(guard: Guarded, line: Line) -> None:
    while not guard.news.empty():
        line.note(guard.news.get())


def _run(  # noqa: PLR0917 - one command and those who watch it
    job: Job,
    command: Command,
    variables: Mapping[str, str],
    log: TextIO,
    seen: Callable[[str], None],
    account: Account,
) -> None:
    argv = [trees.resolve(word, job.places) for word in command.argv]
    cwd = Path(trees.resolve(command.cwd, job.places))
    try:
        stream(argv, cwd=cwd, env=variables, log=log, on_line=seen)
    except CommandError as error:
        log.flush()
        raise _failure(job, error, account) from error


def _failure(job: Job, error: CommandError, account: Account) -> SuiteError:
    """Return the failure of the build in one message, its cause first."""
    go_on = [
        f"  the whole log: {job.log}",
        f"  the tree:      {job.tree.source}",
        f"  to go on where it stopped: nox -s {job.plan.identifier}",
    ]
    if account.gave_up:
        unit = account.gave_up[-1]
        cure = "give the machine, its container or its job more, or add swap"
        too_large = (
            f"{units.title(unit.key)} was killed or ran out of memory, even alone: it {unit.text}; "
            f"{cure} (`invoke jobs` says what binds, `dmesg` what was killed and why)"
        )
        return MemoryBuildError("\n".join([f"{job.plan.identifier}: {too_large}", *go_on]))
    with job.log.open(encoding="utf-8", errors="replace") as lines:
        said = causes.diagnose(job.facts.causes, lines, job.plan.release.torch_version)
    headline = said.headline if said.number else error
    return BuildError("\n".join([f"{job.plan.identifier}: {headline}", *go_on, *causes.advice(said)]))


def _only_wheel(job: Job) -> Path:
    wheels = list(job.outputs.raw.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(
            f"{job.plan.identifier}: the build left {len(wheels)} wheels in {job.outputs.raw}, not one: "
            f"see {job.log}"
        )
    return wheels[0]


def _children_cpu() -> float:
    """Return the processor seconds of all children that ended (and zero on Windows, which does not tell)."""
    times = os.times()
    return times.children_user + times.children_system
