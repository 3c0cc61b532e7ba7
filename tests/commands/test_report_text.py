"""A recording in words."""

from dataclasses import replace
from pathlib import Path

from tests.support.recorded import GIB, moment, ran, recording
from torchmill.commands.report.recording import summarize_recording
from torchmill.toolchain.guard.timeline import TimelineEvent


def test_a_build_in_words(tmp_path: Path) -> None:
    lines = summarize_recording(recording(tmp_path)).splitlines()
    assert lines[:5] == [
        "wheel-3.10-cpu: 3 units in 0:20, 1 failed, 1.3 at a time on the average",
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
    found = recording(tmp_path, [moment(0), replace(ran("a", 0, 60), measured=True), moment(60)])
    said = summarize_recording(replace(found, notes=("it is short",)))
    assert said.splitlines()[:4] == [
        "wheel-3.10-cpu: 1 unit in 1:00, 1.0 at a time on the average",
        "  memory: at most 1.0 of 4.0 GiB, at 0:00",
        "  no unit was paused, ended or killed",
        "  note: it is short",
    ]
    assert "its last run" in said
    assert "farthest" not in said


def test_what_went_wrong_is_told_a_few_times(tmp_path: Path) -> None:
    events = [
        TimelineEvent(1.0, "too large", f"g++|{number}.cpp|-O2", "needed 5.1 GiB") for number in range(14)
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
