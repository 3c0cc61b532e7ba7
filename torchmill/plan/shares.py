"""A build in shares on several machines: how long it takes, and how many are worth it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millguard.known_costs import load_known_costs

from torchmill.config.costs import CostAssumptions
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.plan.compile_costs import release_costs
from torchmill.plan.estimate import Estimate

# The longest share of a real graph took this many times the mean of its shares:
# docs/measurements/several-machines.md
_LONGEST_SHARE = 1.1
# A build that one machine makes in this time is not worth a queue of jobs.
_ONE_IS_ENOUGH_SECONDS = 90 * 60
# Several machines may together take up to this many times the machine time of a single one.
_WORTHWHILE = 1.25


@dataclass(frozen=True, slots=True)
class SharedBuild:
    """A build in shares, each on its own machine, and a last build that finds their objects."""

    machines: int
    share: float  # seconds of the longest share; of one machine, the whole build
    finish: float  # seconds of the last build; 0 for one machine

    @property
    def wall(self) -> float:
        """Return the seconds until the wheel is complete, without queues and uploads."""
        return self.share + self.finish

    @property
    def machine_seconds(self) -> float:
        """Return the seconds of all machines together."""
        return self.machines * self.share + self.finish


def longest_compile(facts: Facts, release: Release) -> float:
    """Return the seconds of the longest recorded compile of a release; 0 if none is recorded.

    None is recorded of device code.
    """
    general_costs = load_known_costs()
    own_folder = f"{release.package.replace('-', '_')}/"
    seconds = 0.0
    for cost in release_costs(facts.costs.known_units, release.package, release.version):
        # millguard's costs are of sources of several projects, such as flash-attn's.
        if cost in general_costs and not cost.pattern.startswith(own_folder):
            continue
        seconds = max(seconds, cost.seconds or 0.0)
    return seconds


def forecast_shares(
    assumed: CostAssumptions, estimate: Estimate, jobs: int, longest: float, counts: Iterable[int]
) -> Iterator[SharedBuild]:
    """Yield the build on each number of machines in `counts`.

    Each machine runs `jobs` compilers at a time. `longest` are the seconds of the longest compile:
    no share is shorter. Every share prepares its tree, as does the last build, which finds the
    objects of the shares and links them.
    """
    # In seconds. n jobs do the work of n**scaling.
    compiling = estimate.cpu.likely / jobs**assumed.scaling
    alone = estimate.wall.likely - compiling  # configuring, linking, packing: one program runs
    preparing = assumed.share_seconds.middle
    for count in counts:
        if count == 1:
            yield SharedBuild(1, estimate.wall.likely, 0.0)
        else:
            share = preparing + max(compiling * _LONGEST_SHARE / count, longest)
            yield SharedBuild(count, share, preparing + alone)


def advised_machines(builds: Sequence[SharedBuild]) -> SharedBuild:
    """Return the quickest of the builds that are worth their machines.

    `builds` are those of `forecast_shares`, the first of them on one machine.
    """
    single = builds[0]
    if single.wall <= _ONE_IS_ENOUGH_SECONDS:
        return single
    limit = _WORTHWHILE * single.machine_seconds
    worthwhile = [build for build in builds if build.machine_seconds <= limit]
    return min(worthwhile, key=lambda build: build.wall)
