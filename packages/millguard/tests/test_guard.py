"""The guard's process as a whole: real sockets, real processes that take memory, signals seen in /proc."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from guard_support.guards import IMPORTS, MIB, SOON, Gate, Guard, orders, until
from millguard import units
from millguard.compiler_gate import gate_program
from millguard.expectations import MeasuredNeed, NeedHistory
from millguard.quantities import format_bytes
from millguard.server import parse_command as parse_orders
from millguard.timeline import UnitRun, parse_record

# Starts a guard, tells it its orders, and sleeps: the part of nox in a build that is killed.
STARTER = """
import subprocess, sys, time
guard = subprocess.Popen(
    [sys.executable, "-m", "millguard.service"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True,
)
guard.stdin.write(sys.argv[1] + "\\n")
guard.stdin.flush()
guard.stdout.readline()
print(guard.pid, flush=True)
time.sleep(600)
"""
# Dies when it runs first, as a compiler does that the kernel kills.
VICTIM = """#!/bin/sh
test -e died || { echo not yet >&2; touch died; kill -9 $$; }
echo alone >&2
"""
# Takes as many MiB as each line on its standard input says, keeps them, and says so.
EATER = """
import sys
kept = []
for line in sys.stdin:
    kept.append(b"x" * (int(line) * 2**20))
    print(len(kept), flush=True)
"""


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    with Guard(orders(tmp_path)) as running:
        yield running


@contextlib.contextmanager
def closing(*gates: Gate) -> Iterator[None]:
    try:
        yield
    finally:
        for gate in gates:
            gate.close()


def eat(gate: Gate, mib: int) -> None:
    """Let a gate's compiler take more memory, as far as it is let."""
    assert gate.compiler
    assert gate.compiler.stdin
    gate.compiler.stdin.write(b"%d\n" % mib)
    gate.compiler.stdin.flush()


def eaten(gate: Gate) -> None:
    """Wait until it has it."""
    assert gate.compiler
    assert gate.compiler.stdout
    assert gate.compiler.stdout.readline()


def serve(gates: Iterable[Gate]) -> None:
    """Let each gate have its turn, and leave."""
    left = list(gates)
    while left:
        for gate in [one for one in left if not one.silent()]:
            assert gate.hear() == "go"
            gate.end()
            gate.close()
            left.remove(gate)


def learned(folder: Path, **peaks: int) -> None:
    """Let the units be known: `a` stands for the compile of a.c; peaks in bytes."""
    history = NeedHistory(folder / "units.sqlite")
    for name, peak in peaks.items():
        key = units.describe_unit("/src", ["cc", "-c", f"{name}.c"], [str(folder)]).key
        history.learn(key, MeasuredNeed(peak, 10.0))
    assert history.save() is None


def test_a_unit_is_admitted_recorded_and_learned(tmp_path: Path) -> None:
    for outcome in ("guess", "measured"):
        with Guard(orders(tmp_path)) as guard:
            gate = guard.gate()
            with closing(gate):
                assert gate.hear() == "go"
                gate.start("true")
                gate.end(0, 300 * MIB)
                until(guard.runs)
        assert guard.process.returncode == 0
        written = [
            parse_record(line)
            for line in (tmp_path / "timeline.jsonl").read_text("utf-8").splitlines()
        ]
        assert [one for one in guard.records if isinstance(one, UnitRun)] == [
            one for one in written if isinstance(one, UnitRun)
        ]
        (ran,) = (one for one in written if isinstance(one, UnitRun))
        assert (ran.peak, ran.outcome, ran.measured) == (300 * MIB, "done", outcome == "measured")


def test_no_more_units_run_than_there_are_processors(tmp_path: Path) -> None:
    with Guard(orders(tmp_path, cores=1)) as guard:
        first, second = guard.gate(), guard.gate()
        with closing(first, second):
            until(lambda: not first.silent() or not second.silent())
            until(lambda: guard.waiting() == 1)
            begun, waits = (first, second) if second.silent() else (second, first)
            assert begun.hear() == "go"
            begun.end()
            assert waits.hear() == "go"


def test_hundreds_of_gates_at_once_are_all_served(guard: Guard) -> None:
    gates = [guard.gate(f"{number}.c") for number in range(300)]
    with closing(*gates):
        serve(gates)
        until(lambda: len(guard.runs()) == 300)


def test_units_are_paused_then_ended_and_run_again_when_memory_goes(tmp_path: Path) -> None:
    learned(tmp_path, old=100 * MIB, young=100 * MIB)
    with Guard(orders(tmp_path, memory=600 * MIB)) as guard:
        old = guard.gate("old.c")
        assert old.hear() == "go"
        old.start(sys.executable, "-c", EATER)
        young = guard.gate("young.c")
        with closing(old, young):
            assert young.hear() == "go"
            young.start(sys.executable, "-c", EATER)
            eat(old, 300)
            eaten(old)
            for _ in range(20):
                eat(young, 10)
            until(lambda: guard.events("pause") or guard.events("rerun"))
            for _ in range(25):  # more than there is while the young one keeps what it has
                eat(old, 10)
            assert young.hear() == "again"
            assert young.compiler
            assert young.compiler.wait(SOON) == -signal.SIGTERM
            young.ask("cc", "-c", "young.c")
            for _ in range(25):
                eaten(old)
            until(lambda: guard.waiting() == 1)
            assert young.silent()
            assert old.silent()
            old.end()
            old.close()
            assert young.hear() == "go"
            until(lambda: guard.runs() == ["ended", "done"])
            assert len(guard.events("rerun")) == 1


def test_a_paused_unit_goes_on_when_there_is_memory_again(tmp_path: Path) -> None:
    learned(tmp_path, old=100 * MIB, young=100 * MIB)
    with Guard(orders(tmp_path, memory=600 * MIB)) as guard:
        old = guard.gate("old.c")
        assert old.hear() == "go"
        young = guard.gate("young.c")
        with closing(old, young):
            assert young.hear() == "go"
            old.start(sys.executable, "-c", EATER)
            young.start(sys.executable, "-c", EATER)
            for _ in range(60):
                eat(old, 5)
            for _ in range(44):
                eat(young, 5)
            until(lambda: young.status() == psutil.STATUS_STOPPED)
            assert old.compiler
            old.compiler.kill()
            old.end()
            until(lambda: young.status() == psutil.STATUS_SLEEPING)
            until(lambda: bool(guard.events("resume")))
            assert guard.events("rerun") == []


def test_a_unit_that_the_kernel_kills_runs_again_alone_and_fails_at_last(guard: Guard) -> None:
    victim, other = guard.gate("victim.c"), guard.gate("other.c")
    with closing(victim, other):
        assert victim.hear() == other.hear() == "go"
        victim.end(137, 700 * MIB, killed=True)
        assert victim.hear() == "again"
        victim.ask("cc", "-c", "victim.c")
        until(lambda: guard.waiting() == 1)
        assert victim.silent()
        other.end()
        assert victim.hear() == "go"
        late = guard.gate("late.c")
        with closing(late):
            until(lambda: guard.waiting() == 1)
            assert late.silent()  # one is alone
            victim.end(137, 700 * MIB, killed=True)
            assert victim.hear() == "again"
            assert late.hear() == "go"
            victim.ask("cc", "-c", "victim.c")
            late.end()
            assert victim.hear() == "go"
            victim.end(137, 700 * MIB, killed=True)
            assert victim.hear() == "done"
    until(lambda: guard.events("gave up"))
    assert len(guard.events("kill")) == 3
    assert guard.events("too large")[0].text.startswith(
        f"needed more than {format_bytes(700 * MIB)}, "
    )


def test_units_larger_than_the_limit_run_one_by_one_and_are_named(tmp_path: Path) -> None:
    with Guard(orders(tmp_path, memory=64 * MIB)) as guard:
        first, second = guard.gate("a.c"), guard.gate("b.c")
        with closing(first, second):
            until(lambda: guard.waiting() == 1)
            begun, waits = (first, second) if second.silent() else (second, first)
            for gate in (begun, waits):
                assert gate.hear() == "go"
                assert gate is waits or waits.silent()
                gate.end(0, 200 * MIB)
            until(lambda: guard.runs() == ["done", "done"])
    event, _ = guard.events("too large")
    assert event.text == f"needed {format_bytes(200 * MIB)}, {format_bytes(64 * MIB)} are allowed"


def real_gates(tmp_path: Path, folder: Path, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Run commands through the real gate, all at once; return their exit codes and what they said."""
    program = gate_program(tmp_path / "cache", ["cc"])
    assert program
    running = [
        subprocess.Popen(
            [program, *command],
            cwd=tmp_path,
            env={**os.environ, "MILLGUARD_GATE": str(folder)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    said = [one.communicate(timeout=SOON)[1] for one in running]
    return [(one.returncode, words) for one, words in zip(running, said, strict=True)]


def test_real_compilers_come_through_the_real_gate(guard: Guard, tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.c").write_text(f"int f{number}(int x) {{ return x + {number}; }}\n")
    (tmp_path / "bad.c").write_text("int f(void) { return nothing; }\n")
    (tmp_path / "victim").write_text(VICTIM)
    (tmp_path / "victim").chmod(0o755)
    good = [("cc", "-O2", "-c", f"{number}.c", "-o", f"{number}.o") for number in range(6)]
    *results, bad, victim = real_gates(
        tmp_path, guard.folder, *good, ("cc", "-c", "bad.c"), ("./victim", "-c", "v.c")
    )
    assert results == [(0, "")] * 6
    assert bad[0] == 1
    assert "nothing" in bad[1]
    assert victim == (0, "alone\n")
    until(lambda: len(guard.runs()) == 9)
    assert sorted(guard.runs()) == [*["done"] * 7, "failed", "killed"]
    assert [len(guard.events(kind)) for kind in ("kill", "alone", "gave up")] == [1, 1, 0]
    assert all(
        one.peak > MIB
        for one in guard.records
        if isinstance(one, UnitRun) and one.outcome == "done"
    )


NONSENSE = (
    b"\xff\xfe nonsense\n",
    b"ask -5\n",
    b"ask 99999999999\n",
    b"ask 0\n",
    b"ask\n",
    b"pid 1\n",
    b"end 0 0 0\n",
    b"\n",
    b"x" * 100_000,
    b"ask 5\n",  # and leaves
    b"ask 8\n/\0cc\0-c\0ask 8\n/\0cc\0-c\0",  # twice
    b"ask 8\n/\0cc\0-c\0pid -1\n",
    b"ask 8\n/\0cc\0-c\0end x y z\n",
)


def test_invalid_messages_of_a_gate_disturb_no_other(guard: Guard) -> None:
    silent = Gate(guard.folder)
    with closing(silent):
        for said in NONSENSE:
            strange = Gate(guard.folder)
            with closing(strange):
                with contextlib.suppress(OSError):  # it may have closed already
                    strange.socket.sendall(said)
                    strange.socket.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    while strange.hear():
                        pass
        gate = guard.gate()
        with closing(gate):
            assert gate.hear() == "go"


def test_the_compiler_of_a_vanished_gate_is_ended(guard: Guard) -> None:
    gate = guard.gate()
    with closing(gate):
        assert gate.hear() == "go"
        gate.start("sleep", "60")
        gate.socket.close()
        assert gate.compiler
        assert gate.compiler.wait(SOON) == -signal.SIGKILL


def test_nothing_is_left_of_a_build_whose_nox_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    folder.mkdir()
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, orders(folder).to_line()],
        env={**os.environ, "PYTHONPATH": str(IMPORTS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout
    guard = psutil.Process(int(starter.stdout.readline()))
    of_build = {**os.environ, "MILLGUARD_GATE": str(folder)}
    ninja = subprocess.Popen(["sleep", "600"], env=of_build, start_new_session=True)
    frozen = subprocess.Popen(["sleep", "600"], env=of_build, start_new_session=True)
    stranger = subprocess.Popen(["sleep", "600"], env={**of_build, "MILLGUARD_GATE": str(tmp_path)})
    frozen.send_signal(signal.SIGSTOP)
    gate = Gate(folder)
    gate.ask("cc", "-c", "a.c")
    with closing(gate):
        assert gate.hear() == "go"
        starter.kill()
        assert gate.hear() == "stop"
        assert gate.hear() == ""
    assert ninja.wait(SOON) == -signal.SIGTERM
    assert frozen.wait(SOON) == -signal.SIGTERM
    until(lambda: not folder.exists())
    until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
    starter.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_to_every_process_of_a_job_leaves_the_guard_running(
    guard: Guard, number: signal.Signals
) -> None:
    guard.process.send_signal(number)
    gate = guard.gate()
    with closing(gate):
        assert gate.hear() == "go"


def test_a_reader_who_sleeps_stops_nothing(tmp_path: Path) -> None:
    quiet = Guard(orders(tmp_path))
    quiet.say(orders(tmp_path).to_line())
    until((tmp_path / "timeline.jsonl").exists)  # after the socket listens
    for number in range(1000):  # far more than a pipe holds
        gate = quiet.gate(f"{number}.c")
        with closing(gate):
            assert gate.hear() == "go"
            gate.end()
    output, _ = quiet.process.communicate("end\n", SOON)
    assert output.count('"record":"ran"') == 1000
    assert quiet.process.returncode == 0


@pytest.mark.parametrize("limit", [64, 24])
def test_more_gates_than_descriptors_wait_for_their_turn(tmp_path: Path, limit: int) -> None:
    with Guard(orders(tmp_path), before=("prlimit", f"--nofile={limit}:{limit}")) as guard:
        gates = [guard.gate(f"{number}.c") for number in range(80)]
        with closing(*gates):
            serve(gates)


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")
def test_gates_for_which_no_descriptor_is_left_wait_and_cost_nothing(guard: Guard) -> None:
    """The kernel has as many for all programs together, so they may be gone without a limit here."""
    admitted = guard.gate("a.c")
    assert admitted.hear() == "go"
    process = psutil.Process(guard.process.pid)
    limits = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
    later = guard.gate("b.c")
    before = sum(process.cpu_times()[:2])
    time.sleep(1.0)
    assert sum(process.cpu_times()[:2]) - before < 0.5
    assert later.silent()
    process.rlimit(psutil.RLIMIT_NOFILE, limits)
    assert later.hear() == "go"
    later.close()
    admitted.close()


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")
def test_gates_go_on_by_themselves_if_none_can_be_accepted(guard: Guard) -> None:
    process = psutil.Process(guard.process.pid)
    _, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    looks = []
    for _ in range(10):  # a file that it reads just now is open in one look, and not in the next
        looks.append({int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir()})
        time.sleep(0.02)
    opened = set.intersection(*looks)
    first_free = min(set(range(len(opened) + 1)) - opened)
    process.rlimit(psutil.RLIMIT_NOFILE, (first_free, hard))
    gates = [Gate(guard.folder), Gate(guard.folder)]
    for gate in gates:
        # The guard may close the connection before the question is sent, or before it is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            gate.ask("cc", "-c", "a.c")
            assert gate.hear() == ""
        gate.close()
    assert guard.process.poll() is None


def test_files_that_cannot_be_written_cost_only_themselves(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ordered = orders(tmp_path)
    lost = json.loads(ordered.to_line()) | {
        "timeline": str(tmp_path / "file" / "timeline"),
        "history": str(tmp_path / "file" / "history"),
    }
    with Guard(parse_orders(json.dumps(lost))) as guard:
        gate = guard.gate()
        with closing(gate):
            assert gate.hear() == "go"
            gate.end()
            until(lambda: guard.runs() == ["done"])
    assert len(guard.events("no timeline")) == 1
    assert len(guard.events("no history")) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [("{}", "no command"), ("nonsense", "it cannot serve"), ('{"known":1}', "no command")],
)
def test_an_invalid_command_is_refused(line: str, said: str) -> None:
    done = run_guard(line)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_takes_no_socket_is_refused(tmp_path: Path) -> None:
    done = run_guard(orders(tmp_path / "missing").to_line())
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "missing" in done.stderr


def test_a_long_path_is_no_problem(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120) / ("b" * 120)
    folder.mkdir(parents=True)
    with Guard(orders(folder)) as guard:
        gate = guard.gate()
        with closing(gate):
            assert gate.hear() == "go"
        assert stat.S_ISSOCK((folder / "s").stat().st_mode)


def run_guard(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millguard.service"],
        input=line + "\n",
        env={**os.environ, "PYTHONPATH": str(IMPORTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=SOON,
    )
