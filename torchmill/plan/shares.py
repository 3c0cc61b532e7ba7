"""How long a build takes in shares on several machines, and what that costs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchmill.config.facts_model import CostAssumptions
from torchmill.config.model import Facts, Release
from torchmill.plan.estimate import Estimate, geometric_mean
from torchmill.toolchain.guard.expectations import relevant_units

UNEVEN = 1.1  # times the mean: the longest share of a real graph (docs/measurements/several-machines.md)
ONE_IS_ENOUGH_SECONDS = 90 * 60  # a build that one machine makes in this time is not worth a queue of jobs
WORTH = 1.25  # times the machine time of one machine, for which more of them are still advised


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
    known = relevant_units(facts.units, release.package, release.version)
    return max((one.seconds for one in known if one.seconds), default=0.0)


def forecast_shares(
    assumed: CostAssumptions, estimate: Estimate, jobs: int, longest: float, counts: Iterable[int]
) -> Iterator[SharedBuild]:
    """Yield the build on each number of machines, all of which run so many jobs at a time.

    `longest` are the seconds of the longest compile: no share is shorter.
    """
    compiling = estimate.cpu.likely / jobs**assumed.scaling
    alone = estimate.wall.likely - compiling  # in which one program runs
    prepared = geometric_mean(assumed.share_seconds)
    for count in counts:
        if count == 1:
            yield SharedBuild(1, estimate.wall.likely, 0.0)
        else:
            yield SharedBuild(count, prepared + max(compiling * UNEVEN / count, longest), prepared + alone)


def advised_machines(builds: Sequence[SharedBuild]) -> SharedBuild:
    """Return the quickest of builds that is worth its machines; the first is that of one machine."""
    one = builds[0]
    if one.wall <= ONE_IS_ENOUGH_SECONDS:
        return one
    return min((each for each in builds if each.machine_seconds <= WORTH * one.machine_seconds), key=lambda it: it.wall)
