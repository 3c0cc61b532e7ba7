"""Write a recording in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchmill.commands.report.recording import Recording
from torchmill.core.units import format_bytes
from torchmill.toolchain.guard.timeline import TimelineEvent, TimelineMoment, UnitRun
from torchmill.toolchain.guard.units import unit_title

_PROCESS = 1
_GUARD = 1  # the thread of what it did; the lanes of units follow. 0 is the idle thread for Perfetto


def write_trace(recording: Recording, path: Path) -> None:
    """Write the trace of a recording, an event a line."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(trace_events(recording)):
            file.write(",\n" if number else "")
            json.dump(event, file, separators=(",", ":"))
        file.write("\n]}\n")


def trace_events(recording: Recording) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace; times in microseconds since the build's start."""
    lanes = assign_lanes(recording.runs)
    yield _named("process_name", _GUARD, recording.name)
    yield _named("thread_name", _GUARD, "the guard")
    for lane in range(1, max(lanes, default=0) + 1):
        yield _named("thread_name", _GUARD + lane, f"lane {lane}")
    for run, lane in zip(recording.runs, lanes, strict=True):
        yield _complete(run, _GUARD + lane)
    yield from _counters(recording.moments)
    for event in recording.events:
        yield _instant(event)


def assign_lanes(runs: Sequence[UnitRun]) -> list[int]:
    """Return a lane for each run, from 1, as few as there can be: what shares one does not overlap.

    The runs are given by their beginning.
    """
    lanes: list[int] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # the end, the lane
    for run in runs:
        begun, ended = _span(run)
        while busy and busy[0][0] <= begun:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (ended, lane))
        lanes.append(lane)
    return lanes


def _span(run: UnitRun) -> tuple[int, int]:
    """Return the microseconds at which a run begins and ends: a whole one apart, or it is not shown."""
    begun = _microseconds(run.begun)
    return begun, max(begun + 1, _microseconds(run.ended))


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _complete(run: UnitRun, thread: int) -> dict[str, Any]:
    begun, ended = _span(run)
    return {
        "name": unit_title(run.key),
        "cat": run.family,
        "ph": "X",
        "ts": begun,
        "dur": ended - begun,
        "pid": _PROCESS,
        "tid": thread,
        "args": {
            "outcome": run.outcome,
            "peak": format_bytes(run.peak),
            "expected": format_bytes(run.expected),
            "expected by": "its last run" if run.measured else "its kind",
            "key": run.key,
        },
    }


def _instant(event: TimelineEvent) -> dict[str, Any]:
    return {
        "name": event.kind,
        "cat": "guard",
        "ph": "i",
        "s": "t",
        "ts": _microseconds(event.at),
        "pid": _PROCESS,
        "tid": _GUARD,
        "args": {"unit": event.key, "text": event.text},
    }


def _counters(moments: Sequence[TimelineMoment]) -> Iterator[dict[str, Any]]:
    """Yield what changed: a counter keeps what it said last.

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
                yield {
                    "name": name,
                    "ph": "C",
                    "ts": _microseconds(one.at),
                    "pid": _PROCESS,
                    "tid": _GUARD,
                    "args": value,
                }
