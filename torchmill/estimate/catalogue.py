"""The work of a build by the recorded runs: near in time, alike in jobs, scaled by size."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date

from torchmill import overflow
from torchmill.model import Assumed, Facts, Range, Release, Run

DAYS = 365.25
DEVICE_FREE = ("libtorch_cpu", "libcaffe2.so", "libtorch_python")


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one core that compiling takes, and what says so."""

    seconds: float
    spread: float  # a factor either way
    runs: tuple[Run, ...]  # those that count most


def work(facts: Facts, release: Release, images: int, jobs: int) -> Work | None:
    """Return the work of a build by the catalogue.

    `images` is how often device code is compiled (overflow.images), 0 without CUDA. None where no run
    says anything.
    """
    if facts.assumed is None:
        return None
    own = [run for run in facts.runs if run.package == release.package]
    if not own:
        own = [run for run in facts.runs if _alike(facts, run.package, release.package)]
    host = _blend(facts, facts.assumed, release, jobs, [run for run in own if not run.capabilities])
    if host is None:
        return None
    if any(run.package != release.package for run in host.runs):
        host = replace(host, spread=facts.assumed.spread["other"])
    if not images:
        return host
    device = _blend(facts, facts.assumed, release, jobs, [run for run in own if run.capabilities])
    if device is None:
        return replace(host, spread=facts.assumed.spread["other"])
    return Work(host.seconds + images * device.seconds, facts.assumed.spread["cuda"], device.runs)


def _alike(facts: Facts, one: str, other: str) -> bool:
    """Tell whether two packages are built against the same one: they are of one size."""
    base = facts.packages[one].after
    return base is not None and base == facts.packages[other].after


def _blend(facts: Facts, assumed: Assumed, release: Release, jobs: int, runs: Iterable[Run]) -> Work | None:
    """Return the weighted geometric mean of what runs show: all work, or that of one image of device code."""
    weighed = []
    for run in runs:
        theirs = find(facts, run.package, run.release)
        seconds = _shown(facts, assumed, run, theirs)
        if theirs is not None and seconds is not None:
            scale = 1.0 if run.capabilities else _size_ratio(facts, release, theirs)
            away = _years(release, theirs) / assumed.years + abs(math.log(jobs / slots(run)))
            weighed.append((math.exp(-away), math.log(seconds * scale), run))
    if not weighed:
        return None
    mean = sum(weight * value for weight, value, _ in weighed) / sum(weight for weight, _, _ in weighed)
    nearest = sorted(weighed, key=lambda one: -one[0])[:2]
    return Work(math.exp(mean), assumed.spread["cpu"], tuple(run for _, _, run in nearest))


def _shown(facts: Facts, assumed: Assumed, run: Run, release: Release | None) -> float | None:
    """Return the work that a run shows; of a run with CUDA, that of one image of device code."""
    seconds = run.cpu
    if seconds is None and run.wall is not None and run.cores is not None:
        overhead = middle(assumed.serial) + (middle(assumed.job) if run.scope == "job" else 0)
        seconds = max(run.wall - overhead, run.wall / 4) * slots(run) ** assumed.scaling
    if seconds is None or release is None or not run.capabilities:
        return seconds
    host = work(facts, release, 0, slots(run))
    rest = seconds - (host.seconds if host else 0)
    return max(rest, seconds / 4) / overflow.images(run.capabilities)


def find(facts: Facts, package: str, version: str) -> Release | None:
    """Return a release by its version."""
    return next((one for one in facts.releases.get(package, ()) if one.version == version), None)


def slots(run: Run) -> int:
    """Return how many compilers a run had at a time."""
    return max(1, min(run.jobs or run.cores or 1, run.cores or run.jobs or 1))


def middle(bounds: Range) -> float:
    """Return the geometric mean of two bounds."""
    return math.sqrt(bounds.low * bounds.high)


def host_size(facts: Facts, release: Release) -> int | None:
    """Return the bytes of the official libraries without device code, of the nearest release that says."""
    order = facts.releases[release.package]
    sizes = {index: _host_size(one) for index, one in enumerate(order) if _host_size(one)}
    here = order.index(release)
    return sizes[min(sizes, key=lambda index: abs(index - here))] if sizes else None


def _host_size(release: Release) -> int:
    found = {name: size for name, size in release.sizes.items() if name.startswith(DEVICE_FREE)}
    # from 1.2 to 1.4 one library held everything, and what is left says nothing
    return sum(found.values()) if any(name.startswith(DEVICE_FREE[:2]) for name in found) else 0


def _size_ratio(facts: Facts, release: Release, other: Release) -> float:
    """Return how much larger than the other's a release's libraries without device code are."""
    if release.package != other.package:
        return 1.0
    mine, theirs = host_size(facts, release), host_size(facts, other)
    return mine / theirs if mine and theirs else 1.0


def _years(release: Release, other: Release) -> float:
    """Return how far two releases are apart; nothing where a date is not known."""
    if release.date is None or other.date is None:
        return 0.0
    return abs((date.fromisoformat(release.date) - date.fromisoformat(other.date)).days) / DAYS
