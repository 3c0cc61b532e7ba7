"""Estimate time, memory and disk of a build, from measured builds and those of this machine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from torchmill.config.costs import CostAssumptions, CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.plan import link_overflow
from torchmill.plan.compile_work import (
    CompileWork,
    catalogue_work,
    find_release_version,
    host_library_bytes,
    run_slots,
)
from torchmill.plan.job_count import largest_compile
from torchmill.plan.plan import Plan

_MINUTE_SECONDS = 60
_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class EstimateSpan:
    """A quantity with its uncertainty."""

    low: float
    likely: float
    high: float

    def __str__(self) -> str:
        """Return seconds as people read them: "about 12 min (9 min to 20 min)"."""
        low = format_estimate(self.low)
        return f"about {format_estimate(self.likely)} ({low} to {format_estimate(self.high)})"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected cost of a build on a machine."""

    wall: EstimateSpan  # seconds, with a cold compiler cache
    cpu: EstimateSpan  # seconds of all compilers together
    compile: CostRange  # bytes that one of the largest compiles takes
    memory: CostRange  # bytes of all compiles in flight together
    tree: CostRange  # bytes on disk while it is built
    wheel: CostRange  # bytes in dist/
    confidence: str  # on what kind of builds it stands: "builds of this release"
    basis: str  # the runs on which it stands


def estimate_build(
    facts: Facts, plan: Plan, own_runs: Sequence[MeasuredRun] = (), *, further: bool = False
) -> Estimate | None:
    """Return the cost of carrying out a plan with a cold compiler cache; None if unknown.

    `own_runs` are builds that the same machine has made. A `further` Python uses the tree that was
    compiled for the first one.
    """
    assumed = facts.assumptions
    images = link_overflow.count_code_images(plan.arch_list)
    work = catalogue_work(facts, plan.release, images, plan.jobs)
    if work is None or assumed is None:
        return None
    cold_runs = [run for run in own_runs if _is_cold_run(facts, run)]
    work, confidence = _best_basis(facts, assumed, plan, work, cold_runs)
    if further:
        work = replace(work, seconds=work.seconds * assumed.further_python.middle)
    dependent = facts.packages[plan.build.package].after is not None
    alone = assumed.dependent_seconds if dependent else assumed.serial_seconds
    largest = largest_compile(facts, plan.build, plan.release.version)
    average = _average_compile(facts, largest, images)
    cpu = EstimateSpan(work.seconds / work.spread, work.seconds, work.seconds * work.spread)
    return Estimate(
        wall=wall_seconds(alone, assumed.scaling, work, plan.jobs),
        cpu=cpu,
        compile=largest,
        memory=CostRange(plan.jobs * average, plan.jobs * largest.high),
        tree=_disk_bytes(facts, plan, images, "tree"),
        wheel=_disk_bytes(facts, plan, images, "packed"),
        confidence=confidence,
        basis=_describe_runs(work.runs),
    )


def _average_compile(facts: Facts, largest: CostRange, images: int) -> float:
    """Return the bytes of a compile at its peak, averaged over the time of a build."""
    # Averages were measured of builds without CUDA only.
    measured = [float(run.typical) for run in facts.runs if run.typical]
    if measured and not images:
        return min(*measured, largest.low)
    return largest.low / 2


def _describe_runs(runs: Iterable[MeasuredRun]) -> str:
    """Return the builds of some runs, each once: "torch 1.13.1 cpu (c5.12xlarge)"."""
    descriptions: list[str] = []
    for run in runs:
        build = f"{run.package} {run.release} {run.variant}".strip()
        descriptions.append(f"{build} ({run.machine})")
    return "; ".join(dict.fromkeys(descriptions))


def wall_seconds(alone: CostRange, scaling: float, work: CompileWork, jobs: int) -> EstimateSpan:
    """Return the seconds that work takes with a number of jobs.

    `alone` are the seconds in which one program runs: configure, link, pack, verify.
    """
    # Jobs share caches and memory, so that n of them do the work of n**scaling: see runs.toml.
    speed = jobs**scaling
    return EstimateSpan(
        alone.low + work.seconds / work.spread / speed,
        alone.middle + work.seconds / speed,
        alone.high + work.seconds * work.spread / speed,
    )


def _is_cold_run(facts: Facts, run: MeasuredRun) -> bool:
    """Tell whether a run of this machine compiled everything in its wheel.

    A manifest does not tell what came from a compiler cache. A run counts as cold if it took no
    less than the catalogue expects at least.
    """
    work = _expected_work(facts, run)
    if work is None or run.cpu_seconds is None:
        return False
    return run.cpu_seconds > 0 and run.cpu_seconds >= work.seconds / work.spread


def _expected_work(facts: Facts, run: MeasuredRun) -> CompileWork | None:
    """Return the work of a run by the catalogue."""
    release = find_release_version(facts, run.package, run.release)
    if release is None:
        return None
    images = link_overflow.count_code_images(run.capabilities)
    return catalogue_work(facts, release, images, run_slots(run))


def runs_of_same_build(plan: Plan, runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs of the same build as a plan's, for as many compute capabilities."""
    images = link_overflow.count_code_images(plan.arch_list)
    return [
        run
        for run in runs
        if (run.package, run.release) == (plan.release.package, plan.release.version)
        and link_overflow.count_code_images(run.capabilities) == images
    ]


def _best_basis(
    facts: Facts,
    assumed: CostAssumptions,
    plan: Plan,
    work: CompileWork,
    own_runs: Sequence[MeasuredRun],
) -> tuple[CompileWork, str]:
    """Return the work of a build, and the kind of builds on which it stands.

    It is that of this machine's cold builds of the same, else the catalogue's `work`, corrected by
    how fast this machine built other releases of the package.
    """
    same_builds = runs_of_same_build(plan, own_runs)
    if same_builds:
        mean = geometric_mean(run.cpu_seconds or 1 for run in same_builds)
        own_work = CompileWork(mean, assumed.spread.own, tuple(same_builds[:2]))
        return own_work, "builds of this machine"
    package = plan.release.package
    if any(run.package != package for run in work.runs):
        return work, "builds of other packages"
    with_cuda = bool(link_overflow.count_code_images(plan.arch_list))
    releases = {run.release for run in work.runs if bool(run.capabilities) == with_cuda}
    confidence = "builds of other releases"
    if plan.release.version in releases:
        confidence = "builds of this release"
    # The machine is taken to be as much faster or slower as it was with what it has built.
    ratios: list[float] = []
    for run in own_runs:
        expected = _expected_work(facts, run) if run.package == package else None
        if expected:
            ratios.append((run.cpu_seconds or 1) / expected.seconds)
    factor = geometric_mean(ratios) if ratios else 1.0
    return replace(work, seconds=work.seconds * factor), confidence


def _disk_bytes(facts: Facts, plan: Plan, images: int, part: str) -> CostRange:
    """Return the bytes on disk of a build's "tree", or of its wheel, "packed".

    They follow from the size of the official libraries. If no sizes are recorded, as for dependent
    packages, they are those of measured builds of the package, else of other dependent ones.
    """
    assumed = facts.assumptions
    release = plan.release
    host_bytes = host_library_bytes(facts, release)
    if assumed is None or host_bytes is None:
        return _measured_bytes(facts, release.package, part)
    libraries = float(host_bytes)
    weight = link_overflow.capability_weight(facts, release) if images else None
    if weight:
        libraries += images * weight[0]
    factor = assumed.tree if part == "tree" else assumed.packed
    return CostRange(libraries * factor.low, libraries * factor.high)


def _measured_bytes(facts: Facts, package: str, part: str) -> CostRange:
    """Return the bytes of a part of a dependent package's build, by measured builds."""
    of_package: list[int] = []
    of_dependents: list[int] = []
    for run in facts.runs:
        size = run.tree if part == "tree" else run.wheel
        if size and facts.packages[run.package].after:
            of_dependents.append(size)
            if run.package == package:
                of_package.append(size)
    sizes = of_package or of_dependents
    return CostRange(min(sizes, default=0) / 2, max(sizes, default=0) * 2)


def format_estimate(seconds: float) -> str:
    """Return seconds as people read them: "40 s", "12 min", "2.4 h"."""
    if seconds < 2 * _MINUTE_SECONDS:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR_SECONDS:
        return f"{seconds / _MINUTE_SECONDS:.0f} min"
    return f"{seconds / _HOUR_SECONDS:.1f} h"
