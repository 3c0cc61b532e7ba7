"""A build's timeline read back: sums, largest units, a summary in words, a trace for Perfetto."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from millguard.timeline import (
    SUFFIX,
    Record,
    TimelineEvent,
    TimelineMoment,
    UnitRun,
    parse_record,
)
from millguard.units import unit_title

from torchmill.cell.progress_line import format_clock
from torchmill.core.console import format_table
from torchmill.core.errors import ConfigError
from torchmill.core.package_data import read_table_beside
from torchmill.core.units import format_bytes, format_share

_LONGEST = 2**20  # bytes of a line; a record has a few hundred
OWN_END = ("done", "failed")  # outcomes of runs that nobody cut short
UNITS_SHOWN = 10  # units of each list
DEEDS = read_table_beside(__file__, "deeds.toml")  # of the guard, by the kind of event
_GUARD = (
    1  # the thread of what it did; the lanes of units follow. 0 is the idle thread for Perfetto
)


@dataclass(frozen=True)
class Recording:
    """One build as its guard saw it; everything in the order of time."""

    name: str
    moments: tuple[TimelineMoment, ...]
    runs: tuple[UnitRun, ...]  # by their beginning
    events: tuple[TimelineEvent, ...]
    notes: tuple[str, ...] = ()  # what must be said of it

    @cached_property
    def wall(self) -> float:
        """Return the seconds from the build's start to the last that was seen of it."""
        moments = max((one.at for one in self.moments), default=0.0)
        return max([moments, *(one.ended for one in self.runs), *(one.at for one in self.events)])


def read_timeline(path: Path) -> Recording:
    """Return what a timeline holds; lines that were not written whole are left out, and a note says so.

    Raises ConfigError if it cannot be read, is empty, or is no timeline.
    """
    records: list[Record] = []
    broken: list[int] = []  # numbers of the lines that hold no record
    number, first = 0, b""
    try:
        with path.open("rb") as file:
            while line := file.readline(_LONGEST):
                number, first = number + 1, first or line
                try:
                    records.append(parse_record(line))
                except ValueError:
                    broken.append(number)
                    if not first.startswith(b'{"record":'):
                        break  # whatever it is, however long
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): name a file that can",
            code="unreadable-timeline",
        ) from None
    if not records and number <= 1 and first.startswith(b'{"record":'[: len(first)]):
        raise ConfigError(
            f"{path} is empty or cut off: that build was stopped before its guard saw anything of it",
            code="empty-timeline",
        )
    if not records or broken[:1] == [1]:
        raise ConfigError(
            f"{path} is not the timeline of a build: name a wheel, a build's log, or its {SUFFIX}",
            code="not-a-timeline",
        )
    notes = []
    if broken[-1:] == [number]:
        notes.append("its last line is cut off: the build was stopped there, or goes on")
    if torn := [one for one in broken if one != number]:
        notes.append(
            f"{len(torn)} of its {number} lines hold no record and are left out (first: {torn[0]})"
        )
    return Recording(
        path.name.removesuffix(SUFFIX),
        tuple(
            sorted(
                (one for one in records if isinstance(one, TimelineMoment)), key=lambda one: one.at
            )
        ),
        tuple(
            sorted((one for one in records if isinstance(one, UnitRun)), key=lambda one: one.begun)
        ),
        tuple(
            sorted(
                (one for one in records if isinstance(one, TimelineEvent)), key=lambda one: one.at
            )
        ),
        tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """A build in a few numbers; times in seconds, memory in bytes."""

    wall: float
    units: int  # that came to their own end
    failed: int
    together: float  # units that ran at a time, on the average
    peak: TimelineMoment | None  # the moment with the most memory in use
    short: float  # in which memory kept units waiting, and a processor was free
    lost: float  # spent on runs that were cut short
    events: Counter[str]  # by kind


def sum_up(recording: Recording) -> Totals:
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


def summarize_recording(recording: Recording) -> str:
    """Return what a person wants to know of a build."""
    sums, runs = sum_up(recording), recording.runs
    lines = [f"{recording.name}: {build_headline(sums)}"]
    lines += [f"  {line}" for line in (*describe_sums(sums), *_describe_events(recording.events))]
    lines += [f"  note: {note}" for note in recording.notes]
    misjudged = [one for one in runs if one.outcome == "done" and one.peak != one.expected]
    for heading, listed in (
        ("the longest", sorted(runs, key=lambda one: -one.seconds)),
        ("the largest", sorted(runs, key=lambda one: -one.peak)),
        (
            "farthest from what was expected",
            sorted(misjudged, key=lambda one: -abs(one.peak - one.expected)),
        ),
    ):
        if listed:
            lines += ["", heading, *(f"  {line}" for line in _table(listed[:UNITS_SHOWN]))]
    return "\n".join(lines)


def build_headline(sums: Totals) -> str:
    """Return how much was built in what time."""
    units = f"{sums.units} unit" if sums.units == 1 else f"{sums.units} units"
    failed = f", {sums.failed} failed" if sums.failed else ""
    return f"{units} in {format_clock(sums.wall)}{failed}, {sums.together:.1f} at a time on average"


def describe_sums(sums: Totals) -> Iterator[str]:
    """Yield what the sums say, a sentence each."""
    if sums.peak is not None:
        yield f"memory: at most {format_share(sums.peak.used, sums.peak.allowed)}, at {format_clock(sums.peak.at)}"
    if sums.short:
        yield f"waiting for memory while a processor was free: {format_clock(sums.short)}"
    deeds = [f"{sums.events[kind]} {deed}" for kind, deed in DEEDS.items() if sums.events[kind]]
    yield f"units: {', '.join(deeds)}" if deeds else "no unit was paused, ended or killed"
    if sums.lost:
        yield f"work thrown away: {format_clock(sums.lost)}"


def _describe_events(events: Sequence[TimelineEvent]) -> list[str]:
    """Return what events say beyond that they happened, a few of them."""
    telling = [one for one in events if one.text]
    lines = [
        ": ".join(filter(None, (one.kind, unit_title(one.key), one.text)))
        for one in telling[:UNITS_SHOWN]
    ]
    more = len(telling) - len(lines)
    return [*lines, f"… and {more} more"] if more else lines


def _table(runs: Sequence[UnitRun]) -> list[str]:
    rows = [
        (
            format_clock(one.seconds),
            format_bytes(one.peak),
            format_bytes(one.expected),
            "its last run" if one.measured else "its kind",
            unit_title(one.key)
            if one.outcome == "done"
            else f"{unit_title(one.key)} ({one.outcome})",
        )
        for one in runs
    ]
    return format_table(("time", "memory", "expected", "by", "unit"), rows).splitlines()


def format_trace(recording: Recording) -> str:
    """Return the trace of a recording, an event a line."""
    lines = (json.dumps(event, separators=(",", ":")) for event in trace_events(recording))
    text = ",\n".join(lines)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{text}\n]}}\n'


def trace_events(recording: Recording) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace; times in microseconds since the build's start."""
    lanes = assign_lanes(recording.runs)
    yield _event("M", 0, "process_name", args={"name": recording.name})
    threads = {_GUARD: "the guard"} | {_GUARD + lane: f"lane {lane}" for lane in sorted(set(lanes))}
    for thread, name in threads.items():
        yield _event("M", 0, "thread_name", thread, args={"name": name})
    for run, lane in zip(recording.runs, lanes, strict=True):
        begun, ended = _span(run)
        args = {
            "outcome": run.outcome,
            "peak": format_bytes(run.peak),
            "expected": format_bytes(run.expected),
            "expected by": "its last run" if run.measured else "its kind",
            "key": run.key,
        }
        more = {"cat": run.family, "dur": ended - begun, "args": args}
        yield _event("X", begun, unit_title(run.key), _GUARD + lane, **more)
    yield from _counters(recording.moments)
    for one in recording.events:
        args = {"unit": one.key, "text": one.text}
        yield _event("i", _microseconds(one.at), one.kind, cat="guard", s="t", args=args)


def _event(phase: str, at: int, name: str, thread: int = _GUARD, **more: Any) -> dict[str, Any]:
    return {"name": name, "ph": phase, "ts": at, "pid": 1, "tid": thread, **more}


def assign_lanes(runs: Sequence[UnitRun]) -> list[int]:
    """Return a lane for each run, from 1, as few as possible: what shares one does not overlap.

    The runs are given by their beginning.
    """
    lanes: list[int] = []
    ends: dict[int, int] = {}  # of each lane: the end of its last run
    for run in runs:
        begun, ended = _span(run)
        lane = next((one for one, end in ends.items() if end <= begun), len(ends) + 1)
        ends[lane] = ended
        lanes.append(lane)
    return lanes


def _span(run: UnitRun) -> tuple[int, int]:
    """Return the microseconds at which a run begins and ends: a whole one apart, or it is not shown."""
    begun = _microseconds(run.begun)
    return begun, max(begun + 1, _microseconds(run.ended))


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _counters(moments: Sequence[TimelineMoment]) -> Iterator[dict[str, Any]]:
    """Yield what changed: a counter keeps its last value.

    Perfetto shows "memory used MiB" and "units running"; chrome://tracing stacks the units on each other.
    """
    shown: dict[str, dict[str, int]] = {}
    for one in moments:
        values = {
            "memory used": {"MiB": one.used >> 20},
            "memory allowed": {"MiB": one.allowed >> 20},
            "units": {"running": one.running, "paused": one.paused, "waiting": one.waiting},
        }
        for name, value in values.items():
            if shown.get(name) != value:
                shown[name] = value
                yield _event("C", _microseconds(one.at), name, args=value)
