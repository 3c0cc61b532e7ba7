"""Replay a recorded build with another number of jobs, and tell its memory and time.

Each compile keeps its recorded time and peak, and starts in the recorded order as soon as a job is
free. What cannot be known from a recording is left out: dependencies between compiles, and what a
compile that was killed would have done to the rest.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from millguard.timeline import Record, TimelineMoment, UnitRun

# A compile has its peak from this share of its time on; until then its memory rises evenly. Of the
# compiles of torch 1.13.1 most reach it later, so that the replay says rather too much.
RISE_SHARE = 0.8
_SHORTEST_SECONDS = 0.001  # of a compile: the clock of the guard is not finer
_STEPS = 400  # moments at which the memory is added up


@dataclass(frozen=True, slots=True)
class ReplayedBuild:
    """A build as it would have been; bytes and seconds."""

    jobs: int
    seconds: float
    peak: int  # of all compiles together
    at_most: int  # if all those that run at a time have their peaks at once


@dataclass(slots=True)
class _Running:
    begun: float
    left: float  # seconds of work
    peak: int


@dataclass(frozen=True, slots=True)
class _Span:
    begun: float
    ended: float
    peak: int

    def memory(self, at: float) -> float:
        """Return its bytes at a moment."""
        if not self.begun <= at < self.ended:
            return 0.0
        share = (at - self.begun) / (self.ended - self.begun)
        return self.peak * min(1.0, share / RISE_SHARE)


def finished_units(records: Sequence[Record]) -> list[UnitRun]:
    """Return the compiles and links that ended by themselves, in the order in which they began."""
    units = []
    for record in records:
        if isinstance(record, UnitRun) and record.outcome in {"done", "failed"}:
            units.append(record)
    return sorted(units, key=lambda unit: unit.begun)


def allowed_memory(records: Sequence[Record]) -> int:
    """Return the most that all compiles could have together at any time; 0 if it is not known."""
    return max(
        (record.allowed for record in records if isinstance(record, TimelineMoment)), default=0
    )


def replay(units: Sequence[UnitRun], jobs: int, cores: float) -> ReplayedBuild:
    """Return the build of some units with so many jobs on so many processors.

    If more run than there are processors, each of them gets an equal share of those.
    """
    spans: list[_Span] = []
    running: list[_Running] = []
    now = 0.0
    waiting = deque(units)
    while waiting or running:
        while waiting and len(running) < jobs:
            unit = waiting.popleft()
            running.append(_Running(now, max(unit.seconds, _SHORTEST_SECONDS), unit.peak))
        pace = min(1.0, cores / len(running))
        step = min(unit_running.left for unit_running in running)
        now += step / pace
        for unit_running in running:
            unit_running.left -= step
            if unit_running.left <= 0:
                spans.append(_Span(unit_running.begun, now, unit_running.peak))
        running = [unit_running for unit_running in running if unit_running.left > 0]
    return ReplayedBuild(jobs, now, _highest(spans, now), _highest_sum_of_peaks(spans))


def _highest(spans: Sequence[_Span], seconds: float) -> int:
    moments = [seconds * step / _STEPS for step in range(_STEPS)]
    # Memory is highest just before something ends.
    moments += [span.ended - 1e-6 for span in spans[:: max(1, len(spans) // _STEPS)]]
    return int(max((sum(span.memory(at) for span in spans) for at in moments), default=0.0))


def _highest_sum_of_peaks(spans: Sequence[_Span]) -> int:
    changes = []
    for span in spans:
        changes.append((span.begun, 1, span.peak))
        changes.append((span.ended, 0, -span.peak))  # before what begins at the same moment
    total = highest = 0
    for _, _, change in sorted(changes):
        total += change
        highest = max(highest, total)
    return highest
