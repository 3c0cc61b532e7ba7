"""Estimate time, memory and disk of a build.

An estimate is based on the catalogue of measured builds (`compile_work`), and on builds that this
machine made before. The work of a build is the processor time of all its compilers. An image is the
device code for one entry of the arch list. docs/explanation/estimates.md explains the assumptions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from torchmill.config.costs import CostAssumptions, CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.plan import link_overflow
from torchmill.plan.compile_work import (
    CompileWork,
    catalogue_work,
    compilers_at_once,
    find_release_version,
    host_library_bytes,
)
from torchmill.plan.job_count import largest_compile
from torchmill.plan.plan import Plan

_MINUTE_SECONDS = 60
_HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class EstimateSpan:
    """A number of seconds with its uncertainty."""

    low: float
    likely: float
    high: float

    def __str__(self) -> str:
        """Return the span as people read it: "about 12 min (9 min to 20 min)"."""
        low = format_estimate(self.low)
        return f"about {format_estimate(self.likely)} ({low} to {format_estimate(self.high)})"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected cost of a build on a machine."""

    wall: EstimateSpan  # duration, with an empty compiler cache
    cpu: EstimateSpan  # processor time of all compilers together
    compile: CostRange  # bytes of memory that one of the largest compiles takes
    memory: CostRange  # bytes of memory of all compiles that run at a time
    tree: CostRange  # bytes on disk of the tree at the end of the build
    wheel: CostRange  # bytes of the wheel
    confidence: str  # the kind of builds that it is based on: "builds of this release"
    basis: str  # these builds: "torch 1.13.1 cpu (c5.12xlarge)"


def estimate_build(
    facts: Facts,
    plan: Plan,
    own_runs: Sequence[MeasuredRun] = (),
    *,
    is_further_python: bool = False,
) -> Estimate | None:
    """Return the cost of carrying out a plan with an empty compiler cache; None if unknown.

    `own_runs` are builds that this machine has made. With `is_further_python`, the tree was
    compiled before for another Python, and only a part is compiled again.
    """
    assumed = facts.costs.assumptions
    images = link_overflow.count_code_images(plan.arch_list)
    work = catalogue_work(facts, plan.release, images, plan.jobs)
    if work is None or assumed is None:
        return None
    cold_runs = [run for run in own_runs if _is_cold_run(facts, run)]
    work, confidence = _best_basis(facts, assumed, plan, work, cold_runs)
    if is_further_python:
        work = replace(work, seconds=work.seconds * assumed.further_python.middle)
    is_dependent = facts.packages[plan.build.package].after is not None
    serial_seconds = assumed.dependent_seconds if is_dependent else assumed.serial_seconds
    largest = largest_compile(facts, plan.build, plan.release.version)
    typical = _typical_compile(facts, largest, images)
    cpu = EstimateSpan(work.seconds / work.spread, work.seconds, work.seconds * work.spread)
    return Estimate(
        wall=wall_seconds(serial_seconds, assumed.scaling, work, plan.jobs),
        cpu=cpu,
        compile=largest,
        memory=CostRange(plan.jobs * typical, plan.jobs * largest.high),
        tree=_disk_bytes(facts, plan, images, "tree"),
        wheel=_disk_bytes(facts, plan, images, "packed"),
        confidence=confidence,
        basis=_describe_runs(work.runs),
    )


def _typical_compile(facts: Facts, largest: CostRange, images: int) -> float:
    """Return a lower bound of the memory that a compile takes on average, in bytes.

    `largest` are the bytes of one of the largest compiles, `images` the number of images.
    """
    averages = [float(run.typical) for run in facts.costs.runs if run.typical]
    if averages and not images:
        return min(*averages, largest.low)
    # Averages were measured only for builds without CUDA. For others, half of the largest compile
    # is assumed.
    return largest.low / 2


def _describe_runs(runs: Iterable[MeasuredRun]) -> str:
    """Return a list of builds as text, each once: "torch 1.13.1 cpu (c5.12xlarge)"."""
    descriptions: list[str] = []
    for run in runs:
        build = f"{run.package} {run.release} {run.variant}".strip()
        descriptions.append(f"{build} ({run.machine})")
    return "; ".join(dict.fromkeys(descriptions))


def wall_seconds(serial: CostRange, scaling: float, work: CompileWork, jobs: int) -> EstimateSpan:
    """Return the duration of a build with a number of compilers at a time.

    `serial` are the seconds in which a single program runs: configure, link, pack, verify.
    """
    # Jobs share caches and memory, so that n of them do the work of n**scaling: see runs.toml.
    speed = jobs**scaling
    return EstimateSpan(
        low=serial.low + work.seconds / work.spread / speed,
        likely=serial.middle + work.seconds / speed,
        high=serial.high + work.seconds * work.spread / speed,
    )


def _is_cold_run(facts: Facts, run: MeasuredRun) -> bool:
    """Tell whether a run of this machine compiled all files, and took none from a compiler cache.

    Records do not tell this. So a run counts as cold if its processor time reaches the least that
    the catalogue expects.
    """
    work = _expected_work(facts, run)
    if work is None or run.cpu_seconds is None:
        return False
    return run.cpu_seconds > 0 and run.cpu_seconds >= work.seconds / work.spread


def _expected_work(facts: Facts, run: MeasuredRun) -> CompileWork | None:
    """Return the work that the catalogue expects for a run's build; None if unknown."""
    release = find_release_version(facts, run.package, run.release)
    if release is None:
        return None
    images = link_overflow.count_code_images(run.capabilities)
    return catalogue_work(facts, release, images, compilers_at_once(run))


def runs_of_same_build(plan: Plan, runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs of a plan's release that compiled the same number of images."""
    images = link_overflow.count_code_images(plan.arch_list)
    same_builds: list[MeasuredRun] = []
    for run in runs:
        same_package = run.package == plan.release.package
        same_release = same_package and run.release == plan.release.version
        if same_release and link_overflow.count_code_images(run.capabilities) == images:
            same_builds.append(run)
    return same_builds


def _best_basis(
    facts: Facts,
    assumed: CostAssumptions,
    plan: Plan,
    work: CompileWork,
    own_runs: Sequence[MeasuredRun],
) -> tuple[CompileWork, str]:
    """Return the work of a build, and the kind of builds that it is based on, as a text.

    `own_runs` are this machine's cold runs. If the same build is among them, the work is their
    mean. Else it is `work`, the catalogue's, times a factor: by so much this machine was slower in
    builds of other releases than the catalogue expects.
    """
    same_builds = runs_of_same_build(plan, own_runs)
    if same_builds:
        # A cold run has a processor time; `or 1` is for the type checker.
        mean = geometric_mean(run.cpu_seconds or 1 for run in same_builds)
        own_work = CompileWork(mean, assumed.spread.same_machine, tuple(same_builds[:2]))
        return own_work, "builds of this machine"
    package = plan.release.package
    if any(run.package != package for run in work.runs):
        return work, "builds of other packages"
    has_cuda = bool(link_overflow.count_code_images(plan.arch_list))
    releases = {run.release for run in work.runs if bool(run.capabilities) == has_cuda}
    confidence = "builds of other releases"
    if plan.release.version in releases:
        confidence = "builds of this release"
    ratios: list[float] = []
    for run in own_runs:
        if run.package != package:
            continue
        expected = _expected_work(facts, run)
        if expected:
            ratios.append((run.cpu_seconds or 1) / expected.seconds)
    factor = geometric_mean(ratios) if ratios else 1.0
    return replace(work, seconds=work.seconds * factor), confidence


def _disk_bytes(facts: Facts, plan: Plan, images: int, part: str) -> CostRange:
    """Return the bytes on disk of a part of a build: "tree", or "packed" for its wheel.

    They are computed from the sizes of the official libraries. For dependent packages, such as
    torchvision, these sizes are not recorded, and measured builds tell.
    """
    assumed = facts.costs.assumptions
    release = plan.release
    host_bytes = host_library_bytes(facts, release)
    if assumed is None or host_bytes is None:
        return _measured_bytes(facts, release.package, part)
    library_bytes = float(host_bytes)
    measured_image = link_overflow.measured_image(facts, release) if images else None
    if measured_image:
        image_bytes, _measured_release = measured_image
        library_bytes += images * image_bytes
    factor = assumed.tree if part == "tree" else assumed.packed
    return CostRange(library_bytes * factor.low, library_bytes * factor.high)


def _measured_bytes(facts: Facts, package: str, part: str) -> CostRange:
    """Return the bytes of a part of a dependent package's build, by measured builds.

    If no build of the package was measured, those of all dependent packages count; if none was
    either, the range is from 0 to 0.
    """
    of_package: list[int] = []
    of_dependents: list[int] = []
    for run in facts.costs.runs:
        size = run.tree if part == "tree" else run.wheel
        if size and facts.packages[run.package].after:
            of_dependents.append(size)
            if run.package == package:
                of_package.append(size)
    sizes = of_package or of_dependents
    # Releases and variants of a package differ, so the bounds are wider by a factor of 2.
    return CostRange(min(sizes, default=0) / 2, max(sizes, default=0) * 2)


def format_estimate(seconds: float) -> str:
    """Return seconds as people read them: "40 s", "12 min", "2.4 h"."""
    # From two minutes or hours on, the rounding changes little.
    if seconds < 2 * _MINUTE_SECONDS:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR_SECONDS:
        return f"{seconds / _MINUTE_SECONDS:.0f} min"
    return f"{seconds / _HOUR_SECONDS:.1f} h"
