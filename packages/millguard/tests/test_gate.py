"""The gate, with programs that stand for compilers: what they let through, run again, and end."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from guard_support.gates import Meeting, environment, result
from guard_support.guards import until
from millguard import compiler_gate

CC = shutil.which("cc") or "gcc"


@pytest.fixture(scope="session")
def through(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gates")
    return compiler_gate.place_gate(
        compiler_gate.gate_program(folder / "cache", [CC]), folder / "tree/gate"
    )


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    with Meeting(tmp_path / "folder") as there:
        yield there


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    children = psutil.Process().children(recursive=True)
    left = [process for process in children if process.status() != psutil.STATUS_ZOMBIE]
    for process in left:
        process.kill()
    assert left == []


def shell(script: str) -> tuple[str, ...]:
    """Return the command of a compiler that does as a script says."""
    return ("sh", "-c", script, "a.cpp")


def locked(file: Path) -> int:
    """Take a slot as another gate would."""
    taken = os.open(file, os.O_RDONLY)
    fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return taken


# What passes.


def test_a_gate_that_cannot_run_where_it_is_placed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"for another machine")
    with pytest.raises(OSError, match="cannot be run"):
        compiler_gate.place_gate(tmp_path / "made", tmp_path / "gate")


def test_a_compiler_runs_when_the_guard_admits_it(
    through: Path, meeting: Meeting, tmp_path: Path
) -> None:
    script = f"touch {tmp_path}/ran; echo out; echo err >&2; exit 3"
    process = meeting.start(through, *shell(script), cwd=tmp_path)
    heard = meeting.met()
    assert heard.asked() == [str(tmp_path), *shell(script)]
    assert not (tmp_path / "ran").exists()
    heard.say("go")
    assert heard.group() > 0
    code, peak, killed = heard.ended()
    assert (code, killed) == (3, 0)
    assert 2**16 < peak < 2**30
    assert heard.line() == ""
    assert result(process) == (3, b"out\n", b"err\n")


def test_megabytes_on_both_outputs_pass_unchanged(through: Path, meeting: Meeting) -> None:
    text = b"".join(b"%07d\n" % number for number in range(700_000))
    script = "import sys; b = b''.join(b'%07d\\n' % n for n in range(700_000));"
    script += "sys.stderr.buffer.write(b); sys.stdout.buffer.write(b)"
    process = meeting.start(through, sys.executable, "-c", script, "a.cpp")
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    assert result(process) == (0, text, text)


def test_a_real_compiler_gets_its_response_file(
    through: Path, meeting: Meeting, tmp_path: Path
) -> None:
    (tmp_path / "a.c").write_text("int answer(void) { return ANSWER; }\n")
    (tmp_path / "words").write_text("-DANSWER=42 -c a.c\n")
    process = meeting.start(through, CC, "@words", "-o", "a.o", cwd=tmp_path)
    heard = meeting.met()
    assert heard.asked()[1:] == [CC, "@words", "-o", "a.o"]
    heard.say("go")
    assert result(process) == (0, b"", b"")
    assert (tmp_path / "a.o").is_file()


@pytest.mark.parametrize(
    ("program", "code", "reason"),
    [("no-such-compiler", 127, "No such file"), ("/dev/null", 126, "Permission denied")],
)
def test_a_command_that_cannot_run_has_the_exit_code_of_a_shell(
    through: Path, meeting: Meeting, program: str, code: int, reason: str
) -> None:
    process = meeting.start(through, program, "-c", "a.cpp")
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    returned, out, err = result(process)
    assert (returned, out) == (code, b"")
    assert err.decode().startswith(f"gate: {program}: {reason}")


def test_an_end_by_a_signal_has_the_exit_code_of_a_shell(through: Path, meeting: Meeting) -> None:
    process = meeting.start(through, *shell("kill -SEGV $$"))
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    assert heard.group()
    assert heard.ended()[::2] == (128 + signal.SIGSEGV, 0)
    assert result(process)[0] == 128 + signal.SIGSEGV


@pytest.mark.parametrize(
    "words",
    [
        "-E a.c", "-M a.c", "-MM a.c", "-c -x c -", "--version", "-v", "-dumpversion", "-print-search-dirs",
        "--help=target", "-### a.c", "--dryrun a.cu",
    ],
)  # fmt: skip
def test_commands_that_compile_nothing_do_not_wait(
    through: Path, tmp_path: Path, words: str
) -> None:
    there = Meeting(tmp_path, slots=1)
    taken = locked(tmp_path / "1")
    compiler = speaking(tmp_path)
    assert result(there.start(through, compiler, *words.split())) == (0, f"{words}\n".encode(), b"")
    os.close(taken)


@pytest.mark.parametrize("trial", ["CMakeScratch/TryCompile-x1", "CMakeTmp"])
def test_trials_of_cmake_do_not_wait(
    through: Path, tmp_path: Path, trial: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Meeting(tmp_path, slots=1)
    taken = locked(tmp_path / "1")
    compiler = speaking(tmp_path)
    within = tmp_path / "CMakeFiles" / trial
    within.mkdir(parents=True)
    monkeypatch.chdir(within)
    assert result(there.start(through, compiler, "-c", "a.c")) == (0, b"-c a.c\n", b"")
    os.close(taken)


def speaking(folder: Path) -> Path:
    """Return a compiler that says what it was told."""
    compiler = folder / "compiler"
    compiler.write_text("#!/bin/sh\nprintf '%s\\n' \"$*\"\n")
    compiler.chmod(0o755)
    return compiler


@pytest.mark.parametrize(
    "words", ["-c a.c", "a.o -o a", "-fsyntax-only a.c", "-Xlinker -M a.o", "@words", "-S a.c"]
)
def test_compiles_and_links_ask(
    through: Path, meeting: Meeting, tmp_path: Path, words: str
) -> None:
    process = meeting.start(through, speaking(tmp_path), *words.split())
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    assert result(process) == (0, f"{words}\n".encode(), b"")


@pytest.mark.parametrize("name", ["", "gone"])
def test_without_a_guards_folder_the_command_just_runs(
    through: Path, tmp_path: Path, name: str
) -> None:
    folder = str(tmp_path / name) if name else ""
    env = environment() | {"MILLGUARD_GATE": folder}
    done = subprocess.run(
        [through, *shell("echo $PPID; exit 4")], env=env, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (4, b"%d\n" % os.getpid())  # it became the compiler


def test_a_compiler_within_a_compiler_is_part_of_it(through: Path, meeting: Meeting) -> None:
    process = meeting.start(through, *shell(f"{shlex.quote(str(through))} echo b.cpp"))
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    assert result(process) == (0, b"b.cpp\n", b"")


def test_a_long_path_of_the_folder_is_no_problem(through: Path, tmp_path: Path) -> None:
    with Meeting(tmp_path / ("long" * 50) / ("path" * 50)) as there:
        process = there.start(through, *shell("pwd"), cwd=tmp_path)
        heard = there.met()
        assert heard.asked()[0] == str(tmp_path)
        heard.say("go")
        assert result(process) == (0, f"{tmp_path}\n".encode(), b"")


def test_hundreds_at_once(through: Path, meeting: Meeting) -> None:
    processes = [meeting.start(through, *shell("exit 0")) for _ in range(160)]
    everybody = [meeting.met() for _ in processes]
    for heard in everybody:
        heard.asked()
        heard.say("go")
    assert [result(process) for process in processes] == [(0, b"", b"")] * 160


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="the kernel is not Linux")
def test_the_kernel_kills_a_compiler_before_the_gate(through: Path, meeting: Meeting) -> None:
    process = meeting.start(
        through, *shell("cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj")
    )
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    ours = Path("/proc/self/oom_score_adj").read_text(encoding="utf-8")
    assert result(process)[1].decode() == f"1000\n{ours}"


# What runs again.


def again(tmp_path: Path, first: str) -> str:
    """Return a compiler that does something else when it runs first."""
    return f"test -e {tmp_path}/once || {{ touch {tmp_path}/once; echo first >&2; {first}; }}; echo second >&2"


@pytest.mark.parametrize("first", ["sleep 60", "trap '' TERM; while :; do sleep 0.1; done"])
def test_a_compiler_that_the_guard_ends_asks_again(
    through: Path, meeting: Meeting, tmp_path: Path, first: str
) -> None:
    process = meeting.start(through, *shell(again(tmp_path, first)))
    heard = meeting.met()
    question = heard.asked()
    heard.say("go")
    group = heard.group()
    until((tmp_path / "once").exists)
    os.killpg(group, signal.SIGSTOP)  # paused first, as a guard does
    heard.say("again")
    assert heard.asked() == question
    until(lambda: not living(group))
    heard.say("go")
    heard.group()
    assert heard.ended()[0] == 0
    assert result(process) == (0, b"", b"second\n")


def living(group: int) -> list[int]:
    """Return the processes of a group; one that only waits to be taken note of does not live."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.parametrize(
    "last",
    ["kill -9 $$", "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"],
)
def test_a_compiler_that_the_kernel_killed_runs_again_if_the_guard_asks(
    through: Path, meeting: Meeting, tmp_path: Path, last: str
) -> None:
    process = meeting.start(through, *shell(again(tmp_path, last)))
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    heard.group()
    assert heard.ended()[2] == 1
    heard.say("again")
    heard.asked()
    heard.say("go")
    heard.group()
    assert heard.ended()[2] == 0
    assert result(process) == (0, b"", b"second\n")


def test_the_guard_can_accept_a_failure(through: Path, meeting: Meeting) -> None:
    process = meeting.start(through, *shell("echo why >&2; kill -9 $$"))
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    heard.group()
    assert heard.ended()[::2] == (137, 1)
    heard.say("done")
    assert result(process) == (137, b"", b"why\n")


def test_a_warning_about_memory_is_no_sign_of_a_kill(through: Path, meeting: Meeting) -> None:
    process = meeting.start(through, *shell("echo 'warning: out of memory is not handled' >&2"))
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    heard.group()
    assert heard.ended()[2] == 0
    assert result(process)[0] == 0


@pytest.mark.parametrize(
    "quoted", ["Cannot allocate memory", "std::bad_alloc", "CUDA out of memory"]
)
def test_a_source_that_mentions_memory_is_no_sign_of_a_kill(
    through: Path, meeting: Meeting, tmp_path: Path, quoted: str
) -> None:
    (tmp_path / "a.c").write_text(f'const char *said = "{quoted}" missing;\n')
    process = meeting.start(through, CC, "-c", "a.c", cwd=tmp_path)
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    heard.group()
    assert heard.ended()[2] == 0
    code, _, err = result(process)
    assert code == 1
    assert quoted.encode() in err


@pytest.mark.parametrize(
    "said",
    [
        "cc1plus: out of memory allocating 65536 bytes after a total of 1048576 bytes",
        "virtual memory exhausted: Cannot allocate memory",
        "ld: final link failed: memory exhausted",
        "LLVM ERROR: out of memory",
        "g++: fatal error: cannot execute 'cc1plus': vfork: Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "Killed",
        "ptxas info    : Compile time = 134.684 ms\nKilled",
    ],
)
def test_messages_about_missing_memory_are_recognized(
    through: Path, meeting: Meeting, said: str
) -> None:
    process = meeting.start(through, *shell(f"echo {shlex.quote(said)} >&2; exit 1"))
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    heard.group()
    assert heard.ended()[2] == 1
    heard.say("done")
    assert result(process)[0] == 1


def one_run_of(through: Path, meeting: Meeting, compiler: Path, last: str) -> tuple[int, int]:
    """Let a compiler that is a shell script run once; return its code, and whether it was killed."""
    compiler.write_text(f"#!/bin/sh\n{last}\n")
    compiler.chmod(0o755)
    process = meeting.start(through, compiler, "-c", "a.cu")
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    heard.group()
    code, _, killed = heard.ended()
    if killed:
        heard.say("done")
    assert result(process)[0] == code
    return code, killed


@pytest.mark.parametrize("said", ["", "ptxas info    : Used 31 registers", "Killed"])
def test_nvcc_with_threads_that_names_no_error_has_lost_a_stage(
    through: Path, meeting: Meeting, tmp_path: Path, said: str
) -> None:
    """As nvcc 13.0 with `--threads 2` ends if the kernel kills a stage: 255, without a word of its own."""
    last = f"printf %s {shlex.quote(said)} >&2; exit 255"
    assert one_run_of(through, meeting, tmp_path / "nvcc", last) == (255, 1)


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("nvcc", "echo 'e.cu:1:10: fatal error: nothere.h: No such file' >&2; exit 255"),
        ("nvcc", "echo 'ptxas fatal   : Ptx assembly aborted due to errors' >&2; exit 255"),
        ("nvcc", "exit 1"),
        ("g++", "exit 255"),
    ],
)
def test_other_failures_are_no_lost_stage(
    through: Path, meeting: Meeting, tmp_path: Path, name: str, last: str
) -> None:
    assert one_run_of(through, meeting, tmp_path / name, last)[1] == 0


def test_a_compiler_that_the_guard_ended_is_no_failure_whatever_its_code(
    through: Path, meeting: Meeting, tmp_path: Path
) -> None:
    first = f"trap 'exit 255' TERM; touch {tmp_path}/runs; while :; do sleep 0.1; done"
    process = meeting.start(through, *shell(again(tmp_path, first)))
    heard = meeting.met()
    question = heard.asked()
    heard.say("go")
    group = heard.group()
    until((tmp_path / "runs").exists)
    process.send_signal(signal.SIGSTOP)  # it is late, and sees both at once
    heard.say("again")
    os.killpg(group, signal.SIGTERM)
    until(lambda: not living(group))
    process.send_signal(signal.SIGCONT)
    assert heard.asked() == question
    heard.say("go")
    assert result(process) == (0, b"", b"second\n")


# What ends.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_one_that_waits(
    through: Path, meeting: Meeting, number: signal.Signals
) -> None:
    process = meeting.start(through, *shell("exit 0"))
    meeting.met().asked()
    process.send_signal(number)
    assert result(process) == (-number, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("paused", [False, True])
def test_a_signal_reaches_the_compiler(
    through: Path, meeting: Meeting, tmp_path: Path, number: signal.Signals, paused: bool
) -> None:
    process = meeting.start(through, *shell(f"touch {tmp_path}/runs; sleep 60 & wait"))
    heard = meeting.met()
    heard.asked()
    heard.say("go")
    group = heard.group()
    until((tmp_path / "runs").exists)
    if paused:
        os.killpg(group, signal.SIGSTOP)
    process.send_signal(number)
    assert result(process)[0] == -number
    until(lambda: not living(group))


@pytest.mark.parametrize("runs", [False, True])
def test_the_guard_can_stop_it(through: Path, meeting: Meeting, runs: bool) -> None:
    process = meeting.start(through, *shell("sleep 60"))
    heard = meeting.met()
    heard.asked()
    group = 0
    if runs:
        heard.say("go")
        group = heard.group()
    heard.say("stop")
    assert result(process)[0] == 130
    until(lambda: not group or not living(group))


@pytest.mark.parametrize("runs", [False, True])
def test_the_gate_does_not_outlive_its_parent(through: Path, meeting: Meeting, runs: bool) -> None:
    ninja = meeting.start("sh", "-c", '"$@"; exit 0', "ninja", through, *shell("sleep 60"))
    heard = meeting.met()
    heard.asked()
    one = psutil.Process(ninja.pid).children()[0]
    group = 0
    if runs:
        heard.say("go")
        group = heard.group()
    ninja.kill()
    until(lambda: not one.is_running() or one.status() == psutil.STATUS_ZOMBIE)
    until(lambda: not group or not living(group))
    ninja.communicate()


def test_no_compiler_stays_paused_when_gate_and_guard_are_killed(
    through: Path, tmp_path: Path
) -> None:
    with Meeting(tmp_path / "folder") as there:
        process = there.start(through, *shell(f"touch {tmp_path}/runs; sleep 60 & wait"))
        heard = there.met()
        heard.asked()
        heard.say("go")
        group = heard.group()
        until((tmp_path / "runs").exists)
        os.killpg(group, signal.SIGSTOP)
        # every one of them: the kernel wakes an orphaned group only where it sees somebody stopped
        until(
            lambda: (
                {psutil.Process(one).status() for one in living(group)} == {psutil.STATUS_STOPPED}
            )
        )
        process.kill()
    until(lambda: not living(group))
    process.communicate()


# Where no guard answers.


@pytest.mark.parametrize("first", ["ask", "never"])
def test_without_a_guard_a_slot_is_waited_for(through: Path, tmp_path: Path, first: str) -> None:
    folder = tmp_path / "folder"
    there = Meeting(folder, slots=2)
    taken = [locked(folder / "1"), locked(folder / "2")]
    command: tuple[str | Path, ...] = (through, *shell(f"touch {tmp_path}/ran"))
    if first == "ask":
        with there:
            process = there.start(*command)
            there.met().asked()
    else:
        process = there.start(*command)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    assert not (tmp_path / "ran").exists()
    os.close(taken.pop())
    assert result(process) == (0, b"", b"")
    os.close(taken.pop())


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
def test_a_file_system_without_locks_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECHROOT", "true")  # a gate that loads libraries
    through = compiler_gate.place_gate(None, tmp_path / "gate", [CC])
    (tmp_path / "none.c").write_text(
        "#include <errno.h>\nint flock(int file, int how) { errno = ENOSYS; return -1; }\n"
    )
    library = tmp_path / "none.so"
    subprocess.run([CC, "-shared", "-fPIC", "-o", library, tmp_path / "none.c"], check=True)
    there = Meeting(tmp_path / "folder", slots=1)
    process = there.start("env", f"LD_PRELOAD={library}", through, *shell("echo ran"))
    assert result(process) == (0, b"ran\n", b"")


@pytest.mark.skipif(
    sys.platform != "linux", reason="it takes a library that is laid over the system's"
)
def test_without_locks_nothing_waits(through: Path, tmp_path: Path) -> None:
    source, library = tmp_path / "without.c", tmp_path / "without.so"
    source.write_text(
        "#include <errno.h>\nint flock(int a, int b) { errno = ENOLCK; return -1; }\n"
    )
    subprocess.run([CC, "-shared", "-fPIC", "-o", library, source], check=True)
    there = Meeting(tmp_path / "folder", slots=1)
    process = there.start(through, *shell("echo ran"), env={"LD_PRELOAD": str(library)})
    assert result(process) == (0, b"ran\n", b"")


def test_a_paused_compiler_goes_on_with_a_slot_when_the_guard_dies(
    through: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    with Meeting(folder, slots=1) as there:
        process = there.start(
            through, *shell(f"until test -e {tmp_path}/end; do sleep 0.05; done; exit 5")
        )
        heard = there.met()
        heard.asked()
        heard.say("go")
        os.killpg(heard.group(), signal.SIGSTOP)
    until(lambda: is_locked(folder / "1"))
    (tmp_path / "end").touch()
    assert result(process)[0] == 5
    assert not is_locked(folder / "1")


def is_locked(file: Path) -> bool:
    """Tell whether a gate holds a slot."""
    try:
        os.close(locked(file))
    except BlockingIOError:
        return True
    return False


def test_without_a_guard_a_killed_compiler_runs_once_more_alone(
    through: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    there = Meeting(folder, slots=3)
    other = locked(folder / "3")
    script = f"test -e {tmp_path}/once || {{ touch {tmp_path}/once; kill -9 $$; }}; touch {tmp_path}/twice; "
    process = there.start(
        through, *shell(script + f"until test -e {tmp_path}/end; do sleep 0.05; done")
    )
    until(lambda: is_locked(folder / "2"))  # it holds what it can get, and waits for the third
    assert not (tmp_path / "twice").exists()
    os.close(other)
    until((tmp_path / "twice").exists)
    assert all(is_locked(folder / name) for name in "123")
    (tmp_path / "end").touch()
    assert result(process)[0] == 0


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_without_a_guard_a_second_kill_is_a_failure(
    through: Path, tmp_path: Path, slots: int
) -> None:
    there = Meeting(tmp_path / "folder", slots)
    process = there.start(through, *shell(f"echo run >> {tmp_path}/runs; kill -9 $$"))
    assert result(process)[0] == 137
    assert (tmp_path / "runs").read_text() == "run\nrun\n"
