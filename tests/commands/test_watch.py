"""`invoke status --watch`: the state of builds that run, by their timelines and logs."""

import io
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from millguard import GuardSite, guard_build
from millguard.timeline import (
    Record,
    TimelineEvent,
    TimelineMoment,
    UnitRun,
    UnitStart,
    format_record,
)

from tests.support.refusals import refused
from torchmill.commands import watch
from torchmill.commands.watch import WatchedBuild, describe_build, last_edge, watch_builds
from torchmill.core.paths import Layout

GIB = 2**30
BIG, SMALL = "c++|csrc/big.cpp|-O2", "c++|csrc/small.cpp|-O2"
RECORDS: tuple[Record, ...] = (
    UnitStart(1.0, BIG, 2 * GIB),
    UnitStart(2.0, SMALL, GIB),
    UnitStart(2.5, "c++|csrc/done.cpp|-O2", GIB),
    UnitRun("c++|csrc/done.cpp|-O2", "c++", 2.5, 3.0, GIB, GIB, "failed"),
    TimelineEvent(50.0, "pause", SMALL),
    TimelineMoment(60.0, 3 * GIB, 4 * GIB, 1, 2, 1, 4.0, 12.0),
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    checkout = Layout(tmp_path, tmp_path / "cache")
    checkout.logs.mkdir(parents=True)
    return checkout


def _write(layout: Layout, *records: Record, name: str = "v2.4.1-wheel-3.12-cpu") -> Path:
    timeline = layout.logs / f"{name}.timeline.jsonl"
    timeline.write_text("".join(f"{format_record(record)}\n" for record in records))
    return timeline


def test_a_build_is_described_by_what_runs_waits_and_was_paused(layout: Layout) -> None:
    timeline = _write(layout, *RECORDS)
    (layout.logs / "v2.4.1-wheel-3.12-cpu.log").write_text("[1/40] CXX a.o\n[10/40] CXX b.o\nx\n")
    build = WatchedBuild(timeline)
    build.read_on()
    assert describe_build(build, seconds_since=0.0) == [
        "v2.4.1-wheel-3.12-cpu: 10/40 steps, 1:00 so far, about 3:00 left",
        (
            "  [######################........] 3.0 of 4.0 GiB  1 compiling, 2 waiting, 1 paused, "
            "1 failed, memory kept a processor idle for 0:12"
        ),
        "      0:59  csrc/big.cpp (2.0 GiB expected)",
        "      0:58  csrc/small.cpp (1.0 GiB expected, paused)",
        "      0:10 ago: csrc/small.cpp was paused: memory ran short",
    ]


def test_a_line_that_is_not_written_whole_is_read_later(layout: Layout) -> None:
    whole = f"{format_record(RECORDS[0])}\n"
    timeline = layout.logs / "b.timeline.jsonl"
    timeline.write_text(whole[:20])
    build = WatchedBuild(timeline)
    build.read_on()
    assert build.live.running == []
    with timeline.open("a") as file:
        file.write(whole[20:])
    build.read_on()
    assert build.live.running == [RECORDS[0]]


def test_a_timeline_that_begins_anew_is_another_build(layout: Layout) -> None:
    build = WatchedBuild(_write(layout, *RECORDS))
    build.read_on()
    _write(layout, RECORDS[1])
    build.read_on()
    assert build.live.running == [RECORDS[1]]


def test_names_of_files_cannot_steer_the_terminal(layout: Layout) -> None:
    build = WatchedBuild(_write(layout, UnitStart(0.0, "c++|\x1b[2J\u202ea.cpp|-O2", 1)))
    build.read_on()
    text = "\n".join(describe_build(build, 0.0))
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("text", "done"), [("", None), ("no edge\n", None), ("[ 12%] CXX a\n", 12)]
)
def test_the_last_edge_of_a_log(layout: Layout, text: str, done: int | None) -> None:
    log = layout.logs / "b.log"
    log.write_text(text)
    edge = last_edge(log)
    assert (edge.done if edge else None) == done
    assert last_edge(layout.logs / "missing.log") is None


def test_without_a_build_it_says_so(layout: Layout) -> None:
    timeline = _write(layout, *RECORDS)
    an_hour_ago = time.time() - 3600
    os.utime(timeline, (an_hour_ago, an_hour_ago))
    output = io.StringIO()
    watch_builds(layout, output)
    assert output.getvalue().startswith("no build runs in this checkout now")


def test_a_document_of_what_is_watched_is_refused(layout: Layout) -> None:
    with refused("contradictory-options"):
        watch_builds(layout, io.StringIO(), json=True)


def test_a_real_build_is_seen_while_it_compiles(layout: Layout, tmp_path: Path) -> None:
    """The guard, the gate and a compiler are real; the compiler is one that takes its time."""
    slow = tmp_path / "slow-compiler"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    timeline = layout.logs / "v1-wheel-3.12-cpu.timeline.jsonl"
    site = GuardSite(tmp_path, tmp_path / "cache", timeline, ["cc"], 1)
    with guard_build(site, {}) as guard:
        compiling = subprocess.Popen(
            [str(guard.gate), str(slow), "-c", "src/tensor.cpp"],
            env={**os.environ, **guard.environment},
        )
        deadline = time.monotonic() + 30
        output = io.StringIO()
        while "src/tensor.cpp" not in output.getvalue() and time.monotonic() < deadline:
            output = io.StringIO()
            watch_builds(layout, output)
            time.sleep(0.1)
        compiling.terminate()
        compiling.wait()
    assert "v1-wheel-3.12-cpu: " in output.getvalue()
    assert "1 compiling" in output.getvalue()
    assert "src/tensor.cpp (" in output.getvalue()


def test_on_a_terminal_it_follows_until_the_build_has_ended(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = _write(layout, *RECORDS)
    monkeypatch.setattr(watch, "is_live_terminal", lambda _: True)
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            long_ago = time.time() - 3600
            os.utime(timeline, (long_ago, long_ago))

    output = io.StringIO()
    watcher = threading.Thread(target=watch_builds, args=(layout, output, sleep))
    watcher.start()
    watcher.join(30)
    assert not watcher.is_alive()
    assert looks == 3
    assert output.getvalue().endswith("the build has ended: `invoke report` shows it\n")
