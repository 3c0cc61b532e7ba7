"""Records go to whoever started the guard, and into a file as long as it can be written."""

import os
from pathlib import Path

from torchmill.toolchain.guard.server import READY, GuardRecorder
from torchmill.toolchain.guard.timeline import Record, TimelineEvent, TimelineMoment, parse_record

MOMENT = TimelineMoment(1.0, 2, 3, 4, 5, 6)
EVENT = TimelineEvent(2.0, "pause", "a.c")


def recorded(file: Path, *records: Record) -> list[str]:
    """Return what is told when records are taken."""
    reading, writing = os.pipe()
    recorder = GuardRecorder(writing, file, lambda: 9.0)
    recorder.ready()
    for record in records:
        recorder.take(record)
    recorder.close()
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        return pipe.readlines()


def test_records_are_told_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "new" / "timeline"
    ready, *told = recorded(file, MOMENT, EVENT)
    assert ready == READY
    assert [parse_record(line) for line in told] == [MOMENT, EVENT]
    assert file.read_text("utf-8").splitlines(keepends=True) == told


def test_the_file_is_begun_anew(tmp_path: Path) -> None:
    recorded(tmp_path / "timeline", EVENT)
    recorded(tmp_path / "timeline", EVENT)
    assert len((tmp_path / "timeline").read_text("utf-8").splitlines()) == 1


def test_a_file_that_cannot_be_made_is_named_and_forgotten(tmp_path: Path) -> None:
    lost, ready, *told = recorded(tmp_path, EVENT)
    assert ready == READY
    event = parse_record(lost)
    assert isinstance(event, TimelineEvent)
    assert (event.kind, event.at) == ("no timeline", 9.0)
    assert str(tmp_path) in event.text
    assert [parse_record(line) for line in told] == [EVENT]


def test_a_full_disk_ends_the_file_only() -> None:
    _, *told = recorded(Path("/dev/full"), EVENT, EVENT)
    records = [parse_record(line) for line in told]
    assert [one.kind for one in records if isinstance(one, TimelineEvent)] == [
        "pause",
        "no timeline",
        "pause",
    ]
