"""Timelines read back, whole and torn."""

from pathlib import Path

import pytest

from tests.support.recorded import moment, ran, recording, small, write
from torchmill.commands.report.recording import read_timeline
from torchmill.core.errors import ConfigError
from torchmill.toolchain.guard.timeline import format_record


def test_everything_stands_in_the_order_of_time(tmp_path: Path) -> None:
    found = recording(tmp_path, reversed(small()))
    assert found.name == "wheel-3.10-cpu"
    assert [one.begun for one in found.runs] == [0.0, 1.0, 9.5, 18.5]
    assert [one.kind for one in found.events] == ["pause", "resume", "rerun"]
    assert [one.at for one in found.moments] == sorted(one.at for one in found.moments)
    assert found.wall == 20.0
    assert found.notes == ()


@pytest.mark.parametrize("end", [1, 40, 300])
def test_a_line_that_was_cut_off_is_told(tmp_path: Path, end: int) -> None:
    path = write(tmp_path / "x.timeline.jsonl", small())
    whole = path.read_bytes()
    path.write_bytes(whole[: -min(end, len(whole) - 200)].rstrip(b"\n") if end > 1 else whole[:-3])
    found = read_timeline(path)
    assert found.notes == ("its last line is cut off: the build was stopped there, or goes on",)
    assert found.runs


def test_torn_lines_are_left_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "x.timeline.jsonl"
    good = format_record(ran("a.cpp", 0, 1)).encode()
    path.write_bytes(b"\n".join([good, b'{"record":"ra\0\0', good, b"\xff\xff", good, b""]))
    found = read_timeline(path)
    assert len(found.runs) == 3
    assert found.notes == ("2 of its 5 lines hold no record and are left out, the first is line 2",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: that build ended before its guard saw anything of it"),
        (b'{"record":"mom', "holds one line, cut off"),
        (b"[1/2] Building CXX object a.o\n", "is no timeline of a build: name a wheel, a build's log"),
        (b"\x7fELF\x02\x01\x01" + bytes(3 * 2**20), "is no timeline of a build"),
        (b"PK\x03\x04\n\n", "is no timeline of a build"),
        (b'{"record":1}\n{"record":2}\n', "is no timeline of a build"),
    ],
)
def test_what_is_no_timeline_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_timeline(path)
    assert str(path) in str(caught.value)


def test_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        read_timeline(tmp_path)


def test_moments_alone_are_a_timeline(tmp_path: Path) -> None:
    assert read_timeline(write(tmp_path / "x", [moment(1)])).wall == 1
