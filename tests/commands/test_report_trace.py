"""The trace against the Trace Event Format, as its document has it.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from guard_support.recorded import GIB, ran, small
from millguard.timeline import TimelineEvent

from tests.support.recordings import recording
from torchmill.commands.report.recording import assign_lanes, format_trace, trace_events

# The fields of each phase, beside name, ph, ts, pid and tid.
REQUIRED = {"X": {"dur", "cat"}, "C": {"args"}, "i": {"s"}, "M": {"args"}}


def trace_of(folder: Path) -> list[dict[str, Any]]:
    document = json.loads(format_trace(recording(folder)))
    assert document["displayTimeUnit"] in {"ms", "ns"}
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def test_every_event_has_the_fields_of_the_format(tmp_path: Path) -> None:
    events = trace_of(tmp_path)
    assert {event["ph"] for event in events} == REQUIRED.keys()
    for event in events:
        assert {"name", "ph", "ts", "pid", "tid"} | REQUIRED[event["ph"]] <= event.keys()
        assert isinstance(event["name"], str)
        assert all(type(event[name]) is int and event[name] >= 0 for name in ("ts", "pid", "tid"))
        assert event["tid"] > 0, "Perfetto takes thread 0 for the idle one"
        if event["ph"] == "X":
            assert type(event["dur"]) is int
            assert event["dur"] > 0
        if event["ph"] == "i":
            assert event["s"] in {"g", "p", "t"}
        if event["ph"] == "C":
            assert all(type(value) in {int, float} for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "thread_name"}
            assert isinstance(event["args"]["name"], str)


def test_units_of_one_lane_never_overlap(tmp_path: Path) -> None:
    lanes = defaultdict(list)
    for event in trace_of(tmp_path):
        if event["ph"] == "X":
            lanes[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, lanes.values())) == 4
    for spans in lanes.values():
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_units_and_counters_have_the_recorded_values(tmp_path: Path) -> None:
    events = trace_of(tmp_path)
    unit = next(
        event for event in events if event["ph"] == "X" and event["args"]["outcome"] == "failed"
    )
    assert (unit["name"], unit["cat"], unit["ts"], unit["dur"]) == (
        "lib.so",
        "link",
        18_500_000,
        1_500_000,
    )
    used = [event["args"]["MiB"] for event in events if event["name"] == "memory used"]
    assert used == [512, 3993, 2048, 0]
    allowed = [
        (event["ts"], event["args"]) for event in events if event["name"] == "memory allowed"
    ]
    assert allowed == [(0, {"MiB": 4096})], "an unchanged value is not written again"
    units = [event["args"] for event in events if event["name"] == "units"]
    assert units[1] == {"running": 1, "paused": 1, "waiting": 3}
    assert [event["name"] for event in events if event["ph"] == "i"] == ["pause", "resume", "rerun"]
    timeline = recording(tmp_path, [TimelineEvent(1.0, "too large", "k", "needed 5.1 GiB")])
    (large_event,) = (event for event in trace_events(timeline) if event["ph"] == "i")
    assert large_event["args"] == {"unit": "k", "text": "needed 5.1 GiB"}


def test_as_few_lanes_as_run_at_a_time() -> None:
    runs = [ran("a", 0, 10), ran("b", 1, 2), ran("c", 1.5, 4), ran("d", 2, 3), ran("e", 10, 10)]
    assert assign_lanes(runs) == [1, 2, 3, 2, 1]
    assert assign_lanes([]) == []
    crowd = [ran(str(number), number / 10, number / 10 + 3.2) for number in range(2000)]
    assert max(assign_lanes(crowd)) == 32


def test_ten_thousand_units_are_bounded(tmp_path: Path) -> None:
    runs = [ran(f"aten/{number}.cpp", number, number + 9, peak=GIB) for number in range(10_000)]
    text = format_trace(recording(tmp_path, [*small(), *runs]))
    assert len(text) < 4_000_000
    assert len(json.loads(text)["traceEvents"]) > 10_000
