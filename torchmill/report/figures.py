"""What a recording comes to: sums, the longest, the largest, the misjudged; and fewer moments to draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from torchmill.guard.timeline import Moment, Ran
from torchmill.report.recording import Recording

OWN_END = ("done", "failed")  # outcomes of runs that nobody cut short


@dataclass(frozen=True, slots=True)
class Totals:
    """A build in a few numbers; times in seconds, memory in bytes."""

    wall: float
    units: int  # that came to their own end
    failed: int
    together: float  # units that ran at a time, on the average
    peak: Moment | None  # the moment with the most memory in use
    short: float  # in which memory kept units waiting, and a processor was free
    lost: float  # spent on runs that were cut short
    events: Counter[str]  # by kind


def totals(recording: Recording) -> Totals:
    """Return the sums of a recording."""
    outcomes = Counter(one.outcome for one in recording.runs)
    spent = sum(one.seconds for one in recording.runs)
    return Totals(
        wall=recording.wall,
        units=sum(outcomes[one] for one in OWN_END),
        failed=outcomes["failed"],
        together=spent / recording.wall if recording.wall else 0.0,
        peak=max(recording.moments, key=lambda one: one.used, default=None),
        short=max((one.short for one in recording.moments), default=0.0),
        lost=sum(one.seconds for one in recording.runs if one.outcome not in OWN_END),
        events=Counter(one.kind for one in recording.events),
    )


def longest(recording: Recording, count: int) -> list[Ran]:
    """Return the runs that took the most time, longest first."""
    return sorted(recording.runs, key=lambda one: -one.seconds)[:count]


def largest(recording: Recording, count: int) -> list[Ran]:
    """Return the runs that took the most memory, largest first."""
    return sorted(recording.runs, key=lambda one: -one.peak)[:count]


def misjudged(recording: Recording, count: int) -> list[Ran]:
    """Return the runs whose need was farthest from what was expected, in bytes, farthest first."""
    whole = (one for one in recording.runs if one.outcome == "done" and one.peak != one.expected)
    return sorted(whole, key=lambda one: -abs(one.peak - one.expected))[:count]


@dataclass(frozen=True, slots=True)
class Column:
    """The moments that share one column of a picture."""

    at: float
    used: int  # most
    allowed: int  # least
    running: float  # these three on the average
    waiting: float
    paused: float
    cores: float
    short: float  # share of the time since the column before in which memory kept units waiting


def columns(moments: Sequence[Moment], width: int) -> list[Column]:
    """Return at most `width` columns of equal time, less the empty ones, and one more to end the last."""
    if not moments:
        return []
    span = moments[-1].at / width or 1.0
    groups = groupby(moments, key=lambda one: min(int(one.at / span), width - 1))
    found = list(_columns(list(group) for _, group in groups))
    return [*found, replace(found[-1], at=moments[-1].at)]


def _columns(groups: Iterator[list[Moment]]) -> Iterator[Column]:
    before = Moment(0.0, 0, 0, 0, 0, 0)
    for group in groups:
        last, count = group[-1], len(group)
        passed = last.at - before.at
        yield Column(
            group[0].at,
            max(one.used for one in group),
            min(one.allowed for one in group),
            sum(one.running for one in group) / count,
            sum(one.waiting for one in group) / count,
            sum(one.paused for one in group) / count,
            sum(one.cores for one in group) / count,
            min(1.0, max(0.0, last.short - before.short) / passed) if passed > 0 else 0.0,
        )
        before = last
