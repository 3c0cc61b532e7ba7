"""Logs of any encoding, of containers and runners, become plain lines."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.plan.diagnosis.log_text import LogLine, read_log, telling_lines


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be-bom"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    text = "first: größer\r\nsecond\rthird\n" * 20
    log = tmp_path / "a.log"
    if encoding == "utf-16-be-bom":
        log.write_bytes(b"\xfe\xff" + text.encode("utf-16-be"))
    else:
        log.write_bytes(text.encode(encoding))
    assert [line.text for line in telling_lines(read_log(str(log)))][:3] == [
        "first: größer",
        "second",
        "third",
    ]


def test_bytes_that_are_no_utf_8_do_not_stop_the_reading(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes("a.cpp:1: error: Größe\n".encode("latin-1"))
    assert [line.text for line in telling_lines(read_log(str(tmp_path / "a.log")))] == [
        "a.cpp:1: error: Gr\ufffd\ufffde"
    ]


def test_standard_input() -> None:
    code = "from torchmill.plan.diagnosis.log_text import read_log; print(list(read_log('-')))"
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
        (None, "log-unreadable"),
        (b"", "log-empty"),
        (b"\x7fELF\x02\x01\x01" + bytes(90), "log-not-text"),
        (b"\x1f\x8b\x08\x00" + bytes(range(256)), "log-not-text"),
    ],
    ids=["missing", "empty", "program", "compressed"],
)
def test_what_is_no_log_is_one_sentence(tmp_path: Path, content: bytes | None, code: str) -> None:
    log = tmp_path / "a.log"
    if content is not None:
        log.write_bytes(content)
    with refused(code):
        list(read_log(str(log)))
    with refused("no-log"):
        list(read_log(""))
    with refused("log-unreadable"):
        list(read_log(str(tmp_path)))


@pytest.mark.parametrize(
    "line",
    [
        "#12 345.6 Killed",
        "0.123 Killed",
        "build-1  | Killed",
        "2024-05-06T12:34:56.1234567Z Killed",
        "2024-05-06T12:34:56.1234567Z ##[error]Killed",
        "2024-05-06T12:34:56.1Z #12 345.6 \x1b[31mKilled\x1b[0m",
        "wheel (3.10)\tBuild it\t2024-05-06T12:34:56.1234567Z Killed",
        "[2024-05-06T12:34:56.123Z] Killed",
        "23:49:13 Killed",
        "[ 1468s] Killed",
        "\ufeffKilled",
    ],
)
def test_what_others_wrote_before_a_line_goes(line: str) -> None:
    assert list(telling_lines(["x", line])) == [LogLine(1, "x"), LogLine(2, "Killed")]


@pytest.mark.parametrize(
    "line", ["[12/99] Building a.o", "[ 12%] Building a.o", "12:3 odd", "gcc 12.2 it is"]
)
def test_what_only_looks_like_a_prefix_stays(line: str) -> None:
    assert list(telling_lines([line])) == [LogLine(1, line)]


def test_of_progress_only_the_first_line_is_kept() -> None:
    lines = ["[1/3] a", "[2/3] b", "error: x", "[3/3] c", "-- Found it"]
    assert [line.number for line in telling_lines(lines)] == [1, 3, 4]


def test_the_command_below_failed_is_left_out() -> None:
    assert [line.number for line in telling_lines(["FAILED: a.o", "odd-tool a.c # Killed", "said"])] == [1, 3]


def test_a_message_of_cmake_is_one_line() -> None:
    lines = [
        "      CMake Error at third_party/CMakeLists.txt:5 (add_subdirectory):",
        "        The source directory",
        "",
        "          /pytorch/third_party/fmt",
        "",
        "        does not contain a CMakeLists.txt file.",
        "      Call Stack (most recent call first):",
        "        CMakeLists.txt:7 (include)",
    ]
    first, stack, _ = telling_lines(lines)
    assert first == LogLine(
        1,
        "      CMake Error at third_party/CMakeLists.txt:5 (add_subdirectory): The source directory "
        "/pytorch/third_party/fmt does not contain a CMakeLists.txt file.",
    )
    assert stack.number == 7
