"""Logs are read in any encoding and of any size, from files, pipes and standard input."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.core.log_reader import SkippedLines, read_log


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-8", b""),
        ("utf-8-sig", b""),
        ("utf-16", b""),
        ("utf-16-le", b""),
        ("utf-16-be", b"\xfe\xff"),
    ],
)
def test_encodings(tmp_path: Path, encoding: str, mark: bytes) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(mark + ("first: größer\r\nsecond\rthird\n" * 20).encode(encoding))
    lines = [line.strip("\ufeff\n") for line in read_log(str(log))]
    assert lines[:3] == ["first: größer", "second", "third"]


def test_bytes_that_are_not_utf_8_do_not_stop_the_reading(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes("a.cpp:1: error: Größe\n".encode("latin-1"))
    assert list(read_log(str(log))) == ["a.cpp:1: error: Gr\ufffd\ufffde\n"]


def test_standard_input() -> None:
    code = "from torchmill.core.log_reader import read_log; print(list(read_log('-')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="a\nb\n",
        cwd=Path(__file__).parents[2],
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout == "['a\\n', 'b\\n']\n"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "log-empty"),
        (b"\x7fELF\x02\x01\x01" + bytes(90), "log-not-text"),
        (b"\x1f\x8b\x08\x00" + bytes(range(256)), "log-not-text"),
    ],
    ids=["empty", "program", "compressed"],
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(content)
    with refused(code):
        list(read_log(str(log)))


def test_a_name_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with refused("no-log"):
        list(read_log(""))
    with refused("log-unreadable"):
        list(read_log(str(tmp_path)))
    with refused("log-unreadable"):
        list(read_log(str(tmp_path / "missing.log")))


def test_a_pipe_into_which_nobody_writes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHMILL_SILENCE", "0.5")
    os.mkfifo(tmp_path / "log")
    with refused("silent"):
        list(read_log(str(tmp_path / "log")))


def test_of_a_very_long_line_its_beginning_and_end_are_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"begin{'x' * 3_000_000}end\nnext\n")
    first, second = read_log(str(log))
    assert first.startswith("beginx")
    assert first.endswith("xend\n")
    assert len(first) < 5000
    assert second == "next\n"


def test_a_line_longer_than_a_block_is_marked_as_cut(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{'x' * (3000 + (1 << 20))}{'y' * 500}\n")
    (line,) = read_log(str(log))
    beginning, end = line.split(" … ")
    assert beginning == "x" * 3000
    assert end.endswith("y\n")


def test_a_mark_stands_for_the_lines_in_the_middle_of_a_very_long_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("w") as file:
        file.writelines(f"[{number}/900000] Building a{number}.o\n" for number in range(900_000))
        file.write("the last line\n")
    lines = list(read_log(str(log)))
    (skipped,) = (line for line in lines if isinstance(line, SkippedLines))
    assert len(lines) - 1 + skipped.line_count == 900_001
    assert lines[-1] == "the last line\n"


def test_a_password_in_the_name_of_a_log_is_not_repeated() -> None:
    with refused("log-unreadable") as caught:
        list(read_log("https://user:secret@host/log"))
    assert "secret" not in str(caught.value)
