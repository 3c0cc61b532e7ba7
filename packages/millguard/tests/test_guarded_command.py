"""`millguard -- COMMAND`, with real builds, in processes of its own."""

import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from guard_support.commands import (
    DEADLINE,
    SOURCE,
    command_environment,
    compiled_names,
    millguard_words,
    run_millguard,
)
from guard_support.guards import until
from millguard import recorded_runs
from millguard.guarded_command import GuardOptions, run_guarded

BACKEND = """
import subprocess, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    subprocess.run(["c++", "-c", "a.cpp"], check=True)
    name = "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        head = "tiny-1.dist-info/"
        wheel.writestr(head + "METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
        wheel.writestr(head + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(head + "RECORD", "")
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with two sources."""
    for name in ("a.cpp", "b.cpp"):
        (tmp_path / name).write_text(SOURCE)
    return tmp_path


def test_a_build_is_guarded_and_summed_up(project: Path) -> None:
    done = run_millguard(project, ["--", "sh", "-c", "c++ -c a.cpp && c++ -c b.cpp && echo built"])
    assert (done.returncode, done.stdout) == (0, "built\n")
    assert "the guard scheduled 2 compiles and links" in done.stderr
    assert [name.rpartition("/")[2] for name in compiled_names(project)] == ["a.cpp", "b.cpp"]
    assert not list((project / "board").glob("*.build"))


def test_the_double_dash_may_be_left_out(project: Path) -> None:
    done = run_millguard(project, ["-q", "c++", "-c", "a.cpp"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (project / "a.o").exists()


@pytest.mark.parametrize(
    ("command", "code"), [("exit 3", 3), ("c++ -c missing.cpp", 1), ("kill -9 $$", -9)]
)
def test_the_exit_code_is_that_of_the_command(project: Path, command: str, code: int) -> None:
    assert run_millguard(project, ["--", "sh", "-c", command]).returncode == code


def test_output_is_that_of_the_command(project: Path) -> None:
    (project / "a.cpp").write_text("#warning something\n" + SOURCE)
    plain = subprocess.run(
        ["c++", "-c", "a.cpp"], cwd=project, capture_output=True, text=True, check=True
    )
    guarded = run_millguard(project, ["-q", "--", "c++", "-c", "a.cpp"])
    assert (guarded.stdout, guarded.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--", "no-such-program"], 127, "no-such-program: command not found"),
        (["--", "./a.cpp"], 126, "not executable"),
        (["--", "."], 126, "it is a folder"),
        (["--", ""], 127, "command not found"),
        (["--"], 2, "there is no command to run"),
        (["--memroy", "1G", "--", "ls"], 2, "unrecognized arguments: --memroy"),
        (["--memory", "lots", "--", "ls"], 2, "'lots' is not a size"),
        (["--memory", "12", "--", "ls"], 2, "did you mean 12GiB?"),
        (["--jobs", "0", "--", "ls"], 2, "'0' is not a number from 1"),
        (["--report", "x.pdf", "--", "ls"], 2, "should end with .txt, .html, .svg"),
        (["--report", "none/x.txt", "--", "ls"], 2, "is not a folder that can be written"),
        (["costs", "export"], 2, "needs a file"),
        (["costs", "steal"], 2, "invalid choice"),
        (["costs", "list"], 1, "nothing was learned yet"),
        (["explain"], 1, "no guarded command was recorded yet"),
        (["explain", "-j", "x"], 2, "'x' is not a number"),
        (["report", "x.pdf"], 2, "should end with"),
        (["report", "--x"], 2, "millguard: report: unrecognized arguments: --x"),
    ],
)
def test_wrong_words_are_refused(project: Path, words: list[str], code: int, message: str) -> None:
    if words[:2] == ["explain", "-j"]:
        run_millguard(project, ["--", "c++", "-c", "a.cpp"])
    done = run_millguard(project, words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_version(project: Path) -> None:
    assert run_millguard(project, ["--help"]).stdout.startswith("usage: millguard")
    assert run_millguard(project, []).stdout.startswith("usage: millguard")
    assert run_millguard(project, ["--version"]).stdout.startswith("millguard ")


def test_a_command_that_compiles_nothing_is_told(project: Path) -> None:
    done = run_millguard(project, ["--", "true"])
    assert "true started no compiler that had to be guarded" in done.stderr
    assert not list((project / "cache" / "runs").iterdir())


def test_a_number_of_jobs_of_the_users_stays_and_is_named(project: Path) -> None:
    command = ["--jobs", "4", "--", "sh", "-c", "echo $MAX_JOBS $CMAKE_BUILD_PARALLEL_LEVEL"]
    done = run_millguard(project, command, MAX_JOBS="1")
    assert done.stdout == "1 4\n"
    assert "MAX_JOBS is 1" in done.stderr


def test_a_limit_below_one_file_lets_it_compile_alone(project: Path) -> None:
    done = run_millguard(project, ["--memory", "16MiB", "--", "c++", "-c", "a.cpp"])
    assert done.returncode == 0
    assert "16.0 MiB are allowed: it is compiled alone" in done.stderr


def test_reports_are_written_and_can_be_asked_for_later(project: Path) -> None:
    done = run_millguard(project, ["--report", "r.html", "--", "c++", "-c", "a.cpp"])
    assert done.returncode == 0
    page = (project / "r.html").read_text()
    assert "<title>c++ -c a.cpp</title>" in page
    assert "a.cpp:" in page  # the tooltip of its bar
    text = run_millguard(project, ["report"]).stdout
    assert "c++ -c a.cpp\nsucceeded after" in text
    assert run_millguard(project, ["report", "r.svg"]).returncode == 0
    head = (project / "r.svg").read_text().splitlines()[0]
    assert head.startswith("<svg ")
    assert head.endswith(' color="#222">')
    explained = run_millguard(project, ["explain", "--jobs", "8"]).stdout
    assert "-j8" in explained


def test_passwords_in_the_command_are_not_recorded(project: Path) -> None:
    address = "https://user:secret@example.org/"
    run_millguard(project, ["--", "sh", "-c", f"c++ -c a.cpp # {address}"])
    (record,) = (project / "cache" / "runs").glob("*.run.json")
    assert "secret" not in record.read_text()


def test_pip_builds_in_isolation_under_guard(project: Path) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "backend.py").write_text(BACKEND)
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "out", "."]
    done = run_millguard(project, ["--", *wheel], PIP_DISABLE_PIP_VERSION_CHECK="1")
    assert done.returncode == 0, done.stderr
    assert (project / "out" / "tiny-1-py3-none-any.whl").is_file()
    assert any(name.endswith("a.cpp") for name in compiled_names(project))


def test_a_build_of_cmake_keeps_no_path_of_ours(project: Path) -> None:
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(p CXX)\nadd_library(p SHARED a.cpp)\n"
    )
    commands = "cmake -S . -B build >/dev/null && cmake --build build"
    try:
        done = run_millguard(project, ["--", "sh", "-c", commands])
    except FileNotFoundError:
        pytest.skip("needs cmake")
    if done.returncode == 127:
        pytest.skip("needs cmake")
    assert done.returncode == 0, done.stderr
    assert "millguard" not in (project / "build" / "CMakeCache.txt").read_text()
    assert any(name.endswith("a.cpp") for name in compiled_names(project))


def test_a_program_that_outlives_the_command_goes_on(project: Path) -> None:
    done = run_millguard(project, ["--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
    assert done.returncode == 0
    sleeper = psutil.Process(int(done.stdout))
    try:
        assert sleeper.is_running()
    finally:
        sleeper.kill()


SLOW = "c++ -c a.cpp && touch started && exec sleep 60"


def _start(project: Path, script: str) -> subprocess.Popen[str]:
    """Start a shell script under guard, and wait until it has written the file "started"."""
    process = subprocess.Popen(
        millguard_words("-q", "--", "sh", "-c", script),
        cwd=project,
        env=command_environment(project),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until((project / "started").exists)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_command_and_what_it_started(
    project: Path, number: signal.Signals
) -> None:
    process = _start(project, SLOW)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == -number
    gone, alive = psutil.wait_procs(below, timeout=10)
    assert (len(gone) >= 2, alive) == (True, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_gate_is_compiled_leaves_nothing(
    project: Path, number: signal.Signals
) -> None:
    programs, folder = project / "programs", project / "tmp"
    for path in (programs, folder):
        path.mkdir()
    slow = programs / "cc"
    slow.write_text(f"#!/bin/sh\ntouch {project}/compiling\nexec sleep 60\n")
    slow.chmod(0o755)
    process = subprocess.Popen(
        millguard_words("--", "touch", "ran"),
        cwd=project,
        env=command_environment(
            project, PATH=f"{programs}:{os.environ['PATH']}", TMPDIR=str(folder)
        ),
        start_new_session=True,
    )
    until((project / "compiling").exists)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(DEADLINE) == -number
    assert psutil.wait_procs(below, timeout=10)[1] == []
    assert list(folder.iterdir()) == []
    assert not (project / "ran").exists()


def test_an_interrupt_of_millguard_alone_reaches_what_a_shell_waits_for(project: Path) -> None:
    """The shell that waits would not end by the signal unless the program did."""
    process = _start(project, "trap : INT; sh -c 'touch started; exec sleep 60'; echo $?")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (0, "130\n")


def test_a_second_interrupt_ends_a_command_that_ignores_the_first(project: Path) -> None:
    process = _start(project, "trap '' INT; touch started; sleep 60; true")
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGTERM
    assert psutil.wait_procs(below, timeout=10)[1] == []


def test_a_key_of_the_terminal_interrupts_the_command_once(project: Path) -> None:
    """The terminal has sent the signal to the command as well, so it is not passed on."""
    (project / "count.py").write_text(
        "import pathlib, signal, time\n"
        "counted = []\n"
        "signal.signal(signal.SIGINT, lambda *_: counted.append(1))\n"
        "pathlib.Path('started').touch()\n"
        "time.sleep(1.5)\n"
        "pathlib.Path('counted').write_text(str(len(counted)))\n"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(project)
        words = millguard_words("-q", "--", sys.executable, "count.py")
        os.execve(words[0], words, command_environment(project))  # noqa: S606
    try:
        until((project / "started").exists)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(process, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (project / "counted").read_text() == "1"


def test_an_exit_code_arrives_although_ended_children_are_ignored(project: Path) -> None:
    """The kernel drops exit codes of the children of a process that ignores SIGCHLD."""
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    ignoring += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    words = millguard_words("-q", "--", "sh", "-c", "exit 3")
    done = subprocess.run(
        [sys.executable, "-c", ignoring, *words[1:]],
        cwd=project,
        env=command_environment(project),
        check=False,
    )
    assert done.returncode == 3


def test_a_command_that_survives_an_interrupt_may_leave_programs_behind(project: Path) -> None:
    """A shell goes on after Ctrl-C; what it starts later is not ended with it."""
    script = "trap : INT; touch started; sleep 2; sleep 60 >/dev/null 2>&1 & echo $!"
    process = _start(project, script)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE)
    sleeper = psutil.Process(int(output))
    try:
        assert process.returncode == 0
        assert sleeper.is_running()
    finally:
        sleeper.kill()


def test_a_kill_leaves_nothing_behind(project: Path) -> None:
    process = _start(project, SLOW)
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=DEADLINE)
    gone, alive = psutil.wait_procs(below, timeout=20)
    assert (len(gone) >= 2, alive) == (True, [])
    until(lambda: not list((project / "board").glob("*.build")), "the claim's end")


def test_on_a_terminal_the_last_row_shows_the_state(project: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        millguard_words("--", "sh", "-c", "c++ -c a.cpp & sleep 2; wait"),
        cwd=project,
        env=command_environment(
            project, TERM="xterm", PATH=f"{_slow_compiler(project)}:{os.environ['PATH']}"
        ),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    )
    os.set_blocking(ours, False)
    _set_rows(theirs)
    shown = b""
    deadline = time.monotonic() + DEADLINE
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        try:
            shown += os.read(ours, 65536)
        except (BlockingIOError, OSError):
            continue
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 0
    assert b"1 compiling" in shown
    assert b"\x1b[1;23r" in shown  # the last of 24 rows is ours
    assert b"\x1b[r" in shown  # and is given back


def _slow_compiler(folder: Path) -> Path:
    programs = folder / "programs"
    programs.mkdir()
    slow = programs / "c++"
    slow.write_text("#!/bin/sh\nsleep 2\n")
    slow.chmod(0o755)
    return programs


def _set_rows(terminal: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))


def test_a_cache_that_cannot_be_written_costs_the_experience_only(project: Path) -> None:
    done = run_millguard(project, ["--", "c++", "-c", "a.cpp"], MILLGUARD_CACHE="/dev/null/x")
    assert (done.returncode, done.stdout) == (0, "")
    assert "the guard scheduled 1 compile or link" in done.stderr
    assert "what units needed cannot be saved in /dev/null/x" in done.stderr


def test_without_a_compiler_there_is_no_guard_and_the_command_runs(project: Path) -> None:
    programs = project / "programs"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    done = run_millguard(project, ["--", "sh", "-c", "echo ran"], PATH=str(programs))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "this build has no memory guard" in done.stderr
    assert "`cc` is not on PATH" in done.stderr


def test_a_guard_within_a_guard_takes_the_compilers(project: Path) -> None:
    inner = shlex.join(millguard_words("--", "c++", "-c", "a.cpp"))
    done = run_millguard(project, ["--", "sh", "-c", f"{inner}; echo $LD_PRELOAD"])
    assert done.returncode == 0, done.stderr
    assert "the guard scheduled 1 compile or link" in done.stderr
    assert "sh started no compiler that had to be guarded" in done.stderr
    assert ":" not in done.stdout


def test_from_python(project: Path) -> None:
    environ = command_environment(project)
    result = run_guarded(
        ["c++", "-c", str(project / "a.cpp"), "-o", str(project / "x.o")],
        GuardOptions(environ=environ),
    )
    assert (result.exit_code, result.account.units, result.was_guarded) == (0, 1, True)
    assert result.recording is not None
    assert result.recording.is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
@pytest.mark.parametrize("place", ["tmp", "cache"])
def test_a_folder_in_which_nothing_may_be_run_does_not_stop_a_build(
    project: Path, place: str
) -> None:
    """TMPDIR is mounted noexec on many hardened machines, a home on some clusters."""
    (project / place).mkdir()
    mount = f"mount -t tmpfs -o noexec none {project / place}"
    command = shlex.join(millguard_words("--", "c++", "-c", "a.cpp"))
    environ = command_environment(project)
    if place == "tmp":
        environ["TMPDIR"] = str(project / "tmp")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{mount} && exec {command}"],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs a mount namespace")
    assert done.returncode == 0, done.stderr
    assert (project / "a.o").exists()
    assert "the guard scheduled 1 compile or link" in done.stderr


def test_a_temporary_folder_that_cannot_be_written_is_told(project: Path) -> None:
    done = run_millguard(project, ["--", "true"], TMPDIR="/dev/null")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_without_proc_there_is_no_guard_and_the_command_runs(project: Path) -> None:
    command = shlex.join(millguard_words("--", "sh", "-c", "echo ran; exit 3"))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none /proc && exec {command}"],
        cwd=project,
        env=command_environment(project),
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs a mount namespace")
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert "no memory guard (/proc is not mounted)" in done.stderr


def test_the_command_inherits_descriptors(project: Path) -> None:
    """By them make passes its jobserver on, and bash the programs in `<(…)`."""
    reading, writing = os.pipe()
    os.write(writing, b"a token")
    os.close(writing)
    done = subprocess.run(
        millguard_words("-q", "--", "cat", f"/dev/fd/{reading}"),
        cwd=project,
        env=command_environment(project),
        pass_fds=[reading],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(reading)
    assert (done.returncode, done.stdout) == (0, "a token")


def test_a_clock_that_is_set_back_does_not_spoil_the_recording(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(2 * 10**9, 0, -3600))
    monkeypatch.setattr(recorded_runs, "wall_clock", lambda: float(next(moments)))
    command = ["c++", "-c", str(project / "a.cpp"), "-o", str(project / "x.o")]
    result = run_guarded(command, GuardOptions(environ=command_environment(project)))
    assert result.recording is not None
    assert 0 < recorded_runs.load_run(result.recording).record.seconds < DEADLINE
