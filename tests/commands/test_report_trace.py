"""The trace against the Trace Event Format, as it is documented."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from guard_support.recorded import GIB, ran, small
from millguard.timeline import TimelineEvent

from tests.support.recordings import recording
from torchmill.commands.report.recording import assign_lanes, format_trace, trace_events

# What the format demands of each phase that is written, beside name, ph, ts, pid and tid.
DEMANDED = {"X": {"dur", "cat"}, "C": {"args"}, "i": {"s"}, "M": {"args"}}


def traced(folder: Path) -> list[dict[str, Any]]:
    document = json.loads(format_trace(recording(folder)))
    assert document["displayTimeUnit"] in {"ms", "ns"}
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def test_every_event_has_what_the_format_demands(tmp_path: Path) -> None:
    found = traced(tmp_path)
    assert {one["ph"] for one in found} == DEMANDED.keys()
    for one in found:
        assert {"name", "ph", "ts", "pid", "tid"} | DEMANDED[one["ph"]] <= one.keys()
        assert isinstance(one["name"], str)
        assert all(type(one[name]) is int and one[name] >= 0 for name in ("ts", "pid", "tid"))
        assert one["tid"] > 0, "Perfetto takes thread 0 for the idle one"
        if one["ph"] == "X":
            assert type(one["dur"]) is int
            assert one["dur"] > 0
        if one["ph"] == "i":
            assert one["s"] in {"g", "p", "t"}
        if one["ph"] == "C":
            assert all(type(value) in {int, float} for value in one["args"].values())
        if one["ph"] == "M":
            assert one["name"] in {"process_name", "thread_name"}
            assert isinstance(one["args"]["name"], str)


def test_units_of_one_lane_never_overlap(tmp_path: Path) -> None:
    lanes = defaultdict(list)
    for one in traced(tmp_path):
        if one["ph"] == "X":
            lanes[one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    assert sum(map(len, lanes.values())) == 4
    for spans in lanes.values():
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_units_and_counters_say_what_was_recorded(tmp_path: Path) -> None:
    found = traced(tmp_path)
    unit = next(one for one in found if one["ph"] == "X" and one["args"]["outcome"] == "failed")
    assert (unit["name"], unit["cat"], unit["ts"], unit["dur"]) == (
        "lib.so",
        "link",
        18_500_000,
        1_500_000,
    )
    used = [one["args"]["MiB"] for one in found if one["name"] == "memory used"]
    assert used == [512, 3993, 2048, 0]
    allowed = [(one["ts"], one["args"]) for one in found if one["name"] == "memory allowed"]
    assert allowed == [(0, {"MiB": 4096})], "what did not change is not said again"
    units = [one["args"] for one in found if one["name"] == "units"]
    assert units[1] == {"running": 1, "paused": 1, "waiting": 3}
    assert [one["name"] for one in found if one["ph"] == "i"] == ["pause", "resume", "rerun"]
    told = recording(tmp_path, [TimelineEvent(1.0, "too large", "k", "needed 5.1 GiB")])
    (event,) = (one for one in trace_events(told) if one["ph"] == "i")
    assert event["args"] == {"unit": "k", "text": "needed 5.1 GiB"}


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
