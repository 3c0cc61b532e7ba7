"""Estimate time, memory and disk of a build from measured builds; what it takes in shares on several machines."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill.config.arch_list import format_arch_list
from torchmill.config.build import CPU
from torchmill.config.costs import CostAssumptions, CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.release import Release
from torchmill.core.strict_json import parse_json
from torchmill.core.units import format_bytes
from torchmill.host.host import Host
from torchmill.host.native import native_arch
from torchmill.plan import link_overflow, published
from torchmill.plan.arch_choice import find_arch_problems, shortest_arch_list
from torchmill.plan.arch_toolkits import find_toolkit
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.cell import Cell
from torchmill.plan.compile_costs import release_costs
from torchmill.plan.drivers import is_driven
from torchmill.plan.job_count import largest_compile
from torchmill.plan.link_overflow import OverflowRisk
from torchmill.plan.plan import Plan
from torchmill.plan.published import GITHUB_LARGEST, PYPI_LARGEST
from torchmill.plan.settings import heavier_settings

DAYS_PER_YEAR = 365.25
_LARGEST = {
    "PyPI takes unless it grants more (100 MiB)": PYPI_LARGEST,
    "a release on GitHub takes (2 GiB)": GITHUB_LARGEST,
}
OwnRuns = Sequence[MeasuredRun]  # builds that the same machine has made (`read_own_runs`)
_FURTHER = " in the tree of the first Python"
HOST_LIBRARIES = ("libtorch_cpu", "libcaffe2.so", "libtorch_python")
MINUTE_SECONDS, HOUR_SECONDS = 60, 3600
_WITH_CUDA = "torch with CUDA"  # of what is installed: from PyPI, with what it requires
_OWN = CostRange(
    0.95, 1.1
)  # of what the same build took on this machine: another Python differs by so much
UNEVEN = (
    1.1  # times the mean: the longest share of a real graph (docs/measurements/several-machines.md)
)
ONE_IS_ENOUGH_SECONDS = (
    90 * 60
)  # a build that one machine makes in this time is not worth a queue of jobs
WORTH = 1.25  # times the machine time of one machine, for which more of them are still advised


@dataclass(frozen=True, slots=True)
class CompileWork:
    """Seconds of one core that compiling takes, and what says so."""

    seconds: float
    spread: float  # a factor either way
    runs: tuple[MeasuredRun, ...]  # those that count most


def catalogue_work(facts: Facts, release: Release, images: int, jobs: int) -> CompileWork | None:
    """Return the work of a build by the catalogue.

    `images` is how often device code is compiled (count_code_images), 0 without CUDA. None where no run says anything.
    """
    if facts.assumed is None:
        return None
    own = [run for run in facts.runs if run.package == release.package]
    if not own:
        own = [run for run in facts.runs if _are_similar(facts, run.package, release.package)]
    host = _weighted_mean(
        facts, facts.assumed, release, jobs, [run for run in own if not run.capabilities]
    )
    found = host
    if images:
        device = _weighted_mean(
            facts, facts.assumed, release, jobs, [run for run in own if run.capabilities]
        )
        if device is None:
            return None
        seconds = images * device.seconds + (
            host.seconds if host else 0.0
        )  # extensions have hardly any for the host
        found = CompileWork(seconds, facts.assumed.spread.cuda, device.runs)
    if found and any(run.package != release.package for run in found.runs):
        found = replace(found, spread=facts.assumed.spread.other)
    return found


def _are_similar(facts: Facts, one: str, other: str) -> bool:
    """Tell whether two packages are upstream's own beside the same one: they are of one size; extensions are of any."""
    first, second = facts.packages[one], facts.packages[other]
    own = first.repository and second.repository  # what is declared in one file comes from an index
    return bool(own) and first.after is not None and first.after == second.after


def _weighted_mean(
    facts: Facts, assumed: CostAssumptions, release: Release, jobs: int, runs: Iterable[MeasuredRun]
) -> CompileWork | None:
    """Return the weighted geometric mean of what runs show: all work, or that of one image of device code."""
    weighed = []
    for run in runs:
        theirs = find_release_version(facts, run.package, run.release)
        seconds = _work_of_run(facts, assumed, run, theirs)
        if theirs is not None and seconds is not None:
            scale = 1.0 if run.capabilities else _size_ratio(facts, release, theirs)
            away = _years(release, theirs) / assumed.years + abs(math.log(jobs / run_slots(run)))
            weighed.append((math.exp(-away), math.log(seconds * scale), run))
    if not weighed:
        return None
    mean = sum(weight * value for weight, value, _ in weighed) / sum(
        weight for weight, _, _ in weighed
    )
    nearest = sorted(weighed, key=lambda one: -one[0])[:2]
    return CompileWork(math.exp(mean), assumed.spread.cpu, tuple(run for _, _, run in nearest))


def _work_of_run(
    facts: Facts, assumed: CostAssumptions, run: MeasuredRun, release: Release | None
) -> float | None:
    """Return the work that a run shows; of a run with CUDA, that of one image of device code."""
    seconds = run.cpu_seconds
    if seconds is None and run.wall_seconds is not None and run.cores is not None:
        overhead = assumed.serial_seconds.middle + (
            assumed.job_seconds.middle if run.scope == "job" else 0
        )
        seconds = (
            max(run.wall_seconds - overhead, run.wall_seconds / 4)
            * run_slots(run) ** assumed.scaling
        )
    if seconds is None or release is None or not run.capabilities:
        return seconds
    host = catalogue_work(facts, release, 0, run_slots(run))
    rest = seconds - (host.seconds if host else 0)
    return max(rest, seconds / 4) / link_overflow.count_code_images(run.capabilities)


def find_release_version(facts: Facts, package: str, version: str) -> Release | None:
    """Return a release by its version."""
    return next((one for one in facts.releases.get(package, ()) if one.version == version), None)


def run_slots(run: MeasuredRun) -> int:
    """Return how many compilers a run had at a time."""
    return max(1, min(run.jobs or run.cores or 1, run.cores or run.jobs or 1))


def host_library_bytes(facts: Facts, release: Release) -> int | None:
    """Return the bytes of the official libraries without device code, of the nearest release that says."""
    order = facts.releases[release.package]
    here = order.index(release)
    nearest = sorted(range(len(order)), key=lambda index: abs(index - here))
    return next(filter(None, (_host_size(order[index]) for index in nearest)), None)


def _host_size(release: Release) -> int:
    found = {name: size for name, size in release.sizes.items() if name.startswith(HOST_LIBRARIES)}
    # from 1.2 to 1.4 one library held everything, and what is left says nothing
    return sum(found.values()) if any(name.startswith(HOST_LIBRARIES[:2]) for name in found) else 0


def _size_ratio(facts: Facts, release: Release, other: Release) -> float:
    """Return how much larger than the other's a release's libraries without device code are."""
    if release.package != other.package:
        return 1.0
    mine, theirs = host_library_bytes(facts, release), host_library_bytes(facts, other)
    return mine / theirs if mine and theirs else 1.0


def _years(release: Release, other: Release) -> float:
    """Return how far two releases are apart; nothing where a date is not known."""
    if release.date is None or other.date is None:
        return 0.0
    return (
        abs((date.fromisoformat(release.date) - date.fromisoformat(other.date)).days)
        / DAYS_PER_YEAR
    )


@dataclass(frozen=True, slots=True)
class EstimateSpan:
    """A quantity with its uncertainty."""

    low: float
    likely: float
    high: float

    def __str__(self) -> str:
        """Return seconds as people read them: "about 12 min (9 min to 20 min)"."""
        return f"about {format_estimate(self.likely)} ({format_estimate(self.low)} to {format_estimate(self.high)})"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build is expected to cost on a machine."""

    wall: EstimateSpan  # seconds, with a cold compiler cache
    cpu: EstimateSpan  # seconds of all compilers together
    compile: CostRange  # bytes that one of the largest compiles takes
    memory: CostRange  # bytes of all compiles in flight together
    tree: CostRange  # bytes on disk while it is built
    wheel: CostRange  # bytes in dist/
    confidence: str  # what it stands on in a word: "builds of this release"
    basis: str  # the runs it stands on


def estimate_build(
    facts: Facts, plan: Plan, own: OwnRuns = (), *, further: bool = False
) -> Estimate | None:
    """Return what carrying out a plan costs with a cold compiler cache; None where nothing is known.

    A `further` Python has the first one's tree.
    """
    images = link_overflow.count_code_images(plan.arch_list)
    known = catalogue_work(facts, plan.release, images, plan.jobs)
    assumed = facts.assumed
    if known is None or assumed is None:
        return None
    found, confidence = _best_basis(
        facts, assumed, plan, known, [run for run in own if is_cold_run(facts, run)]
    )
    if further:
        found = replace(found, seconds=found.seconds * assumed.further_python.middle)
    compiled = largest_compile(facts, plan.build, plan.release.version)
    measured = [
        float(run.typical) for run in facts.runs if run.typical
    ]  # bytes of a compile, averaged over time
    average = min([*measured, compiled.low]) if measured and not images else compiled.low / 2
    alone = (
        assumed.dependent_seconds
        if facts.packages[plan.build.package].after
        else assumed.serial_seconds
    )
    described = (
        f"{run.package} {run.release} {run.variant}".strip() + f" ({run.machine})"
        for run in found.runs
    )
    return Estimate(
        wall=wall_seconds(alone, assumed.scaling, found, plan.jobs),
        cpu=EstimateSpan(found.seconds / found.spread, found.seconds, found.seconds * found.spread),
        compile=compiled,
        memory=CostRange(plan.jobs * average, plan.jobs * compiled.high),
        tree=_disk_bytes(facts, plan, images, "tree"),
        wheel=_disk_bytes(facts, plan, images, "packed"),
        confidence=confidence,
        basis="; ".join(dict.fromkeys(described)),
    )


def wall_seconds(alone: CostRange, scaling: float, found: CompileWork, jobs: int) -> EstimateSpan:
    """Return the seconds that work takes with so many jobs, after `alone`, in which one program runs."""
    speed = jobs**scaling
    return EstimateSpan(
        alone.low + found.seconds / found.spread / speed,
        alone.middle + found.seconds / speed,
        alone.high + found.seconds * found.spread / speed,
    )


def is_cold_run(facts: Facts, run: MeasuredRun) -> bool:
    """Tell whether a run compiled all that it made.

    A manifest does not say what came from a compiler cache: a run is believed that took no less than the
    least that the catalogue expects.
    """
    known = _expected_work(facts, run)
    return bool(known and run.cpu_seconds and run.cpu_seconds >= known.seconds / known.spread)


def _expected_work(facts: Facts, run: MeasuredRun) -> CompileWork | None:
    release = find_release_version(facts, run.package, run.release)
    images = link_overflow.count_code_images(run.capabilities)
    return catalogue_work(facts, release, images, run_slots(run)) if release else None


def _same_builds(plan: Plan, own: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs that built what a plan builds, for as many capabilities."""
    what = (
        plan.release.package,
        plan.release.version,
        link_overflow.count_code_images(plan.arch_list),
    )
    return [
        run
        for run in own
        if (run.package, run.release, link_overflow.count_code_images(run.capabilities)) == what
    ]


def _best_basis(
    facts: Facts,
    assumed: CostAssumptions,
    plan: Plan,
    known: CompileWork,
    own: Sequence[MeasuredRun],
) -> tuple[CompileWork, str]:
    """Return the catalogue's work unless this machine's cold builds have shown better, and how sure that is."""
    if same := _same_builds(plan, own):
        mean = geometric_mean(run.cpu_seconds or 1 for run in same)
        return CompileWork(mean, assumed.spread.own, tuple(same[:2])), "builds of this machine"
    if any(run.package != plan.release.package for run in known.runs):
        return known, "builds of other packages"
    images = link_overflow.count_code_images(plan.arch_list)
    theirs = {run.release for run in known.runs if bool(run.capabilities) == bool(images)}
    near = (
        "builds of this release" if plan.release.version in theirs else "builds of other releases"
    )
    mine = [
        (run.cpu_seconds or 1, _expected_work(facts, run))
        for run in own
        if run.package == plan.release.package
    ]
    ratios = [took / work.seconds for took, work in mine if work]
    # this machine is as much faster or slower as it was with what it has built
    factor = geometric_mean(ratios) if ratios else 1.0
    return replace(known, seconds=known.seconds * factor), near


def _disk_bytes(facts: Facts, plan: Plan, images: int, what: str) -> CostRange:
    """Return bytes on disk: of the libraries' size, or for a dependent package, of its builds, else of its kind's."""
    assumed, release = facts.assumed, plan.release
    host = host_library_bytes(facts, release)
    if assumed is None or host is None:
        sizes = ((run.package, run.tree if what == "tree" else run.wheel) for run in facts.runs)
        alike = [(name, size) for name, size in sizes if size and facts.packages[name].after]
        seen = [size for name, size in alike if name == release.package] or [
            size for _, size in alike
        ]
        return CostRange(min(seen, default=0) / 2, max(seen, default=0) * 2)
    weighed = link_overflow.capability_weight(facts, release) if images else None
    libraries = host + (images * weighed[0] if weighed else 0)
    factor = {"tree": assumed.tree, "packed": assumed.packed}[what]
    return CostRange(libraries * factor.low, libraries * factor.high)


def read_own_runs(facts: Facts, dist: Path) -> tuple[MeasuredRun, ...]:
    """Read what the wheels in `dist` cost; a manifest that cannot be read is no run.

    Wheels for another arch were built in a container, emulated: they say nothing of this machine.
    """
    others = tuple(f"_{arch}.whl.json" for arch in facts.arches if arch != native_arch())
    paths = (path for path in sorted(dist.glob("*.whl.json")) if not path.name.endswith(others))
    return tuple(run for path in paths if (run := _read_run(facts, path)) is not None)


def _read_run(facts: Facts, manifest: Path) -> MeasuredRun | None:
    try:
        said = parse_json(manifest.read_text(encoding="utf-8"))
        release = next(
            one.version for one in facts.releases[said["package"]] if one.tag == said["tag"]
        )
        toolkit = facts.toolkit(said.get("toolkit"))
        return MeasuredRun(
            package=said["package"],
            release=release,
            variant=toolkit.variant if toolkit else CPU,
            machine="this machine",
            arch=native_arch(),
            scope="compile",
            source=manifest.name.removesuffix(".json"),
            jobs=int(said["jobs"]),
            cpu_seconds=float(said["cpu_seconds"]),
            wall_seconds=float(sum(said["seconds"].values())),
            wheel=int(said["size"]),
            tree=_disk_use(said, "tree", "outputs"),
            environment=_disk_use(said, "environment"),
            capabilities=said["switches"].get("TORCH_CUDA_ARCH_LIST", ""),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def _disk_use(said: dict[str, Any], *parts: str) -> int | None:
    """Return the bytes that parts of a build took; older manifests do not say."""
    disk = said.get("disk")
    return sum(int(disk[part]) for part in parts) if disk else None


def estimate_as_data(
    facts: Facts, plan: Plan, own: OwnRuns = (), gpus: Sequence[Capability] = ()
) -> dict[str, Any]:
    """Return the estimate and the risk as JSON-ready data; null where nothing is known.

    What is proposed against the risk serves `gpus`.
    """
    estimate, risk = estimate_build(facts, plan, own), _risk(facts, plan, gpus)
    return {
        "estimate": asdict(estimate) if estimate else None,
        "overflow": asdict(risk) if risk else None,
    }


def estimate_as_text(
    facts: Facts, plan: Plan, memory: int, own: OwnRuns = (), gpus: Sequence[Capability] = ()
) -> str:
    """Return the estimate and the risk for a person to read; `memory` is what the build may use, in bytes.

    What is proposed against the risk serves `gpus`.
    """
    estimate, risk = estimate_build(facts, plan, own), _risk(facts, plan, gpus)
    lines = (
        ["", "estimate", *(f"  {line}" for line in _estimate_lines(estimate, memory))]
        if estimate
        else []
    )
    if risk is not None and risk.level != "none":
        lines += [
            "",
            f"warning: {risk.sentence}:",
            '  "relocation truncated to fit" would end the build',
        ]
        lines += [f"  instead: {cure}" for cure in risk.cures]
    return "\n".join(lines)


def cost_rows(
    facts: Facts, plan: Plan, own: OwnRuns = (), *, further: bool = False
) -> dict[str, str]:
    """Return what a build costs in a line each: time, memory, disk; what may go wrong at its end."""
    found, risk = estimate_build(facts, plan, own, further=further), _risk(facts, plan)
    rows = {"time": "unknown: nothing like it was ever measured"}
    if found is not None:
        rows["time"] = (
            f"{found.wall}{_FURTHER * further}, judged by {found.confidence}{_on_boards(plan, own)}"
        )
        rows |= {"memory": found.memory.in_bytes, "disk": f"{found.tree.in_bytes} for the tree"}
    return rows | ({"risk": risk.sentence} if risk is not None and risk.level != "none" else {})


def expected_duration(facts: Facts, plan: Plan, own: OwnRuns = (), *, further: bool = False) -> str:
    """Return a sentence on how long carrying out a plan takes, as `estimate_build`; "" where nothing is known."""
    estimate = estimate_build(facts, plan, own, further=further)
    less = f", less with what the compiler cache has{_on_boards(plan, own)}"
    heavier = ", ".join(setting.name for setting in heavier_settings(plan.variables))
    more = f", and more with {heavier}, which nobody measured" if heavier else ""
    return f"expected to take {estimate.wall}{_FURTHER * further}{less}{more}" if estimate else ""


def _on_boards(plan: Plan, own: OwnRuns) -> str:
    """Return what the time leaves out: what was measured of aarch64 are servers and a laptop."""
    boards = "much longer on a small board such as a Raspberry Pi, or in an emulator without cross compilers"
    return "" if own or plan.build.arch != "aarch64" else f"; {boards}"


def saving_for_gpus(
    facts: Facts, cell: Cell, host: Host, options: Options = NO_OPTIONS
) -> list[str]:
    """Return a sentence on how much sooner a build ends with the shortest list for the GPUs of a host.

    Nothing where a list was asked for, toolkit, release or driver does not serve them, or it is no shorter.
    """
    toolkit = (
        find_toolkit(facts, "--toolkit", options.toolkit)
        if options.toolkit
        else facts.toolkit(cell.build.cuda)
    )
    listed_already = options.arch_list or "TORCH_CUDA_ARCH_LIST" in options.settings
    gpus = [
        gpu_capability(facts, gpu)
        for gpu in published.target_host(facts, host, cell.build.arch).gpus.devices
    ]
    able = [gpu for gpu in gpus if gpu and toolkit and gpu.name in toolkit.capabilities]
    if (
        toolkit is None
        or listed_already
        or not able
        or able != gpus
        or not is_driven(toolkit, host)
    ):
        return []
    shortest = shortest_arch_list(facts, able)
    if any(
        find_arch_problems(facts, shortest, toolkit, cell.release)
    ):  # which refuses what nobody asked for
        return []
    listed = format_arch_list(shortest)
    plans = [
        compute_plan(facts, cell, host, replace(options, arch_list=one)) for one in (listed, None)
    ]
    short, whole = (
        found.wall.likely if (found := estimate_build(facts, plan)) else 0.0 for plan in plans
    )
    took = f"{plans[0].identifier} of {cell.release} then takes about {format_estimate(short)}"
    word = (
        "required" if any(gpu.tegra for gpu in able) else "enough"
    )  # a board runs no code but its own
    sentence = f"for the GPUs here `--arch-list '{listed}'` is {word}: {took} instead of {format_estimate(whole)}"
    return [sentence] if short < whole else []


def _risk(facts: Facts, plan: Plan, gpus: Sequence[Capability] = ()) -> OverflowRisk | None:
    cuda = plan.cuda.toolkit
    return (
        link_overflow.predict_overflow(facts, plan.release, cuda, plan.variables, gpus)
        if cuda
        else None
    )


def _estimate_lines(estimate: Estimate, memory: int) -> list[str]:
    few = f"  at worst more than the {format_bytes(memory)} there is: the guard then lets fewer run"
    return [
        f"time: {estimate.wall}",
        f"  with an empty compiler cache; {format_estimate(estimate.cpu.likely)} of processor time",
        f"memory: {estimate.memory.in_bytes} by all compiles together",
        f"  {estimate.compile.in_bytes} by each of the largest",
        *([few] if estimate.memory.high > memory else []),
        f"disk: {estimate.tree.in_bytes} for the tree, {estimate.wheel.in_bytes} for the wheel",
        *(
            f"  at worst a larger file than {one}"
            for one, most in _LARGEST.items()
            if estimate.wheel.high > most
        ),
        f"judged by {estimate.confidence}: {estimate.basis}",
    ]


def format_estimate(seconds: float) -> str:
    """Return seconds as people read them: "40 s", "12 min", "2.4 h"."""
    if seconds < 2 * MINUTE_SECONDS:
        return f"{seconds:.0f} s"
    return (
        f"{seconds / MINUTE_SECONDS:.0f} min"
        if seconds < 2 * HOUR_SECONDS
        else f"{seconds / HOUR_SECONDS:.1f} h"
    )


def storage_needs(facts: Facts, plan: Plan, own: OwnRuns = ()) -> Mapping[str, CostRange] | None:
    """Return the bytes that each part of a build takes; the trial is the clean environment that tries the wheel.

    The tree counts with all that is made of it; the cache is the compiler cache with the kept members, if an estimate
    knows it. `own` are builds of this machine. None where no sizes are assumed.
    """
    if facts.assumed is None:
        return None
    expected = estimate_build(facts, plan)
    same = _same_builds(plan, own)
    usual = facts.packages[plan.release.package].disk
    made = expected.tree + expected.wheel if expected else CostRange(usual, usual)
    parts = {
        "tree": _measured_storage(run.tree for run in same) or made,
        "kit": _installed(facts.assumed, plan.tree.kit),
        "environment": _measured_storage(run.environment for run in same)
        or _environment(facts, facts.assumed, plan),
        "trial": _installed(facts.assumed, ["venv"]) + _installed_base(facts, facts.assumed, plan),
    }
    if expected:
        parts["cache"] = _cached(facts, facts.assumed, plan, expected.wheel)
    return parts


def _measured_storage(sizes: Iterable[int | None]) -> CostRange | None:
    """Return the range of what was measured, a little wider; None where nothing was."""
    known = [size for size in sizes if size]
    return CostRange(min(known) * _OWN.low, max(known) * _OWN.high) if known else None


def _installed(assumed: CostAssumptions, requirements: Iterable[str]) -> CostRange:
    """Return the bytes that requirements take."""
    names = [canonicalize_name(Requirement(line).name) for line in requirements]
    size = sum(assumed.installed.get(name, assumed.installed.get("other", 0)) for name in names)
    return CostRange(size / assumed.installed_spread, size * assumed.installed_spread)


def _environment(facts: Facts, assumed: CostAssumptions, plan: Plan) -> CostRange:
    """Return the bytes of the session's environment; that of a dependent package holds the one it is for."""
    wheels = [line for line in plan.requirements if line.endswith(".whl")]
    base = facts.packages[plan.release.package].after
    projects = [
        line
        for line in plan.requirements
        if line not in wheels and not line.startswith(f"{base}==")
    ]
    tools = _installed(assumed, (*projects, "venv"))
    return tools + _installed_base(facts, assumed, plan) if base else tools


def _installed_base(facts: Facts, assumed: CostAssumptions, plan: Plan) -> CostRange:
    """Return the bytes that the base of a dependent package, or torch itself, takes where it is installed."""
    base = facts.packages[plan.release.package].after
    release = find_release_version(facts, base, plan.release.torch or "") if base else plan.release
    if release is None:
        return CostRange(0, 0)
    from_pypi = (
        base is not None and "+" not in (plan.wheel.torch or "") and plan.build.arch == "x86_64"
    )
    if plan.cuda.toolkit or (from_pypi and release.cuda_pypi):
        size = assumed.installed.get(_WITH_CUDA, 0)
        return CostRange(size / assumed.installed_spread, size * assumed.installed_spread)
    libraries = host_library_bytes(facts, release) or 0
    # its headers come on top of the libraries
    return CostRange(libraries / assumed.installed_spread, libraries * assumed.tree.low)


def _cached(facts: Facts, assumed: CostAssumptions, plan: Plan, wheel: CostRange) -> CostRange:
    """Return what the caches take in: nothing where all is there already, else every object and member."""
    libraries = host_library_bytes(facts, plan.release) or 0
    images = max(wheel.high / assumed.packed.high, libraries)
    return CostRange(assumed.cached.low * libraries, assumed.cached.high * images + wheel.high)


@dataclass(frozen=True, slots=True)
class SharedBuild:
    """A build in so many shares, each on a machine of its own, and a last build that finds what they compiled."""

    machines: int
    share: float  # seconds of the longest share; of one machine, the whole build
    finish: float  # seconds of the last build; 0 for one machine

    @property
    def wall(self) -> float:
        """Return the seconds until the wheel is there, without queues and uploads."""
        return self.share + self.finish

    @property
    def machine_seconds(self) -> float:
        """Return the seconds of all machines together."""
        return self.machines * self.share + self.finish


def longest_compile(facts: Facts, release: Release) -> float:
    """Return the seconds of the longest compile that is known of a release, 0 for none; of device code none is."""
    known = release_costs(facts.units, release.package, release.version)
    return max((one.seconds for one in known if one.seconds), default=0.0)


def forecast_shares(
    assumed: CostAssumptions, estimate: Estimate, jobs: int, longest: float, counts: Iterable[int]
) -> Iterator[SharedBuild]:
    """Yield the build on each number of machines, all of which run so many jobs at a time.

    `longest` are the seconds of the longest compile: no share is shorter.
    """
    compiling = estimate.cpu.likely / jobs**assumed.scaling
    alone = estimate.wall.likely - compiling  # in which one program runs
    prepared = assumed.share_seconds.middle
    for count in counts:
        if count == 1:
            yield SharedBuild(1, estimate.wall.likely, 0.0)
        else:
            yield SharedBuild(
                count, prepared + max(compiling * UNEVEN / count, longest), prepared + alone
            )


def advised_machines(builds: Sequence[SharedBuild]) -> SharedBuild:
    """Return the quickest of builds that is worth its machines; the first is that of one machine."""
    one = builds[0]
    if one.wall <= ONE_IS_ENOUGH_SECONDS:
        return one
    return min(
        (each for each in builds if each.machine_seconds <= WORTH * one.machine_seconds),
        key=lambda it: it.wall,
    )
