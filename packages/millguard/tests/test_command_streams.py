"""The command's own streams and signals: closed ones, full ones, readers that leave."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from guard_support.commands import (
    DEADLINE,
    SOURCE,
    command_environment,
    millguard_words,
    run_millguard,
)
from guard_support.guards import until
from millguard import command_line, places
from millguard.guarded_command import GuardOptions, run_guarded
from millguard.status_line import StatusLine


def _run_in_shell(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash in which `MILLGUARD` stands for the command."""
    return subprocess.run(
        ["bash", "-c", script.replace("MILLGUARD", shlex.join(millguard_words()))],
        cwd=folder,
        env=command_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_stops_neither_the_command_nor_the_guard(
    tmp_path: Path, closed: str
) -> None:
    (tmp_path / "a.c").write_text("int a;\n")
    done = _run_in_shell(tmp_path, f"MILLGUARD -- cc -c a.c {closed}")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    assert (tmp_path / "a.o").exists()
    assert _run_in_shell(tmp_path, f"MILLGUARD --help {closed}").returncode == 0


def test_a_closed_stream_stays_closed_for_the_command(tmp_path: Path) -> None:
    done = _run_in_shell(tmp_path, "MILLGUARD -q -- sh -c 'test -e /dev/fd/1' >&-")
    assert done.returncode == 1


@pytest.mark.parametrize("output", ["--help", "--version"])
def test_a_reader_that_has_left_gets_no_complaint(tmp_path: Path, output: str) -> None:
    """The output is so short that only its flush at the end can fail."""
    done = _run_in_shell(tmp_path, f"MILLGUARD {output} | true; echo ${{PIPESTATUS[0]}}")
    assert done.stderr == ""
    assert done.stdout in {"141\n", "0\n"}  # 0 if it wrote before `true` ended


def test_a_full_disk_under_the_output_is_told(tmp_path: Path) -> None:
    done = _run_in_shell(tmp_path, "MILLGUARD --help > /dev/full")
    assert (done.returncode, "No space left" in done.stderr) == (1, True)
    assert "Exception" not in done.stderr


def test_a_list_that_the_encoding_lacks_is_printed(tmp_path: Path) -> None:
    (tmp_path / "ä.cpp").write_text(SOURCE)
    run_millguard(tmp_path, ["-q", "--", "c++", "-c", "ä.cpp"])
    listed = run_millguard(tmp_path, ["costs", "list"], PYTHONIOENCODING="ascii")
    assert (listed.returncode, "\\xe4.cpp" in listed.stdout) == (0, True)


def test_an_interrupt_that_a_shell_ignores_stays_ignored(tmp_path: Path) -> None:
    """A script's `COMMAND &` must survive the Ctrl-C that ends the script."""
    # SigIgn of /proc/PID/status has a bit for each signal; SIGINT is number 2.
    command = "trap '' INT QUIT; MILLGUARD -q -- sh -c 'grep SigIgn /proc/self/status'"
    ignored = int(_run_in_shell(tmp_path, command).stdout.split()[1], 16)
    assert ignored & 1 << (signal.SIGINT - 1)
    assert ignored & 1 << (signal.SIGQUIT - 1)


def test_a_signal_that_dumps_core_does_not_dump_millguard(tmp_path: Path) -> None:
    done = run_millguard(tmp_path, ["-q", "--", "sh", "-c", "ulimit -c 0; kill -QUIT $$"])
    assert done.returncode == -signal.SIGQUIT
    assert not list(tmp_path.glob("core*"))


def test_a_signal_during_the_start_reaches_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def start_interrupted(words: list[str], **options: object) -> object:
        process = start(words, **options)  # type: ignore[call-overload]
        if "sleep" in words:
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_interrupted)
    began = time.monotonic()
    result = run_guarded(["sleep", "60"], GuardOptions(environ=command_environment(tmp_path)))
    assert result.signal == signal.SIGTERM
    assert time.monotonic() - began < 30


def test_a_command_can_be_guarded_in_a_thread(tmp_path: Path) -> None:
    codes = []

    def run() -> None:
        options = GuardOptions(environ=command_environment(tmp_path))
        codes.append(run_guarded(["sh", "-c", "exit 3"], options).exit_code)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE)
    assert codes == [3]


def test_a_program_with_an_equals_sign_is_no_assignment(tmp_path: Path) -> None:
    program = tmp_path / "a=b"
    program.write_text("#!/bin/sh\necho ran $1\n")
    program.chmod(0o755)
    done = run_millguard(tmp_path, ["-q", "--", str(program), "echo"])
    assert (done.returncode, done.stdout) == (0, "ran echo\n")


def test_a_command_may_remove_its_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / "build"
    folder.mkdir()
    script = f"cd build && MILLGUARD -q -- sh -c 'rmdir {folder}; exit 5'; echo $?"
    done = _run_in_shell(tmp_path, script)
    assert (done.stdout, "Traceback" in done.stderr) == ("5\n", False)


def test_without_a_place_for_temporary_files_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    result = run_guarded(
        ["sh", "-c", "exit 3"], GuardOptions(environ=command_environment(tmp_path))
    )
    assert (result.exit_code, result.was_guarded) == (3, False)


def test_without_a_guard_a_build_starts_as_many_compilers_as_the_message_says(
    tmp_path: Path,
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    done = run_millguard(
        tmp_path, ["--memory", "16MiB", "--", "sh", "-c", "echo $MAX_JOBS"], PATH=str(programs)
    )
    assert "compiling 1 file at a time" in done.stderr
    assert done.stdout == "1\n"


def test_windows_is_refused_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert command_line.main(["--", "cl"]) == 2
    assert "use WSL" in capsys.readouterr().err


def test_messages_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    StatusLine().report("a\x1b[2J.cpp was killed")
    assert "\x1b" not in capsys.readouterr().err


def test_without_home_the_cache_is_in_the_recorded_home() -> None:
    folder = places.cache_folder({})
    assert folder.parts[-2:] == (".cache", "millguard")
    assert folder.parents[1] == Path("~").expanduser() or "HOME" in os.environ


def test_a_claim_folder_that_is_removed_does_not_stop_a_build(tmp_path: Path) -> None:
    """Programs that clean /tmp remove folders of builds that run for days."""
    (tmp_path / "a.cpp").write_text(SOURCE)
    words = millguard_words("-q", "--", "sh", "-c", "touch started; sleep 3; c++ -c a.cpp")
    process = subprocess.Popen(words, cwd=tmp_path, env=command_environment(tmp_path))
    until((tmp_path / "started").exists)
    for path in (tmp_path / "board").iterdir():
        path.unlink()
    (tmp_path / "board").rmdir()
    assert process.wait(DEADLINE) == 0
    listed = run_millguard(tmp_path, ["costs", "list"])
    assert "a.cpp" in listed.stdout  # the guard, which lists it, was there to the end
