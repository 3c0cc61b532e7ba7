"""Programs that succeed, fail, are missing, and are interrupted."""

import io
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from millguard import processes

from torchmill.core import process
from torchmill.core.errors import HostError, InterruptedBuildError
from torchmill.core.process import (
    TAIL_LINES,
    CommandError,
    NoAnswerError,
    capture,
    program_output,
    stream,
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(code: str) -> tuple[list[str], str]:
    lines: list[str] = []
    log = io.StringIO()
    stream(python(code), cwd=None, env=None, log=log, on_line=lines.append)
    return lines, log.getvalue()


def test_the_age_of_a_process_needs_no_clock_that_can_be_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    age = process.own_age()
    assert 0 < age < 86400
    if sys.platform == "linux":
        monkeypatch.setattr("torchmill.core.process.time.time", lambda: 0.0)
    assert age <= process.own_age() < age + 600


def test_capture_returns_stdout_only() -> None:
    assert capture(python("import sys; print('yes'); print('no', file=sys.stderr)")) == "yes\n"


def test_capture_uses_the_folder_and_the_environment(tmp_path: Path) -> None:
    output = capture(
        python("import os; print(os.getcwd(), os.environ['WORD'])"), cwd=tmp_path, env={"WORD": "w"}
    )
    assert output.split() == [str(tmp_path), "w"]


def test_a_failure_carries_the_command_the_code_and_both_outputs() -> None:
    with pytest.raises(CommandError, match="ended with exit code 3: cause") as caught:
        capture(python("import sys; print('said'); print('cause', file=sys.stderr); sys.exit(3)"))
    assert caught.value.argv[0] == sys.executable
    assert caught.value.returncode == 3
    assert caught.value.output.split() == ["said", "cause"]


def test_a_failure_keeps_a_bounded_tail() -> None:
    with pytest.raises(CommandError) as caught:
        run("for n in range(1000): print(n)\nraise SystemExit(1)")
    assert caught.value.output.splitlines() == [str(n) for n in range(1000 - TAIL_LINES, 1000)]


def test_the_message_about_a_killed_program_names_the_signal() -> None:
    with pytest.raises(CommandError, match="was killed by SIGKILL"):
        capture(python("import os; os.kill(os.getpid(), 9)"))


def test_messages_show_no_password_of_an_address() -> None:
    url = "https://user:secret@git.example/torch"  # such as the mirror that git is given
    with pytest.raises(CommandError, match=r"https://git\.example/torch") as failed:
        capture(
            [*python("import sys; sys.exit('fatal: unable to access ' + sys.argv[2])"), "--", url]
        )

    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    words = [*python("import time; print(1, flush=True); time.sleep(60)"), url]
    with pytest.raises(InterruptedBuildError, match=r"https://git\.example/torch") as stopped:
        stream(words, cwd=None, env=None, log=io.StringIO(), on_line=interrupt)
    with pytest.raises(HostError, match=r"https://git\.example/torch") as hanging:
        capture(words, seconds=0.5)
    for error in (failed, stopped, hanging):
        assert "secret" not in str(error.value)


def test_a_program_that_gives_no_answer_has_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMILL_ANSWER", "0.2")
    assert (
        program_output(sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)")
        == ""
    )


@pytest.mark.skipif(sys.platform == "win32", reason="without process groups")
@pytest.mark.parametrize(
    "hanging",
    [
        "trap '' INT TERM; sleep 600 & wait; wait",
        "(trap '' INT TERM HUP; sleep 600; true) & exit 0",
        "cat; sleep 600",
    ],
    ids=["deaf", "gone before its child", "reading"],
)
def test_a_silent_program_is_killed_with_all_that_it_started(hanging: str, tmp_path: Path) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/group\n{hanging}\n")
    script.chmod(0o755)
    with pytest.raises(NoAnswerError, match=r"did not answer within 0\.3 s and was killed"):
        process.ask([str(script)], seconds=0.3)
    assert not processes.wait_until_ended(
        processes.find_by_group(int((tmp_path / "group").read_text())), 10
    )


def test_a_line_says_which_program_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "NOTICE_SECONDS", 0.1)
    with pytest.raises(NoAnswerError):
        process.ask([sys.executable, "-c", "import time; time.sleep(600)"], seconds=0.4)
    assert "has not answered for 0.1 s; it is ended after 0.4 s" in capsys.readouterr().err


def test_a_missing_program_is_named() -> None:
    with pytest.raises(HostError, match="`no-such-program` is not on PATH"):
        capture(["no-such-program", "--version"])


def test_a_missing_folder_is_not_taken_for_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no such folder"):
        capture(python("pass"), cwd=tmp_path / "gone")


def test_a_program_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("text")
    with pytest.raises(HostError, match="cannot be run here"):
        capture([str(tmp_path / "plain")])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_program_that_the_limits_keep_from_starting_is_not_called_broken() -> None:
    script = "import resource; from torchmill.core import process; resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))\n"
    script += "held = [open('/dev/null') for _ in range(4)]\n"
    script += "try: process.capture(['true'])\nexcept Exception as error: print(error)"
    assert "raise the limits (`ulimit -a`)" in capture(python(script))


def test_stream_interleaves_both_outputs_and_logs_them_whole() -> None:
    lines, log = run(
        "import sys\nfor n in range(3): print(n, flush=True); print(-n, file=sys.stderr, flush=True)"
    )
    assert lines == ["0", "0", "1", "-1", "2", "-2"]
    assert log == "0\n0\n1\n-1\n2\n-2\n"


def test_stream_survives_bytes_that_are_no_text() -> None:
    lines, _ = run(r"import os; os.write(1, b'a\xffb\n')")
    assert lines == ["a\N{REPLACEMENT CHARACTER}b"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_program_has_time_to_clean_up(
    number: signal.Signals, tmp_path: Path
) -> None:
    code = f"""
import pathlib, time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    pathlib.Path({str(tmp_path / "tidy")!r}).touch()
    print("tidied", flush=True)
"""
    log = io.StringIO()

    def interrupt(_line: str) -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()

    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InterruptedBuildError, match="run the same command again"):
        stream(python(code), cwd=None, env=None, log=log, on_line=interrupt)
    assert (tmp_path / "tidy").exists()
    assert log.getvalue() == "ready\ntidied\n"
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_program_that_ignores_the_interrupt_is_ended_with_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchmill.core.process.INTERRUPT_TIMEOUT_SECONDS", 0.3)
    child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    code = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", {child!r}])
print(child.pid, flush=True)
time.sleep(60)
"""
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(InterruptedBuildError):
        stream(python(code), cwd=None, env=None, log=io.StringIO(), on_line=interrupt)
    # The kernel closes the pipe, for which `stream` waits, before the process itself is gone.
    deadline = time.monotonic() + 10
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(_alive, pids))


def test_a_child_that_holds_no_pipe_does_not_outlive_the_interrupted_program() -> None:
    child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    code = f"""
import subprocess, sys, time
silent = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
child = subprocess.Popen([sys.executable, "-c", {child!r}], **silent)
print(child.pid, flush=True)
time.sleep(60)
"""
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        time.sleep(0.5)  # the child begins to ignore the signal
        raise KeyboardInterrupt

    with pytest.raises(InterruptedBuildError):
        stream(python(code), cwd=None, env=None, log=io.StringIO(), on_line=interrupt)
    assert not list(filter(_alive, pids))


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(not shutil.which("ninja"), reason="ninja is not installed")
def test_an_interrupted_ninja_leaves_nothing_half_made_and_goes_on_later(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text(
        "rule quick\n  command = echo whole > $out\n"
        "rule slow\n  command = echo half > $out; sleep $seconds; echo whole > $out\n"
        "build a: quick\nbuild b: slow a\n  seconds = 30\n"
    )
    edges: list[str] = []

    def interrupt(line: str) -> None:
        edges.append(line)
        if line.startswith("[1/2]"):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(InterruptedBuildError):
        stream(["ninja"], cwd=tmp_path, env=None, log=io.StringIO(), on_line=interrupt)
    assert (tmp_path / "a").read_text() == "whole\n"
    assert not (tmp_path / "b").exists()

    text = (tmp_path / "build.ninja").read_text()
    (tmp_path / "build.ninja").write_text(text.replace("seconds = 30", "seconds = 0"))
    again: list[str] = []
    stream(["ninja"], cwd=tmp_path, env=None, log=io.StringIO(), on_line=again.append)
    assert again[0].startswith("[1/1]")
    assert (tmp_path / "b").read_text() == "whole\n"


def test_an_error_of_the_watcher_does_not_leave_the_program_running() -> None:
    def fail(_line: str) -> None:
        raise ZeroDivisionError

    begun = time.monotonic()
    before = psutil.Process().children()
    with pytest.raises(ZeroDivisionError):
        stream(
            python("import time; print(1, flush=True); time.sleep(60)"),
            cwd=None,
            env=None,
            log=io.StringIO(),
            on_line=fail,
        )
    assert time.monotonic() - begun < 30
    assert psutil.Process().children() == before
