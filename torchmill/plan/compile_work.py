"""How long compiling a release takes, estimated from the catalogue of measured builds (runs.toml).

The work of a build is the processor time of its compilers. It is the sum of the work on code for
the host and the work on device code, which is compiled once for each image: each entry of
TORCH_CUDA_ARCH_LIST makes an image, and PTX another one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from typing import NamedTuple

from torchmill.config.costs import CostAssumptions, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.plan import link_overflow

_DAYS_PER_YEAR = 365.25
# Libraries of torch without device code: libcaffe2.so in 1.0 and 1.1, libtorch_cpu since 1.5.
_MAIN_HOST_LIBRARIES = ("libtorch_cpu", "libcaffe2.so")
_HOST_LIBRARIES = (*_MAIN_HOST_LIBRARIES, "libtorch_python")
# What is subtracted from a run's time, its overhead or its work for the host, is only estimated. At
# least this share of the time is left.
_LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CompileWork:
    """The work of a build, and the measured builds by which it is judged."""

    seconds: float  # processor time of all compilers together
    spread: float  # the factor by which `seconds` may be too high or too low
    runs: tuple[MeasuredRun, ...]  # the most similar measured builds


class _MeanWork(NamedTuple):
    """The mean of some runs' work, and the runs with the most weight in it."""

    seconds: float  # of code for the host, or of one image of device code
    runs: tuple[MeasuredRun, ...]


class _WeightedRun(NamedTuple):
    """The work of a release by one run, and the logarithm of the run's weight in the mean."""

    run: MeasuredRun
    seconds: float
    logarithm: float


def catalogue_work(facts: Facts, release: Release, images: int, jobs: int) -> CompileWork | None:
    """Return the work of a build by the catalogue; None if no measured build is similar.

    `images` is the number of images of device code (`count_code_images`), 0 without CUDA. `jobs` is
    the number of compilers at a time.
    """
    assumed = facts.costs.assumptions
    if assumed is None:
        return None
    runs = [run for run in facts.costs.runs if run.package == release.package]
    if not runs:
        runs = [
            run for run in facts.costs.runs if _are_similar(facts, run.package, release.package)
        ]
    host_runs = [run for run in runs if not run.capabilities]
    host_work = _weighted_mean(facts, assumed, release, jobs, host_runs)
    if images:
        device_runs = [run for run in runs if run.capabilities]
        device_work = _weighted_mean(facts, assumed, release, jobs, device_runs)
        if device_work is None:
            return None
        seconds = images * device_work.seconds
        # Extensions have hardly any code for the host, and no run without CUDA.
        if host_work is not None:
            seconds += host_work.seconds
        work = CompileWork(seconds, assumed.spread.cuda, device_work.runs)
    elif host_work is None:
        return None
    else:
        work = CompileWork(host_work.seconds, assumed.spread.cpu, host_work.runs)
    if any(run.package != release.package for run in work.runs):
        work = replace(work, spread=assumed.spread.other)
    return work


def _are_similar(facts: Facts, first_name: str, second_name: str) -> bool:
    """Tell whether two packages take about the same work: torchvision and torchaudio do.

    They do if both are upstream's own and are built against the same package. Third-party
    extensions may be of any size; these are fetched from PyPI, and so have no repository here.
    """
    # Neither is missing: runs of packages without facts are left out with these.
    first = facts.packages[first_name]
    second = facts.packages[second_name]
    if not first.source.repository or not second.source.repository:
        return False
    return first.after is not None and first.after == second.after


def _weighted_mean(
    facts: Facts, assumed: CostAssumptions, release: Release, jobs: int, runs: Iterable[MeasuredRun]
) -> _MeanWork | None:
    """Return the work of a release as the weighted geometric mean of the work of runs.

    For runs with CUDA, it is the work of one image of device code. A run weighs less the more years
    its release is apart, and the more its number of jobs differs. None if no run has a weight.
    """
    weighted: list[_WeightedRun] = []
    for run in runs:
        run_release = find_release_version(facts, run.package, run.release)
        if run_release is None:
            continue
        seconds = _work_of_run(facts, assumed, run, run_release)
        if not seconds:
            continue
        # Work on code for the host is taken to grow with the size of the libraries. Work on an
        # image of device code is not scaled: its size was never measured for each release.
        scale = 1.0
        if not run.capabilities:
            scale = _size_ratio(facts, release, run_release)
        distance = _years_between(release, run_release) / assumed.years
        distance += abs(math.log(jobs / compilers_at_once(run)))
        weighted.append(_WeightedRun(run, seconds * scale, -distance))
    if not weighted:
        return None
    weighted.sort(key=lambda entry: entry.logarithm, reverse=True)
    # Relative to the heaviest run: if all are many years apart, every weight is 0 in itself.
    weights = [math.exp(entry.logarithm - weighted[0].logarithm) for entry in weighted]
    total = 0.0
    for entry, weight in zip(weighted, weights, strict=True):
        total += weight * math.log(entry.seconds)
    mean_logarithm = total / sum(weights)
    heaviest = tuple(entry.run for entry in weighted[:2])
    return _MeanWork(math.exp(mean_logarithm), heaviest)


def _work_of_run(
    facts: Facts, assumed: CostAssumptions, run: MeasuredRun, release: Release
) -> float | None:
    """Return the seconds of work in a run; with CUDA, those of one image of device code.

    `release` is the run's. None if the run has neither its processor time, nor both its
    duration and its cores, or if its capabilities make no image.
    """
    seconds = run.cpu_seconds
    if seconds is None:
        if run.wall_seconds is None or run.cores is None:
            return None
        # In these seconds a single program runs: configure, link, pack, verify.
        overhead = assumed.serial_seconds.middle
        if run.scope == "job":
            # The duration is that of a CI job, which also checks out the source, starts a container
            # and uploads the wheel.
            overhead += assumed.job_seconds.middle
        # The overhead is only assumed, and may be longer than a short run.
        parallel = max(run.wall_seconds - overhead, run.wall_seconds * _LEAST_SHARE)
        # n jobs do the work of n**scaling: see runs.toml.
        seconds = parallel * compilers_at_once(run) ** assumed.scaling
    if not run.capabilities:
        return seconds
    images = link_overflow.count_code_images(run.capabilities)
    if images == 0:
        return None
    # The recursion ends there: without images, `catalogue_work` takes only runs without CUDA.
    host_work = catalogue_work(facts, release, images=0, jobs=compilers_at_once(run))
    device_seconds = seconds
    if host_work is not None:
        device_seconds -= host_work.seconds
    return max(device_seconds, seconds * _LEAST_SHARE) / images


def find_release_version(facts: Facts, package: str, version: str) -> Release | None:
    """Return a package's release by its version; None if the facts do not have it."""
    for release in facts.releases.get(package, ()):
        if release.version == version:
            return release
    return None


def compilers_at_once(run: MeasuredRun) -> int:
    """Return how many compilers a run had at a time, by its jobs and its cores; 1 if unknown."""
    jobs = run.jobs or run.cores or 1
    cores = run.cores or run.jobs or 1
    return max(1, min(jobs, cores))


def host_library_bytes(facts: Facts, release: Release) -> int | None:
    """Return the bytes of the official libraries without device code, near a release.

    If they are not recorded for the release itself, the nearest release with records counts. None
    if no release of the package has records, as with dependent packages.
    """
    releases = facts.releases[release.package]
    # To compare versions is twenty times as fast as to compare whole releases.
    keys = [(candidate.version, candidate.torch) for candidate in releases]
    position = keys.index((release.version, release.torch))
    nearest_first = sorted(range(len(releases)), key=lambda index: abs(index - position))
    for index in nearest_first:
        size = _recorded_host_bytes(releases[index])
        if size:
            return size
    return None


def _recorded_host_bytes(release: Release) -> int:
    """Return the recorded bytes of a release's libraries without device code; 0 if not recorded."""
    # From 1.2 to 1.4, the single library libtorch.so had the code for the host and device code.
    # Its size, and libtorch_python beside it, do not tell how large the code for the host is.
    if not any(name.startswith(_MAIN_HOST_LIBRARIES) for name in release.upstream.sizes):
        return 0
    return sum(
        size for name, size in release.upstream.sizes.items() if name.startswith(_HOST_LIBRARIES)
    )


def _size_ratio(facts: Facts, release: Release, other: Release) -> float:
    """Return how many times as large as another's a release's libraries without device code are.

    It is 1 if the sizes are not known, and for another package.
    """
    if release.package != other.package:
        return 1.0
    size = host_library_bytes(facts, release)
    other_size = host_library_bytes(facts, other)
    if not size or not other_size:
        return 1.0
    return size / other_size


def _years_between(release: Release, other: Release) -> float:
    """Return how many years two releases are apart; 0 if a date is not known."""
    if release.upstream.date is None or other.upstream.date is None:
        return 0.0
    apart = date.fromisoformat(release.upstream.date) - date.fromisoformat(other.upstream.date)
    return abs(apart.days) / _DAYS_PER_YEAR
