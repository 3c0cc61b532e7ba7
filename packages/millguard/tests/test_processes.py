"""Processes found by what they carry or by their group, and ended: also those that are stopped or deaf."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from millguard.processes import (
    end_by_variable,
    end_processes,
    find_by_group,
    find_by_variable,
    wait_until_ended,
)

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="process groups and signals are POSIX's"
)

IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
TIDIES = """
import pathlib, signal, sys, time
def tidy(*_):
    pathlib.Path(sys.argv[1]).touch()
    sys.exit()
signal.signal(signal.SIGTERM, tidy)
print(flush=True)
time.sleep(60)
"""
SLEEPS = "import time; print(flush=True); time.sleep(60)"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def start(
    started: list[subprocess.Popen[bytes]],
    code: str,
    *arguments: str,
    group: int | None = None,
    mark: str = "",
) -> psutil.Process:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        process_group=group,
        env={**os.environ, "TORCHMILL_MARK": mark},
    )
    started.append(process)
    assert process.stdout is not None
    process.stdout.readline()  # it has set itself up
    return psutil.Process(process.pid)


def test_processes_are_found_by_what_they_carry(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    mine = [start(started, SLEEPS, mark=str(tmp_path), group=group) for group in (None, 0)]
    start(started, SLEEPS, mark=f"{tmp_path}/other")
    assert find_by_variable("TORCHMILL_MARK", str(tmp_path)) == sorted(
        mine, key=lambda one: one.pid
    )


def test_one_that_was_started_this_moment_is_found(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # looked at as soon as it is there; of about one in thirty the kernel shows no variables yet
    monkeypatch.setattr(psutil, "process_iter", lambda: [psutil.Process(started[-1].pid)])
    for _ in range(100):
        started.append(
            subprocess.Popen(["sleep", "60"], env={**os.environ, "TORCHMILL_MARK": str(tmp_path)})
        )
        assert find_by_variable("TORCHMILL_MARK", str(tmp_path))
        started[-1].kill()
        started[-1].wait()


def test_this_process_is_never_found() -> None:
    ours = psutil.Process().environ()
    name = next(name for name in ours if ours[name])
    assert os.getpid() not in {one.pid for one in find_by_variable(name, ours[name])}
    assert os.getpid() not in {one.pid for one in find_by_group(os.getpgrp())}


def test_a_group_is_found_when_its_leader_is_gone(started: list[subprocess.Popen[bytes]]) -> None:
    leader = start(started, SLEEPS, group=0)
    member = start(started, SLEEPS, group=leader.pid)
    assert find_by_group(leader.pid) == sorted([leader, member], key=lambda one: one.pid)
    leader.kill()
    started[0].wait()
    assert find_by_group(leader.pid) == [member]


def test_who_is_asked_may_put_its_files_away_even_when_stopped(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start(started, TIDIES, str(tmp_path / "tidy"))
    process.send_signal(signal.SIGSTOP)
    end_processes([process], patience=30)
    assert process.wait(timeout=10) == 0
    assert (tmp_path / "tidy").exists()


def test_who_does_not_listen_is_killed(started: list[subprocess.Popen[bytes]]) -> None:
    process = start(started, IGNORES)
    end_processes([process], patience=0.2)
    assert process.wait(timeout=10) == -signal.SIGKILL


def test_who_is_gone_already_is_no_trouble(started: list[subprocess.Popen[bytes]]) -> None:
    process = start(started, SLEEPS)
    process.kill()
    started[0].wait()
    end_processes([process])
    assert wait_until_ended([process], 0.1) == []


def test_who_has_ended_is_not_waited_for_where_nobody_takes_note_of_it() -> None:
    script = "import subprocess as s, time; print(s.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        process = psutil.Process(int(parent.stdout.readline()))
        end_processes([process])
        assert process.status() == psutil.STATUS_ZOMBIE
        assert wait_until_ended([process], 0.1) == []
        parent.kill()


def test_waiting_ends_with_the_last(started: list[subprocess.Popen[bytes]]) -> None:
    stays, goes = (start(started, SLEEPS) for _ in range(2))
    goes.terminate()
    assert wait_until_ended([goes], 30.0) == []
    assert wait_until_ended([stays], 0.2) == [stays]


@pytest.mark.skipif(sys.platform != "linux", reason="only there is it a file system")
def test_without_proc_nobody_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for there in (tmp_path, tmp_path / "gone"):
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(there))
        assert find_by_variable("HOME", "/") == []
        end_by_variable("HOME", "/")
