"""The lines that may tell of a failure, without what tools and runners put around them."""

import re
import tracemalloc
from pathlib import Path
from textwrap import dedent

import pytest

from torchmill.core.log_reader import SkippedLines, read_log
from torchmill.plan.log_lines import LogLine, last_run, telling_lines


def telling_numbers(*lines: str) -> list[int]:
    return [line.number for line in telling_lines(lines)]


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
def test_prefixes_of_runners_and_containers_go(line: str) -> None:
    texts = [(telling.number, telling.text) for telling in telling_lines(["x", line])]
    assert texts == [(1, "x"), (2, "Killed")]


@pytest.mark.parametrize(
    "line", ["[12/99] Building a.o", "[ 12%] Building a.o", "12:3 odd", "gcc 12.2 it is"]
)
def test_what_only_looks_like_a_prefix_stays(line: str) -> None:
    assert list(telling_lines([line])) == [LogLine(1, line)]


def test_of_progress_only_the_first_line_stays() -> None:
    lines = ("[1/3] a", "[2/3] b", "error: x", "[3/3] c", "-- Found it")
    assert telling_numbers(*lines) == [1, 3, 4]


def test_the_command_below_failed_is_left_out() -> None:
    assert telling_numbers("FAILED: a.o", "odd-tool a.c # Killed", "output") == [1, 3]


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
    message, stack, _ = telling_lines(lines)
    assert message == LogLine(
        1,
        "      CMake Error at third_party/CMakeLists.txt:5 (add_subdirectory): The source directory "
        "/pytorch/third_party/fmt does not contain a CMakeLists.txt file.",
    )
    assert stack.number == 7


def test_at_most_sixty_lines_are_one_message_of_cmake() -> None:
    lines = ["CMake Warning at a:", *(["  indented"] * 60)]
    assert telling_numbers(*lines) == [61]


def test_ranges_of_lines_that_were_not_read_are_told_apart() -> None:
    log = [SkippedLines(2), "error: x", SkippedLines(3)]
    assert last_run(log).skipped == (
        "the log is too long: lines 1 to 2 were not read; "
        "the log is too long: lines 4 to 6 were not read"
    )


def test_of_a_log_of_two_runs_the_second_is_read() -> None:
    log = """\
        FAILED: a.o
        g++ -c a.cpp
        a.cpp:1:1: error: corrected since
        ninja: build stopped: subcommand failed.
        [1/1] g++ -c b.cpp
        FAILED: b.o
        g++ -c b.cpp
        b.cpp:2:1: error: the one to show
        ninja: build stopped: subcommand failed.
        """
    run = last_run(dedent(log).splitlines()).lines
    assert "corrected since" not in "".join(line.text for line in run)
    assert run[-2].text == "b.cpp:2:1: error: the one to show"


def test_a_log_of_any_size_takes_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = b"/a/b.cpp:1:2: error: " + b"x" * 3900 + b"\n"
    with log.open("wb") as file:
        file.write(b"\n/first.cpp:1:2: error: the first\n" + b"y" * 60_000_000 + b"\n")
        for _ in range(20_000):
            file.write(line)
        file.write(b"FAILED: last.o\nc++ -c last.cpp\n/last.cpp:9: error: the last\n")
    tracemalloc.start()
    run = last_run(read_log(str(log))).lines
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20
    assert run[1].number == 2
    assert run[3].number == 4
    assert run[-1].text == "/last.cpp:9: error: the last"


def test_lines_keep_their_numbers_behind_those_that_are_skipped(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("w") as file:
        file.writelines(f"[{number}/900000] Building a{number}.o\n" for number in range(1, 900_001))
        file.write("a.cpp:1:2: error: the last line\n")
    reading = last_run(read_log(str(log)))
    assert reading.lines[-1] == LogLine(900_001, "a.cpp:1:2: error: the last line")
    assert re.fullmatch(r"the log is too long: lines \d+ to \d+ were not read", reading.skipped)
