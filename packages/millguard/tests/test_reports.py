"""The report on a run: text, picture and page."""

import json
import os
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from millguard import drawing, recorded_runs, reports
from millguard.recorded_runs import (
    ABANDONED_SECONDS,
    KEPT_RUNS,
    NoRunError,
    RecordedRun,
    RunRecord,
    load_latest,
    load_run,
    new_recording,
    save_run,
    without_credentials,
)
from millguard.timeline import Record, TimelineEvent, TimelineMoment, UnitRun, format_record
from millguard.usage import UsageError

GIB = 2**30
HOSTILE = "c++|<script>\x1b[31m\u202e&.cpp|-O2"
RECORD = RunRecord(("pip", "install", "x"), "/src", "2026-11-30T12:00:00+00:00", 65.0, 0, 4)
RECORDS: tuple[Record, ...] = (
    TimelineMoment(0.0, 0, 4 * GIB, 0, 2, 0, 4.0, 0.0),
    TimelineMoment(10.0, 3 * GIB, 4 * GIB, 1, 2, 0, 4.0, 0.0),
    TimelineMoment(20.0, 3 * GIB, 4 * GIB, 1, 3, 0, 4.0, 10.0),
    TimelineMoment(30.0, GIB, 4 * GIB, 2, 0, 0, 4.0, 10.0),
    UnitRun("c++|big.cpp|-O2", "c++", 0.0, 20.0, 3 * GIB, GIB, "done"),
    UnitRun("c++|slow.cpp|-O2", "c++", 0.0, 60.0, GIB, GIB, "done"),
    UnitRun(HOSTILE, "cuda", 20.0, 25.0, GIB, GIB, "ended"),
    TimelineEvent(25.0, "rerun", HOSTILE),
    TimelineEvent(26.0, "too large", "c++|big.cpp|-O2", "needed 5.0 GiB, 4.0 GiB are allowed"),
)


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    timeline = new_recording(tmp_path)
    timeline.write_text("".join(f"{format_record(record)}\n" for record in RECORDS))
    save_run(timeline, RECORD)
    return load_latest(tmp_path)


def test_a_run_is_read_as_it_was_written(run: RecordedRun) -> None:
    assert (run.record, run.records) == (RECORD, RECORDS)


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://user:secret@host/x", "https://…@host/x"),
        ("https://secret@host/x@v1", "https://…@host/x@v1"),
        ("https://user:p@ss@host/x", "https://…@host/x"),
        ("https://user:p/ss@host/x", "https://…@host/x"),
        ("git+https://host/x.git@v1.0", "git+https://host/x.git@v1.0"),
        ("https://host:8080/x@v1", "https://host:8080/x@v1"),
        ("http://[::1]:80/x@v1", "http://[::1]:80/x@v1"),
        ("file:///C:/x@v1", "file:///C:/x@v1"),
        ("a@b", "a@b"),
    ],
)
def test_user_names_and_passwords_are_hidden(word: str, shown: str) -> None:
    assert without_credentials(["pip", word]) == ("pip", shown)


def test_the_text_says_what_was_slow_big_and_waiting(run: RecordedRun) -> None:
    text = reports.render_text(run)
    lines = text.splitlines()
    assert lines[0] == "pip install x"
    assert lines[1].startswith("succeeded after 1:05; began 2026-11-30")
    assert "slow.cpp" in lines[lines.index("The slowest:") + 1]
    assert "big.cpp" in lines[lines.index("The biggest:") + 1]
    assert "0:10 to 0:20: 3 compilers waited, since those that ran had 3.0 GiB of 4.0 GiB" in text
    assert "0:26: big.cpp took more than there was for all compilers (needed 5.0 GiB" in text


def test_a_build_without_events_says_that_nothing_waited(tmp_path: Path) -> None:
    quiet = RecordedRun(RECORD, RECORDS[5:6], tmp_path)
    assert "No compiler waited for memory." in reports.render_text(quiet)


def test_names_of_files_are_text_and_nothing_else(run: RecordedRun) -> None:
    page = reports.render_page(run)
    for text in (page, drawing.draw_run(run), reports.render_text(run)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_the_picture_is_a_document_with_a_bar_for_each_unit(run: RecordedRun) -> None:
    root = ET.fromstring(drawing.draw_run(run))  # noqa: S314 - our own
    bars = root.findall(".//{*}rect")
    titles = [bar.findtext("{*}title") or "" for bar in bars]
    assert len(bars) == 3
    assert any(title.startswith("slow.cpp: 60.0 s, 1.0 GiB, done") for title in titles)


def test_a_run_without_records_can_be_drawn(tmp_path: Path) -> None:
    ET.fromstring(drawing.draw_run(RecordedRun(RECORD, (), tmp_path)))  # noqa: S314 - our own


def test_memory_above_the_limit_is_not_cut_off(tmp_path: Path) -> None:
    """Others may take memory that the running units were allowed to have."""
    moments = (
        TimelineMoment(0.0, 4 * GIB, 4 * GIB, 1, 0, 0),
        TimelineMoment(60.0, 6 * GIB, 3 * GIB, 1, 0, 0),
    )
    root = ET.fromstring(drawing.draw_run(RecordedRun(RECORD, moments, tmp_path)))  # noqa: S314 - our own
    outline = root.find("{*}polygon")
    assert outline is not None
    heights = [float(point.split(",")[1]) for point in outline.attrib["points"].split()]
    _, at_limit, above_limit, _ = heights
    assert above_limit < at_limit, "more memory is higher"
    assert any("6.0 GiB" in (text.text or "") for text in root.findall("{*}text"))


def test_lines_that_are_no_records_are_left_out(tmp_path: Path) -> None:
    timeline = new_recording(tmp_path)
    lines = ["no record", format_record(RECORDS[0]), format_record(RECORDS[1])[:-5]]
    timeline.write_text("\n".join(lines))
    with pytest.raises(NoRunError):
        load_run(timeline)  # the command has not ended
    save_run(timeline, RECORD)
    assert load_run(timeline).records == RECORDS[:1]


def test_only_the_latest_runs_are_kept(tmp_path: Path) -> None:
    for _ in range(KEPT_RUNS + 3):
        timeline = new_recording(tmp_path)
        timeline.write_text("")
        save_run(timeline, RECORD)
    assert len(list((tmp_path / "runs").iterdir())) == 2 * KEPT_RUNS


def test_a_run_that_began_before_many_others_is_kept_while_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the others end on machines that share the folder, and whose clocks are ahead."""
    now = recorded_runs.wall_clock()
    monkeypatch.setattr(recorded_runs, "wall_clock", lambda: now + 3 * ABANDONED_SECONDS)
    long_timeline = new_recording(tmp_path)
    long_timeline.write_text("")
    for _ in range(KEPT_RUNS + 1):
        timeline = new_recording(tmp_path)
        timeline.write_text("")
        save_run(timeline, RECORD)
    save_run(long_timeline, RECORD)
    assert load_run(long_timeline).record == RECORD


def test_the_timeline_of_a_killed_run_is_removed_in_the_end(tmp_path: Path) -> None:
    abandoned = new_recording(tmp_path)
    abandoned.write_text("")
    os.utime(abandoned, (0, 0))
    for _ in range(KEPT_RUNS):
        timeline = new_recording(tmp_path)
        timeline.write_text("")
        save_run(timeline, RECORD)
    assert not abandoned.exists()


def test_a_command_with_a_placeholder_of_the_page_stays_as_it_is(run: RecordedRun) -> None:
    record = replace(run.record, command=("make", "@sections@"))
    page = reports.render_page(replace(run, record=record))
    assert "<title>make @sections@</title>" in page


def test_an_absurd_time_does_not_make_an_endless_axis(tmp_path: Path) -> None:
    moment = TimelineMoment(2.0**62, 0, 0, 0, 0, 0)
    picture = drawing.draw_run(RecordedRun(RECORD, (moment,), tmp_path))
    assert picture.count('text-anchor="middle"') < 20


def test_a_folder_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "r.html").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        reports.check_target(tmp_path / "r.html")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"command": 1}',
        json.dumps({**asdict(RECORD), "format": 2}),
        json.dumps({**asdict(RECORD), "command": [1]}),
        json.dumps({**asdict(RECORD), "command": "ls"}),
        json.dumps({**asdict(RECORD), "unguarded": []}),
        json.dumps({**asdict(RECORD), "unguarded": None}),
        json.dumps({**asdict(RECORD), "cores": 0}),
        json.dumps({**asdict(RECORD), "seconds": "long"}),
        json.dumps({**asdict(RECORD), "unguarded": {"go": "many"}}),
    ],
)
def test_a_damaged_description_is_refused(run: RecordedRun, content: str) -> None:
    next(run.timeline.parent.glob("*.run.json")).write_text(content)
    with pytest.raises(NoRunError):
        load_run(run.timeline)


def test_the_last_line_of_a_killed_run_may_be_torn(run: RecordedRun) -> None:
    with run.timeline.open("a") as file:
        file.write('{"record":"mom')
    assert load_run(run.timeline).records == RECORDS
