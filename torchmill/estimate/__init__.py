"""Estimate what a build costs in time, memory and disk, from builds that were measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchmill import overflow
from torchmill.estimate import catalogue
from torchmill.estimate.catalogue import Work, middle, slots
from torchmill.guard.jobs import largest
from torchmill.model import Assumed, Facts, Plan, Range, Run


@dataclass(frozen=True, slots=True)
class Span:
    """A quantity with its uncertainty."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build is expected to cost on a machine."""

    wall: Span  # seconds, with a cold compiler cache
    cpu: Span  # seconds of all compilers together
    compile: Range  # bytes that one of the largest compiles takes
    memory: Range  # bytes of all compiles in flight together
    tree: Range  # bytes on disk while it is built
    wheel: Range  # bytes in dist/
    confidence: str  # what it stands on in a word: "builds of this release"
    basis: str  # the runs it stands on


def of(facts: Facts, plan: Plan, own: Sequence[Run] = ()) -> Estimate | None:
    """Return what carrying out a plan costs with a cold compiler cache; None where nothing is known.

    `own` are the builds that the same machine has made (own.runs).
    """
    images = overflow.images(plan.set.get("TORCH_CUDA_ARCH_LIST", "")) if plan.build.cuda else 0
    known = catalogue.work(facts, plan.release, images, plan.jobs)
    assumed = facts.assumed
    if known is None or assumed is None:
        return None
    found, confidence = _measured(
        facts, assumed, plan, images, known, [run for run in own if cold(facts, run)]
    )
    compiled = largest(facts, plan.build, plan.release.version)
    alone = assumed.dependent if facts.packages[plan.build.package].after else assumed.serial
    return Estimate(
        wall=wall(alone, assumed.scaling, found, plan.jobs),
        cpu=Span(found.seconds / found.spread, found.seconds, found.seconds * found.spread),
        compile=compiled,
        memory=Range(plan.jobs * _typical(facts, compiled, images), plan.jobs * compiled.high),
        tree=_disk(facts, plan, images, "tree"),
        wheel=_disk(facts, plan, images, "packed"),
        confidence=confidence,
        basis="; ".join(dict.fromkeys(_told(run) for run in found.runs)),
    )


def wall(alone: Range, scaling: float, found: Work, jobs: int) -> Span:
    """Return the seconds that work takes with so many jobs, after `alone`, in which one program runs."""
    speed = jobs**scaling
    return Span(
        alone.low + found.seconds / found.spread / speed,
        middle(alone) + found.seconds / speed,
        alone.high + found.seconds * found.spread / speed,
    )


def cold(facts: Facts, run: Run) -> bool:
    """Tell whether a run compiled all that it made.

    A manifest does not say what came from a compiler cache: a run is believed that took no less than the
    least that the catalogue expects.
    """
    release = catalogue.find(facts, run.package, run.release)
    if release is None or run.cpu is None:
        return False
    known = catalogue.work(facts, release, overflow.images(run.capabilities), slots(run))
    return known is not None and run.cpu >= known.seconds / known.spread


def _told(run: Run) -> str:
    return f"{run.package} {run.release} {run.variant}".strip() + f" ({run.machine})"


def _measured(  # noqa: PLR0917 - the terms of one decision
    facts: Facts, assumed: Assumed, plan: Plan, images: int, known: Work, own: Sequence[Run]
) -> tuple[Work, str]:
    """Return the catalogue's work unless this machine has shown better, and how sure that is."""
    mine = [(run, run.cpu) for run in own if run.package == plan.release.package and run.cpu]
    same = [
        (run, cpu)
        for run, cpu in mine
        if run.release == plan.release.version and overflow.images(run.capabilities) == images
    ]
    if same:
        mean = math.exp(sum(math.log(cpu) for _, cpu in same) / len(same))
        return Work(mean, assumed.spread["own"], tuple(run for run, _ in same[:2])), "builds of this machine"
    if any(run.package != plan.release.package for run in known.runs):
        return known, "builds of other packages"
    theirs = {run.release for run in known.runs if bool(run.capabilities) == bool(images)}
    near = "builds of this release" if plan.release.version in theirs else "builds of other releases"
    return _at_this_speed(facts, known, [run for run, _ in mine]), near


def _at_this_speed(facts: Facts, known: Work, own: Sequence[Run]) -> Work:
    """Return the work as this machine does it: as much faster or slower as it was with what it has built."""
    ratios = []
    for run in own:
        release = catalogue.find(facts, run.package, run.release)
        expected = release and catalogue.work(facts, release, overflow.images(run.capabilities), slots(run))
        if expected and run.cpu:
            ratios.append(math.log(run.cpu / expected.seconds))
    factor = math.exp(sum(ratios) / len(ratios)) if ratios else 1.0
    return replace(known, seconds=known.seconds * factor)


def _typical(facts: Facts, compiled: Range, images: int) -> float:
    """Return what a compile takes on the average of the time, as far as that was measured."""
    measured = [float(run.typical) for run in facts.runs if run.typical]
    return min([*measured, compiled.low]) if measured and not images else compiled.low / 2


def _disk(facts: Facts, plan: Plan, images: int, what: str) -> Range:
    """Return bytes on disk: of the libraries' size, or for a dependent package, of a build of its kind."""
    assumed, release = facts.assumed, plan.release
    host = catalogue.host_size(facts, release)
    if assumed is None or host is None:
        alike = [run for run in facts.runs if facts.packages[run.package].after]
        seen = [size for run in alike if (size := run.tree if what == "tree" else run.wheel)]
        return Range(min(seen, default=0) / 2, max(seen, default=0) * 2)
    weighed = overflow.weight(facts, release) if images else None
    libraries = host + (images * weighed[0] if weighed else 0)
    factor = {"tree": assumed.tree, "packed": assumed.packed}[what]
    return Range(libraries * factor.low, libraries * factor.high)
