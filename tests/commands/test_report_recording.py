"""Timelines read back, whole and torn; what they come to, in figures and in words."""

from dataclasses import replace
from pathlib import Path

import pytest
from guard_support.recorded import GIB, moment, ran, small, write
from millguard.timeline import TimelineEvent, format_record

from tests.support.recordings import recording
from tests.support.refusals import refused
from torchmill.commands.report.recording import read_timeline, sum_up, summarize_recording


def test_everything_stands_in_the_order_of_time(tmp_path: Path) -> None:
    read = recording(tmp_path, reversed(small()))
    assert read.name == "wheel-3.10-cpu"
    assert [record.begun for record in read.runs] == [0.0, 1.0, 9.5, 18.5]
    assert [record.kind for record in read.events] == ["pause", "resume", "rerun"]
    assert [record.at for record in read.moments] == sorted(record.at for record in read.moments)
    assert read.wall == 20.0
    assert read.notes == ()


@pytest.mark.parametrize("end", [1, 40, 300])
def test_a_line_that_was_cut_off_is_told(tmp_path: Path, end: int) -> None:
    path = write(tmp_path / "x.timeline.jsonl", small())
    whole = path.read_bytes()
    path.write_bytes(whole[: -min(end, len(whole) - 200)].rstrip(b"\n") if end > 1 else whole[:-3])
    read = read_timeline(path)
    assert read.notes == ("its last line is cut off: the build was stopped there, or goes on",)
    assert read.runs


def test_torn_lines_are_left_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "x.timeline.jsonl"
    good = format_record(ran("a.cpp", 0, 1)).encode()
    path.write_bytes(b"\n".join([good, b'{"record":"ra\0\0', good, b"\xff\xff", good, b""]))
    read = read_timeline(path)
    assert len(read.runs) == 3
    assert read.notes == ("2 of its 5 lines hold no record and are left out (first: 2)",)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty-timeline"),
        (b'{"record":"mom', "empty-timeline"),
        (b"[1/2] Building CXX object a.o\n", "not-a-timeline"),
        (b"\x7fELF\x02\x01\x01" + bytes(3 * 2**20), "not-a-timeline"),
        (b"PK\x03\x04\n\n", "not-a-timeline"),
        (b'{"record":1}\n{"record":2}\n', "not-a-timeline"),
    ],
)
def test_what_is_no_timeline_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with refused(code):
        read_timeline(path)


def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with refused("unreadable-timeline"):
        read_timeline(tmp_path)


def test_moments_alone_are_a_timeline(tmp_path: Path) -> None:
    assert read_timeline(write(tmp_path / "x", [moment(1)])).wall == 1


def test_the_totals_of_a_build(tmp_path: Path) -> None:
    sums = sum_up(recording(tmp_path))
    assert (sums.wall, sums.units, sums.failed) == (20.0, 3, 1)
    assert sums.together == pytest.approx((8 + 8 + 9 + 1.5) / 20)
    assert sums.peak is not None
    assert (sums.peak.at, sums.peak.used) == (4.0, int(3.9 * GIB))
    assert (sums.short, sums.lost) == (2.5, 8.0)
    assert dict(sums.events) == {"pause": 1, "resume": 1, "rerun": 1}


def test_the_totals_of_next_to_nothing(tmp_path: Path) -> None:
    sums = sum_up(recording(tmp_path, [moment(0)]))
    assert (sums.wall, sums.units, sums.together) == (0.0, 0, 0.0)
    assert sum_up(recording(tmp_path, [ran("a", 0, 1)])).peak is None


def test_a_build_in_words(tmp_path: Path) -> None:
    lines = summarize_recording(recording(tmp_path)).splitlines()
    assert lines[:5] == [
        "wheel-3.10-cpu: 3 units in 0:20, 1 failed, 1.3 at a time on average",
        "  memory: at most 3.9 of 4.0 GiB, at 0:04",
        "  waiting for memory while a processor was free: 0:02",
        "  units: 1 paused, 1 ended and run again",
        "  work thrown away: 0:08",
    ]
    assert lines[6:9] == [
        "the longest",
        "  time  memory   expected  by        unit",
        "  0:09  3.0 GiB  1.0 GiB   its kind  b.cpp",
    ]
    assert "  0:08  1.0 GiB  1.0 GiB   its kind  b.cpp (ended)" in lines
    assert lines[-4:] == [
        "farthest from what was expected",
        "  time  memory   expected  by        unit",
        "  0:09  3.0 GiB  1.0 GiB   its kind  b.cpp",
        "  0:08  2.0 GiB  1.0 GiB   its kind  a.cpp",
    ]


def test_a_build_without_trouble(tmp_path: Path) -> None:
    read = recording(tmp_path, [moment(0), replace(ran("a", 0, 60), measured=True), moment(60)])
    summary = summarize_recording(replace(read, notes=("it is short",)))
    assert summary.splitlines()[:4] == [
        "wheel-3.10-cpu: 1 unit in 1:00, 1.0 at a time on average",
        "  memory: at most 1.0 of 4.0 GiB, at 0:00",
        "  no unit was paused, ended or killed",
        "  note: it is short",
    ]
    assert "its last run" in summary
    assert "farthest" not in summary


def test_what_went_wrong_is_told_a_few_times(tmp_path: Path) -> None:
    events = [
        TimelineEvent(1.0, "too large", f"g++|{number}.cpp|-O2", "needed 5.1 GiB")
        for number in range(14)
    ]
    events += [
        TimelineEvent(0.5, "no history", "", "read-only"),
        TimelineEvent(0.1, "rerun", "g++|x.cpp|-O2"),
    ]
    lines = summarize_recording(recording(tmp_path, events)).splitlines()
    assert lines[1].startswith("  units: 1 ended and run again, 14 larger")
    assert lines[2:4] == ["  no history: read-only", "  too large: 0.cpp: needed 5.1 GiB"]
    assert lines[-1] == "  … and 5 more"


def test_ten_of_many_are_listed(tmp_path: Path) -> None:
    runs = [ran(f"{number}.cpp", 0, number, peak=number * GIB) for number in range(1, 40)]
    lines = summarize_recording(recording(tmp_path, runs)).splitlines()
    assert sum(line.endswith("39.cpp") for line in lines) == 3
    assert sum(".cpp" in line for line in lines) == 30


def test_units_that_stand_out_are_listed(tmp_path: Path) -> None:
    runs = [
        ran("right", 0, 9, peak=5 * GIB, expected=5 * GIB),
        ran("over", 0, 2, peak=1 * GIB, expected=4 * GIB),
        ran("under", 0, 3, peak=6 * GIB, expected=4 * GIB),
        ran("cut", 0, 1, peak=GIB // 2, expected=9 * GIB, outcome="killed"),
    ]
    parts = summarize_recording(recording(tmp_path, runs)).split("\n\n")
    units = {
        part.splitlines()[0]: [row.split()[-1] for row in part.splitlines()[2:]]
        for part in parts[1:]
    }
    assert units == {
        "the longest": ["right", "under", "over", "(killed)"],
        "the largest": ["under", "right", "over", "(killed)"],
        "farthest from what was expected": ["over", "under"],
    }
