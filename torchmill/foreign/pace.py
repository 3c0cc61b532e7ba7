"""How long a build for another machine takes here, and where it would be faster: said beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from torchmill import estimate
from torchmill.estimate import Span
from torchmill.estimate.report import duration
from torchmill.model import Facts, Plan, Range

# GitHub's hosted runners of an arch, as wheels.yml names them.
RUNNERS = {"aarch64": "ubuntu-24.04-arm", "x86_64": "ubuntu-24.04"}


@dataclass(frozen=True, slots=True)
class Pace:
    """What a build will take, in seconds of the clock."""

    arch: str
    emulated: bool  # another processor plays this one
    factor: Range | None  # how much longer compilers take then; None: nobody measured it
    native: Span | None  # on a machine of the arch with as many processors; None: nothing is known

    @property
    def wall(self) -> Span | None:
        """Return what it takes here; None where nobody knows."""
        if self.native is None or not self.emulated:
            return self.native
        if self.factor is None:
            return None
        low, high = self.factor.low, self.factor.high
        return Span(self.native.low * low, self.native.likely * (low * high) ** 0.5, self.native.high * high)


def of(facts: Facts, plan: Plan, *, emulated: bool) -> Pace:
    """Return the pace of a plan."""
    arch, found = facts.arches[plan.build.arch], estimate.of(facts, plan)
    return Pace(arch.name, emulated, arch.emulated, found.wall if found else None)


def told(pace: Pace) -> list[str]:
    """Return the sentences for a user who waits for it."""
    if not pace.emulated:
        return [f"the container's machine is {pace.arch} itself: nothing is emulated"]
    factor, wall = pace.factor, pace.wall
    times = f"{factor.low:g} to {factor.high:g} times as long" if factor else "many times as long"
    lines = [f"every program for {pace.arch} is emulated here: compilers take {times} as natively"]
    if wall:
        span = f"({duration(wall.low)} to {duration(wall.high)})"
        lines.append(f"expect about {duration(wall.likely)} {span} with an empty compiler cache")
    lines.append(
        f"faster: a machine that is {pace.arch}, or GitHub's runner {RUNNERS[pace.arch]} (wheels.yml, see "
        "docs/other-machines.md)"
    )
    return lines
