"""Replay a recorded build with another number of jobs, and tell its memory and time.

Each compile keeps its recorded time and peak, and starts in the recorded order as soon as a job is
free. Two things cannot be learned from a recording and are left out: dependencies between compiles,
and the harm that a compile does to others before it is killed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from millguard.timeline import Record, TimelineMoment, UnitRun

# A compile is taken to have its peak from this share of its time on; until then its memory rises
# evenly. Most compiles of torch 1.13.1 reach their peak later, so that the replay overstates memory.
RISE_SHARE = 0.8
_SHORTEST_SECONDS = 0.001  # of a compile: the clock of the guard is not finer
_SAMPLES = 400  # moments at which the memory is added up


@dataclass(frozen=True, slots=True)
class ReplayedBuild:
    """A build as it would have been; bytes and seconds."""

    jobs: int
    seconds: float
    peak: int  # of all compiles together, as their memory rises by RISE_SHARE
    at_most: int  # of all compiles together, if those that run at a time have their peaks at once


@dataclass(slots=True)
class _Running:
    """A compile that runs in the replay."""

    begun: float
    remaining: float  # seconds that it would take with a processor to itself
    peak: int


@dataclass(frozen=True, slots=True)
class _Span:
    """A compile that has run in the replay."""

    begun: float
    ended: float
    peak: int

    def memory(self, at: float) -> float:
        """Return the compile's bytes at a moment; none before its start and after its end."""
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
    """Return the build that `units` make with `jobs` at a time on `cores` processors.

    If more compiles run than there are processors, they share these equally. Both numbers must be
    above 0.
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
        step = min(unit_running.remaining for unit_running in running)
        now += step / pace
        for unit_running in running:
            unit_running.remaining -= step
            if unit_running.remaining <= 0:
                spans.append(_Span(unit_running.begun, now, unit_running.peak))
        running = [unit_running for unit_running in running if unit_running.remaining > 0]
    return ReplayedBuild(jobs, now, _highest(spans, now), _highest_sum_of_peaks(spans))


def _highest(spans: Sequence[_Span], seconds: float) -> int:
    """Return the most bytes that all compiles have together.

    It is looked for at some moments only, because a build may have ten thousand compiles: at regular
    ones, and just before the ends of the largest compiles, when their memory is highest.
    """
    moments = [seconds * sample / _SAMPLES for sample in range(_SAMPLES)]
    largest = sorted(spans, key=lambda span: -span.peak)[:_SAMPLES]
    moments += [span.ended - _SHORTEST_SECONDS / 2 for span in largest]
    return int(max((sum(span.memory(at) for span in spans) for at in moments), default=0.0))


def _highest_sum_of_peaks(spans: Sequence[_Span]) -> int:
    """Return the most bytes of all compiles together, if each has its peak from start to end."""
    changes = []
    for span in spans:
        changes.append((span.begun, 1, span.peak))
        changes.append((span.ended, 0, -span.peak))  # before what begins at the same moment
    total = highest = 0
    for _, _, change in sorted(changes):
        total += change
        highest = max(highest, total)
    return highest
