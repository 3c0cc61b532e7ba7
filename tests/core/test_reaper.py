"""Processes that a run has started end with it, also if the run is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from torchmill.core import reaper

ROOT = Path(__file__).parents[2]
# A run whose child has a session of its own, so that no signal to the run's group reaches it.
RUN = """\
import subprocess, sys, time
from torchmill.core import reaper
reaper.watch_run()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print(child.pid, flush=True)
if sys.argv[1] == "wait":
    time.sleep(300)
"""


def start(word: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, word], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    with run.stdout:
        return run, psutil.Process(int(run.stdout.readline()))


def watchers(mark: str) -> list[psutil.Process]:
    """Return the processes that have a mark in their command."""
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        if mark in " ".join(process.info["cmdline"] or ()):
            processes.append(process)
    return processes


@pytest.mark.skipif(sys.platform == "win32", reason="has no such shell")
def test_the_child_of_a_killed_run_ends() -> None:
    run, child = start("wait")
    run.send_signal(signal.SIGKILL)
    run.wait()
    child.wait(timeout=15)
    assert not child.is_running()


@pytest.mark.skipif(sys.platform == "win32", reason="has no such shell")
def test_after_a_run_that_ended_by_itself_its_child_stays_and_the_watcher_ends() -> None:
    run, child = start("end")
    run.wait(timeout=30)
    deadline = time.monotonic() + 10
    while watchers(f"{run.pid}-") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not watchers(f"{run.pid}-")
    assert child.is_running()
    child.kill()


def test_the_mark_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reaper.VARIABLE, "1-2")
    assert reaper.without_mark(os.environ).items() == os.environ.items() - {
        (reaper.VARIABLE, "1-2")
    }


@pytest.mark.skipif(sys.platform == "win32", reason="has no such shell")
def test_a_run_that_ends_its_children_keeps_its_watcher() -> None:
    code = RUN.replace("print(child", "reaper.process.end_children()\nprint(child")
    run = subprocess.Popen(
        [sys.executable, "-c", code, "wait"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    with run.stdout:
        child = int(run.stdout.readline())
    assert not psutil.pid_exists(child)
    assert watchers(f"{run.pid}-")
    run.kill()
    run.wait()


def test_the_watcher_imports_no_module_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('mine')\n")
    monkeypatch.chdir(tmp_path)
    watch, pipe = reaper._start_watcher({"SOME": "mark"}, ("touch", "ended"), os.environ)
    os.close(pipe)
    assert watch.wait(60) == 0
    assert (tmp_path / "ended").exists()
