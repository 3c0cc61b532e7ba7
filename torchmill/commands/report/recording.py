"""The recording of a build, from its timeline: sums, largest units, a summary, a trace.

A *timeline* is the file into which the memory guard writes what it sees and does, a record a line.
A *unit* is a file that is compiled; a *run* is one start of its compiler, which the guard may have
paused, or ended and started again.
"""

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

DEEDS = read_table_beside(__file__, "deeds.toml")  # words for deeds of the guard, by kind of event
COMPLETE = ("done", "failed")  # outcomes of runs that the guard did not cut short
UNITS_SHOWN = 10  # units of each list
_LONGEST_LINE = 2**20  # bytes; a record has a few hundred
_BEGIN_OF_RECORD = b'{"record":'
# Threads of a trace: Perfetto takes 0 for its idle thread. The lanes of units follow the guard's.
_GUARD_THREAD = 1


@dataclass(frozen=True)
class Recording:
    """One build as its guard saw it; all records are in the order of time."""

    name: str
    moments: tuple[TimelineMoment, ...]
    runs: tuple[UnitRun, ...]  # by their beginning
    events: tuple[TimelineEvent, ...]
    notes: tuple[str, ...] = ()  # on missing or doubtful parts

    @cached_property
    def wall(self) -> float:
        """Return the seconds from the build's start to its last record."""
        times = [0.0]
        times += [moment.at for moment in self.moments]
        times += [run.ended for run in self.runs]
        times += [event.at for event in self.events]
        return max(times)


@dataclass(frozen=True, slots=True)
class _Lines:
    """The records in the lines of a timeline."""

    records: list[Record]
    broken: list[int]  # the numbers of lines without a record; the first line has the number 1
    count: int  # how many lines were read
    first: bytes  # the first line


def read_timeline(path: Path) -> Recording:
    """Return the recording of a timeline; a note says if lines were not written whole.

    Raises ConfigError if the file cannot be read, is empty, or is no timeline.
    """
    lines = _read_lines(path)
    # The file is empty, or its only line is the beginning of a record: compared as far as it goes.
    begin_of_line = lines.first[: len(_BEGIN_OF_RECORD)]
    is_cut_off = lines.count <= 1 and _BEGIN_OF_RECORD.startswith(begin_of_line)
    if not lines.records and is_cut_off:
        raise ConfigError(
            f"{path} is empty or cut off: that build was stopped before its guard saw anything of "
            "it",
            code="empty-timeline",
        )
    if not lines.records or 1 in lines.broken:
        raise ConfigError(
            f"{path} is not the timeline of a build: name a wheel, a build's log, or its {SUFFIX}",
            code="not-a-timeline",
        )
    notes = []
    if lines.count in lines.broken:
        notes.append("its last line is cut off: the build was stopped there, or goes on")
    inner = [number for number in lines.broken if number != lines.count]
    if inner:
        notes.append(
            f"{len(inner)} of its {lines.count} lines hold no record and are left out "
            f"(first: {inner[0]})"
        )
    moments = [record for record in lines.records if isinstance(record, TimelineMoment)]
    runs = [record for record in lines.records if isinstance(record, UnitRun)]
    events = [record for record in lines.records if isinstance(record, TimelineEvent)]
    return Recording(
        name=path.name.removesuffix(SUFFIX),
        moments=tuple(sorted(moments, key=lambda moment: moment.at)),
        runs=tuple(sorted(runs, key=lambda run: run.begun)),
        events=tuple(sorted(events, key=lambda event: event.at)),
        notes=tuple(notes),
    )


def _read_lines(path: Path) -> _Lines:
    """Return the records in a file; of a file that is no timeline, only the lines that prove that.

    Raises ConfigError if the file cannot be read.
    """
    records: list[Record] = []
    broken: list[int] = []
    number = 0
    first = b""
    try:
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                first = first or line
                try:
                    records.append(parse_record(line))
                except ValueError:
                    broken.append(number)
                    if not first.startswith(_BEGIN_OF_RECORD):
                        break  # the file is no timeline, and may be huge
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): name a file that can",
            code="unreadable-timeline",
        ) from None
    return _Lines(records, broken, number, first)


@dataclass(frozen=True, slots=True)
class Totals:
    """A build in a few numbers; times in seconds, memory in bytes."""

    wall: float
    units: int  # runs that were not cut short
    failed: int
    together: float  # the average number of units that ran at a time
    peak: TimelineMoment | None  # the moment with the most memory in use
    short: float  # the time in which units waited for memory while a processor was free
    lost: float  # the time of runs that were cut short
    events: Counter[str]  # by kind


def sum_up(recording: Recording) -> Totals:
    """Return the sums of a recording."""
    outcomes = Counter(run.outcome for run in recording.runs)
    seconds = sum(run.seconds for run in recording.runs)
    return Totals(
        wall=recording.wall,
        units=sum(outcomes[outcome] for outcome in COMPLETE),
        failed=outcomes["failed"],
        together=seconds / recording.wall if recording.wall else 0.0,
        peak=max(recording.moments, key=lambda moment: moment.used, default=None),
        short=max((moment.short for moment in recording.moments), default=0.0),
        lost=sum(run.seconds for run in recording.runs if run.outcome not in COMPLETE),
        events=Counter(event.kind for event in recording.events),
    )


def summarize_recording(recording: Recording) -> str:
    """Return a summary of a build for people: its sums, events and most expensive units."""
    sums = sum_up(recording)
    lines = [f"{recording.name}: {build_headline(sums)}"]
    lines += [f"  {sentence}" for sentence in describe_sums(sums)]
    lines += [f"  {line}" for line in _describe_events(recording.events)]
    lines += [f"  note: {note}" for note in recording.notes]
    done = [run for run in recording.runs if run.outcome == "done"]
    misjudged = [run for run in done if run.peak != run.expected]
    lists = {
        "the longest": sorted(recording.runs, key=lambda run: -run.seconds),
        "the largest": sorted(recording.runs, key=lambda run: -run.peak),
        "farthest from what was expected": sorted(
            misjudged, key=lambda run: -abs(run.peak - run.expected)
        ),
    }
    for heading, runs in lists.items():
        if runs:  # a build that was stopped early has none
            lines += ["", heading]
            lines += [f"  {line}" for line in _table(runs[:UNITS_SHOWN])]
    return "\n".join(lines)


def build_headline(sums: Totals) -> str:
    """Return the number of units and the time of a build."""
    units = f"{sums.units} unit" if sums.units == 1 else f"{sums.units} units"
    failed = f", {sums.failed} failed" if sums.failed else ""
    return f"{units} in {format_clock(sums.wall)}{failed}, {sums.together:.1f} at a time on average"


def describe_sums(sums: Totals) -> Iterator[str]:
    """Yield the sums as sentences."""
    if sums.peak is not None:
        share = format_share(sums.peak.used, sums.peak.allowed)
        yield f"memory: at most {share}, at {format_clock(sums.peak.at)}"
    if sums.short:
        yield f"waiting for memory while a processor was free: {format_clock(sums.short)}"
    deeds = [f"{sums.events[kind]} {deed}" for kind, deed in DEEDS.items() if sums.events[kind]]
    yield f"units: {', '.join(deeds)}" if deeds else "no unit was paused, ended or killed"
    if sums.lost:
        yield f"work thrown away: {format_clock(sums.lost)}"


def _describe_events(events: Sequence[TimelineEvent]) -> list[str]:
    """Return lines on the first events that have a text, and on the number of the others."""
    described = [event for event in events if event.text]
    lines = []
    for event in described[:UNITS_SHOWN]:
        parts = (event.kind, unit_title(event.key), event.text)
        lines.append(": ".join(part for part in parts if part))
    rest = len(described) - len(lines)
    if rest:
        lines.append(f"… and {rest} more")
    return lines


def _table(runs: Sequence[UnitRun]) -> list[str]:
    """Return the lines of a table of runs."""
    rows = []
    for run in runs:
        title = unit_title(run.key)
        if run.outcome != "done":
            title = f"{title} ({run.outcome})"
        row = (
            format_clock(run.seconds),
            format_bytes(run.peak),
            format_bytes(run.expected),
            _basis_of(run),
            title,
        )
        rows.append(row)
    return format_table(("time", "memory", "expected", "by", "unit"), rows).splitlines()


def _basis_of(run: UnitRun) -> str:
    """Return what the expected memory of a run was taken from."""
    return "its last run" if run.measured else "its kind"


def format_trace(recording: Recording) -> str:
    """Return the trace of a recording, an event a line.

    The format is that of https://ui.perfetto.dev and chrome://tracing.
    """
    lines = [json.dumps(event, separators=(",", ":")) for event in trace_events(recording)]
    text = ",\n".join(lines)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{text}\n]}}\n'


def trace_events(recording: Recording) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace; times in microseconds since the build's start."""
    lanes = assign_lanes(recording.runs)
    yield _event("M", 0, "process_name", args={"name": recording.name})
    yield _event("M", 0, "thread_name", _GUARD_THREAD, args={"name": "the guard"})
    for lane in sorted(set(lanes)):
        yield _event("M", 0, "thread_name", _GUARD_THREAD + lane, args={"name": f"lane {lane}"})
    for run, lane in zip(recording.runs, lanes, strict=True):
        begun, ended = _span(run)
        args = {
            "outcome": run.outcome,
            "peak": format_bytes(run.peak),
            "expected": format_bytes(run.expected),
            "expected by": _basis_of(run),
            "key": run.key,
        }
        yield _event(
            "X",
            begun,
            unit_title(run.key),
            _GUARD_THREAD + lane,
            cat=run.family,
            dur=ended - begun,
            args=args,
        )
    yield from _counters(recording.moments)
    for event in recording.events:
        args = {"unit": event.key, "text": event.text}
        yield _event("i", _microseconds(event.at), event.kind, cat="guard", s="t", args=args)


def _event(
    phase: str, at: int, name: str, thread: int = _GUARD_THREAD, **fields: Any
) -> dict[str, Any]:
    """Return an event of a trace; `phase` is its kind ("X": a span), `at` is in microseconds."""
    return {"name": name, "ph": phase, "ts": at, "pid": 1, "tid": thread, **fields}


def assign_lanes(runs: Sequence[UnitRun]) -> list[int]:
    """Return the number of a lane for each run, so that runs in one lane do not overlap.

    There are as few lanes as possible; the first has the number 1. `runs` are in the order of their
    beginning.
    """
    lanes: list[int] = []
    ends: dict[int, int] = {}  # by lane, the end of its last run
    for run in runs:
        begun, ended = _span(run)
        free_lanes = (lane for lane, end in ends.items() if end <= begun)
        lane = next(free_lanes, len(ends) + 1)
        ends[lane] = ended
        lanes.append(lane)
    return lanes


def _span(run: UnitRun) -> tuple[int, int]:
    """Return the microseconds at which a run begins and ends.

    They are at least one apart: a shorter event is not shown.
    """
    begun = _microseconds(run.begun)
    return begun, max(begun + 1, _microseconds(run.ended))


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _counters(moments: Sequence[TimelineMoment]) -> Iterator[dict[str, Any]]:
    """Yield the events of counters: memory used, memory allowed, and units.

    A counter keeps its value until its next event, so that only changes are yielded.
    """
    last: dict[str, dict[str, int]] = {}
    for moment in moments:
        counters = {
            # A counter has no unit of its own: the name of its value says it.
            "memory used": {"MiB": moment.used >> 20},
            "memory allowed": {"MiB": moment.allowed >> 20},
            "units": {
                "running": moment.running,
                "paused": moment.paused,
                "waiting": moment.waiting,
            },
        }
        for name, values in counters.items():
            if last.get(name) != values:
                last[name] = values
                yield _event("C", _microseconds(moment.at), name, args=values)
