"""How long compiling a release takes by the catalogue of measured builds (runs.toml)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date

from torchmill.config.costs import CostAssumptions, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.plan import link_overflow

_DAYS_PER_YEAR = 365.25
# Libraries of torch without device code. libcaffe2.so was the main one until 1.4.
_HOST_LIBRARIES = ("libtorch_cpu", "libcaffe2.so", "libtorch_python")
_MAIN_HOST_LIBRARIES = _HOST_LIBRARIES[:2]


@dataclass(frozen=True, slots=True)
class CompileWork:
    """Seconds of one core that compiling takes, and the measured builds that show it."""

    seconds: float
    spread: float  # a factor either way
    runs: tuple[MeasuredRun, ...]  # those that count most


def catalogue_work(facts: Facts, release: Release, images: int, jobs: int) -> CompileWork | None:
    """Return the work of a build by the catalogue; None if no measured build tells anything.

    `images` is how often device code is compiled (`count_code_images`), 0 without CUDA.
    """
    if facts.assumptions is None:
        return None
    runs = [run for run in facts.runs if run.package == release.package]
    if not runs:
        runs = [run for run in facts.runs if _are_similar(facts, run.package, release.package)]
    host_runs = [run for run in runs if not run.capabilities]
    host_work = _weighted_mean(facts, facts.assumptions, release, jobs, host_runs)
    work = host_work
    if images:
        device_runs = [run for run in runs if run.capabilities]
        device_work = _weighted_mean(facts, facts.assumptions, release, jobs, device_runs)
        if device_work is None:
            return None
        seconds = images * device_work.seconds
        # Extensions have hardly any code for the host, and no run without CUDA.
        if host_work:
            seconds += host_work.seconds
        work = CompileWork(seconds, facts.assumptions.spread.cuda, device_work.runs)
    if work and any(run.package != release.package for run in work.runs):
        work = replace(work, spread=facts.assumptions.spread.other)
    return work


def _are_similar(facts: Facts, first_name: str, second_name: str) -> bool:
    """Tell whether two packages are of one size: upstream's own, built against the same one.

    Extensions are of any size. What is declared in one file comes from an index and has no
    repository.
    """
    first = facts.packages[first_name]
    second = facts.packages[second_name]
    if not first.repository or not second.repository:
        return False
    return first.after is not None and first.after == second.after


def _weighted_mean(
    facts: Facts, assumed: CostAssumptions, release: Release, jobs: int, runs: Iterable[MeasuredRun]
) -> CompileWork | None:
    """Return the weighted geometric mean of the work that runs show.

    Of runs with CUDA, it is the work of one image of device code. A run weighs less the farther
    its release is away in time, and the more its number of jobs differs.
    """
    weighted: list[tuple[float, float, MeasuredRun]] = []  # weight, logarithm of seconds, run
    for run in runs:
        run_release = find_release_version(facts, run.package, run.release)
        seconds = _work_of_run(facts, assumed, run, run_release)
        if run_release is None or seconds is None:
            continue
        # Code for the host grows with the release. Device code is counted by images, and how large
        # an image of each release is was never measured.
        scale = 1.0 if run.capabilities else _size_ratio(facts, release, run_release)
        distance = _years_between(release, run_release) / assumed.years
        distance += abs(math.log(jobs / run_slots(run)))
        weighted.append((math.exp(-distance), math.log(seconds * scale), run))
    if not weighted:
        return None
    total = sum(weight for weight, _, _ in weighted)
    mean = sum(weight * logarithm for weight, logarithm, _ in weighted) / total
    weighted.sort(key=lambda entry: entry[0], reverse=True)
    heaviest = tuple(run for _, _, run in weighted[:2])
    return CompileWork(math.exp(mean), assumed.spread.cpu, heaviest)


def _work_of_run(
    facts: Facts, assumed: CostAssumptions, run: MeasuredRun, release: Release | None
) -> float | None:
    """Return the seconds of work that a run shows; with CUDA, those of one image of device code."""
    seconds = run.cpu_seconds
    if seconds is None and run.wall_seconds is not None and run.cores is not None:
        overhead = assumed.serial_seconds.middle
        if run.scope == "job":
            overhead += assumed.job_seconds.middle
        # The overhead is only assumed: of a short run, it must not leave nothing.
        parallel = max(run.wall_seconds - overhead, run.wall_seconds / 4)
        seconds = parallel * run_slots(run) ** assumed.scaling
    if seconds is None or release is None or not run.capabilities:
        return seconds
    host_work = catalogue_work(facts, release, 0, run_slots(run))
    device_seconds = seconds
    if host_work:
        device_seconds -= host_work.seconds
    images = link_overflow.count_code_images(run.capabilities)
    return max(device_seconds, seconds / 4) / images


def find_release_version(facts: Facts, package: str, version: str) -> Release | None:
    """Return a release by its version; None if there is none."""
    for release in facts.releases.get(package, ()):
        if release.version == version:
            return release
    return None


def run_slots(run: MeasuredRun) -> int:
    """Return how many compilers a run had at a time."""
    jobs = run.jobs or run.cores or 1
    cores = run.cores or run.jobs or 1
    return max(1, min(jobs, cores))


def host_library_bytes(facts: Facts, release: Release) -> int | None:
    """Return the bytes of the official libraries without device code.

    They are those of the nearest release for which they are recorded; None if there is none.
    """
    releases = facts.releases[release.package]
    # To compare versions is twenty times as fast as to compare whole releases.
    names = [(candidate.version, candidate.torch) for candidate in releases]
    position = names.index((release.version, release.torch))
    nearest = sorted(range(len(releases)), key=lambda index: abs(index - position))
    for index in nearest:
        size = _host_library_bytes(releases[index])
        if size:
            return size
    return None


def _host_library_bytes(release: Release) -> int:
    """Return the bytes of a release's own host libraries; 0 if they are not recorded.

    From 1.2 to 1.4, one library held everything, device code too: without a main host library,
    the rest tells nothing.
    """
    if not any(name.startswith(_MAIN_HOST_LIBRARIES) for name in release.sizes):
        return 0
    return sum(size for name, size in release.sizes.items() if name.startswith(_HOST_LIBRARIES))


def _size_ratio(facts: Facts, release: Release, other: Release) -> float:
    """Return the size of a release's libraries without device code, in units of another's."""
    if release.package != other.package:
        return 1.0
    size = host_library_bytes(facts, release)
    other_size = host_library_bytes(facts, other)
    return size / other_size if size and other_size else 1.0


def _years_between(release: Release, other: Release) -> float:
    """Return how many years two releases are apart; 0 if a date is not known."""
    if release.date is None or other.date is None:
        return 0.0
    apart = date.fromisoformat(release.date) - date.fromisoformat(other.date)
    return abs(apart.days) / _DAYS_PER_YEAR
