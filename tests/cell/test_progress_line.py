"""How far a build is, by a clock that the test moves."""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO

import pytest
from guard_support.guards import until
from millguard.timeline import BuildAccount, TimelineMoment
from rich.console import Console

from torchmill.cell import progress_line
from torchmill.cell.progress_line import (
    BuildStatus,
    BuildTrack,
    ProgressLine,
    format_clock,
    show_build_progress,
)
from torchmill.core import console
from torchmill.core.console import INTERVAL_SECONDS
from torchmill.core.ninja import Edge, EdgePace

GIB = 2**30


class Used(BuildAccount):
    """An account of a build without units; `use` changes its memory in use, in bytes."""

    def __init__(self, current: int = 2 * GIB) -> None:
        super().__init__()
        self.use(current)

    def use(self, current: int) -> None:
        self.add(TimelineMoment(0.0, current, 8 * GIB, running=0, waiting=0, paused=0))


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def on_terminal(file: TextIO, clock: Time, width: int = 120) -> Iterator[ProgressLine]:
    line = ProgressLine(file, clock, Console(file=file, width=width, force_terminal=True))
    yield line
    line.settle()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (245, "4:05"), (3723, "1:02:03"), (36000, "10:00:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_clock(seconds) == text


def test_a_status_says_all_of_it_in_one_line() -> None:
    now = TimelineMoment(0.0, 2 * GIB, 22 * GIB, running=0, waiting=0, paused=0)
    status = BuildStatus(Edge(3, 4, ""), None, "a.o", elapsed=61, remaining=20, now=now)
    assert str(status) == "3/4 (75 %), 1:01 so far, about 0:20 left, memory 2.0 of 22.0 GiB: a.o"
    guarded = replace(status, now=replace(now, running=8, waiting=3, paused=1))
    assert guarded.pace == "3/4 (75 %), 1:01 so far, about 0:20 left"
    assert guarded.load == "8 running, 3 waiting, 1 paused, memory 2.0 of 22.0 GiB"
    assert str(guarded) == f"{guarded.pace}, {guarded.load}: a.o"
    assert (
        replace(status, share=0.314).pace == "3/4 (31 % of the work), 1:01 so far, about 0:20 left"
    )


def test_what_a_guard_sees_is_shown_from_its_first_moment_on() -> None:
    track, account = BuildTrack(Time()), BuildAccount()
    assert str(track.status(account)) == "0:00 so far: starting"
    account.add(TimelineMoment(0.5, GIB // 2, 6 * GIB, running=2, waiting=0, paused=0))
    assert str(track.status(account)) == "0:00 so far, 2 running, memory 0.5 of 6.0 GiB: starting"


def test_before_the_first_edge_the_last_line_is_what_goes_on() -> None:
    track = BuildTrack(Time())
    assert str(track.status(Used(GIB))) == "0:00 so far, memory 1.0 of 8.0 GiB: starting"
    track.read("-- Looking for pthread.h\n")
    track.read("\n")
    assert track.status(Used()).title == "-- Looking for pthread.h"
    track.read("-- " + "x" * 300)
    assert len(track.status(Used()).title) == 100
    track.read("[1/4] Building CXX object caffe2/CMakeFiles/torch_cpu.dir/a.cpp.o")
    track.read("a.cpp:1:1: warning: unused")
    assert track.status(Used()).title == "a.cpp.o"
    track.read("[2/4] Running gen.py --all")
    assert track.status(Used()).title == "Running gen.py --all"
    track.read("[4/4] c++ -MMD -MF build/b.o.d -O2 -c src/b.cpp -o build/b.o -DNDEBUG")
    assert track.status(Used()).title == "b.o"


def test_what_makes_many_files_is_shown_in_one_short_line() -> None:
    track = BuildTrack(Time())
    track.read(
        f"[1/2] Generating {', '.join(f'/a/long/folder/File_{number}.cpp' for number in range(99))}"
    )
    assert (
        str(track.status(Used()))
        .partition(": ")[2]
        .startswith("Generating /a/long/folder/File_0.cpp, ")
    )
    assert len(str(track.status(Used()))) < 200


def test_each_extension_of_several_has_its_name() -> None:
    """Setuptools runs ninja once for each, which counts from the start; torch compiles one more without ninja."""
    track = BuildTrack(Time())
    for line in ("building 'pair._C' extension", "[1/26] c++ -o a.o", "[24/26] c++ -o b.o"):
        track.read(line)
    assert track.status(Used()).pace == "pair._C: 24/26 (92 %), 0:00 so far"
    track.read("building 'pair.image' extension")
    assert track.status(Used()).pace == "pair._C: 24/26 (92 %), 0:00 so far"
    track.read("[1/17] c++ -o c.o")
    assert track.status(Used()).pace == "pair.image: 1/17 (5 %), 0:00 so far"
    for name in ("one", "two"):  # of a single file each, as in a share
        track.read(f"building 'pair.{name}' extension")
        track.read(f"[1/1] c++ -o {name}.o")
        assert track.status(Used()).pace.startswith(f"pair.{name}: 1/1 ")


def test_a_pipe_gets_a_line_at_most_every_half_minute() -> None:
    file, clock = io.StringIO(), Time()
    line = ProgressLine(file, clock)
    for done in range(1, 101):
        clock.now += 1
        line.read(f"[{done}/200] Building CXX object x/{done}.o", Used())
    lines = file.getvalue().splitlines()
    assert INTERVAL_SECONDS == 30
    assert [text.split()[0] for text in lines] == ["30/200", "60/200", "90/200"]
    assert lines[-1] == "90/200 (45 %), 1:30 so far, about 1:50 left, memory 2.0 of 8.0 GiB: 90.o"


def test_a_pipe_is_told_again_while_a_long_file_keeps_the_build_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, clock = io.StringIO(), Time()
    line = ProgressLine(file, clock)
    line.repeat()
    line.read("[1/2] Building CXX object x/1.o", Used())
    clock.now += 240
    line.repeat()
    line.repeat()
    assert file.getvalue() == "1/2 (50 %), 4:00 so far, memory 2.0 of 8.0 GiB: 1.o\n"
    monkeypatch.setattr(progress_line, "REPEAT_SECONDS", 0.01)
    monkeypatch.setattr(console, "INTERVAL_SECONDS", 0.0)
    with show_build_progress(file := io.StringIO()) as line:
        line.read("[1/2] Building CXX object x/1.o", Used())
        until(lambda: len(file.getvalue().splitlines()) > 1)
    told = file.getvalue()
    time.sleep(0.05)
    assert file.getvalue() == told, "it is over"


def test_a_build_says_how_much_of_the_work_is_done_where_it_is_known_what_takes_long() -> None:
    file, clock = io.StringIO(), Time()
    line = ProgressLine(file, clock)
    costs = {"x/long.o": 90.0, **{f"x/{number}.o": 1.0 for number in range(10)}}
    line.expect(EdgePace(lambda path: costs[path], lambda: costs))
    for done in range(1, 11):
        clock.now += 4
        line.read(f"[{done}/11] Building CXX object x/{done - 1}.o", Used())
    assert file.getvalue().splitlines() == [
        "8/11 (8 % of the work), 0:32 so far, about 6:08 left, memory 2.0 of 8.0 GiB: 7.o"
    ]


def test_a_note_is_written_at_once() -> None:
    file = io.StringIO()
    ProgressLine(file, Time()).note("resuming")
    assert file.getvalue() == "resuming\n"


def test_a_log_is_told_again_after_a_note_until_the_build_ends() -> None:
    file, clock = io.StringIO(), Time()
    line = ProgressLine(file, clock)
    line.read("[1/2] Building CXX object x/1.o", Used())
    line.note("x/2.o waits for memory")
    clock.now += 240
    line.repeat()
    told = ["x/2.o waits for memory", "1/2 (50 %), 4:00 so far, memory 2.0 of 8.0 GiB: 1.o"]
    assert file.getvalue().splitlines() == told
    line.settle()
    clock.now += 240
    line.repeat()
    assert file.getvalue().splitlines() == told


def test_a_terminal_keeps_the_last_status_when_a_note_comes() -> None:
    file, clock, used = io.StringIO(), Time(), Used()
    with on_terminal(file, clock, width=120) as line:
        line.read("[1/2] Linking CXX shared library lib/libtorch.so", used)
        clock.now = 90  # nothing is printed for long, and time goes on all the same
        used.use(3 * GIB)
        line.note("[verifying]")
    end = file.getvalue()
    assert "1/2 (50 %), 1:30 so far, memory 3.0 of 8.0 GiB: libtorch.so\n" in end
    assert end.endswith("[verifying]\n")


def test_a_terminal_of_80_columns_shows_time_left_and_memory() -> None:
    file, clock = io.StringIO(), Time()
    with on_terminal(file, clock, width=80) as line:
        for done in range(1700, 1720):
            clock.now = 60 * (done - 1600)
            line.read(f"[{done}/6789] Building CXX object a.o", Used())
        assert line._live is not None
        file.truncate(0)
        line._live.refresh()
        shown = file.getvalue()
    assert "1719/6789 (25 %), 19:00 so far, about " in shown
    assert " left" in shown
    assert "memory 2.0 of 8.0 GiB: a.o" in shown


def test_a_line_that_saw_nothing_leaves_nothing() -> None:
    file = io.StringIO()
    with on_terminal(file, Time()):
        pass
    assert file.getvalue() == ""


def test_a_note_in_the_middle_changes_neither_time_nor_pace() -> None:
    clock = Time()
    with on_terminal(io.StringIO(), clock) as line:
        for done in range(1, 9):
            clock.now = 10 * done
            line.read(f"[{done}/20] Building CXX object a.o", Used())
            line.note("a.cpp was killed")
        status = line._track.status(Used()) if line._track else None
    assert status is not None
    assert (status.edge, status.elapsed) == (Edge(8, 20, "Building CXX object a.o"), 70)
    assert status.remaining == pytest.approx(120)


def test_a_failed_compile_is_no_progress() -> None:
    track = BuildTrack(clock=lambda: 0.0)
    for line in (
        "[1/77] Building CXX object a.o",
        "[2/77] Building CXX object b.o",
        "FAILED: [code=1] b.o",
    ):
        track.read(line)
    said = str(track.status(Used()))
    assert said.startswith("1/77 (1 %), ")
    assert "failed, and waiting for the compilers that still run" in said
    track.read("[1/3] Building CXX object c.o")
    assert "failed" not in str(track.status(Used())), "this is another run of ninja"
