"""Write a recording in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchmill.commands.report.recording import Recording
from torchmill.core.units import format_bytes
from torchmill.toolchain.guard.timeline import TimelineMoment, UnitRun
from torchmill.toolchain.guard.units import unit_title

_GUARD = 1  # the thread of what it did; the lanes of units follow. 0 is the idle thread for Perfetto


def write_trace(recording: Recording, path: Path) -> None:
    """Write the trace of a recording, an event a line."""
    lines = (json.dumps(event, separators=(",", ":")) for event in trace_events(recording))
    text = ",\n".join(lines)
    path.write_text(f'{{"displayTimeUnit":"ms","traceEvents":[\n{text}\n]}}\n', encoding="utf-8")


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
