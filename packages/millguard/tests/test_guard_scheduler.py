"""The scheduler: units that are tracked, the memory probe, and what is done about them."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from guard_support.guards import MIB, SOON, until
from millguard.expectations import NeedHistory, UnitExpectations
from millguard.gate_protocol import GateClient, GateGone, StartRequest, UnitEnded, UnitStarted
from millguard.jobserver import TokenPool
from millguard.limits import LimitReading
from millguard.policy import FLAT_CURVE, Pause, Resume
from millguard.scheduler import (
    IDLE_LOOK_SECONDS,
    MemoryProbe,
    RoomReading,
    TrackedUnit,
    UnitScheduler,
)
from millguard.timeline import Record, TimelineEvent, TimelineMoment, UnitRun
from millguard.units import describe_unit

PLENTY = RoomReading(headroom=8192 * MIB, cores=2.0, falling=0.0, rising=0.0, late=0.0)

NOTHING = RoomReading(headroom=0, cores=2.0, falling=0.0, rising=0.0, late=0.0)


class Build:
    """A build of which a test tells what happens, and when."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.records: list[Record] = []
        self.history = NeedHistory(folder / "units.sqlite")
        pool = TokenPool(folder)
        self.admission = UnitScheduler(
            UnitExpectations(self.history, ()),
            pool,
            ("/src",),
            lambda: self.now,
            self.records.append,
        )
        self.sockets: dict[int, socket.socket] = {}
        self.clients: list[GateClient] = []
        self.compilers: dict[int, subprocess.Popen[bytes]] = {}
        self._pool = pool

    def come(self, number: int, room: RoomReading = PLENTY) -> GateClient:
        """Let a gate come and ask."""
        self.sockets[number], ours = socket.socketpair()
        self.sockets[number].settimeout(SOON)
        client = GateClient(ours, number)
        self.clients.append(client)
        self.admission.add_gate(client)
        self.ask(client, room)
        return client

    def ask(self, client: GateClient, room: RoomReading = PLENTY) -> None:
        assert self.admission.handle_message(
            client, StartRequest("/src", ("cc", "-c", f"{client.number}.c"))
        )
        self.admission.apply_policy(room)

    def run(self, client: GateClient, *argv: str, **env: str) -> subprocess.Popen[bytes]:
        """Let its compiler run."""
        compiler = self.compilers[client.number] = subprocess.Popen(
            argv or ["sleep", "600"], start_new_session=True, env={**os.environ, **env}
        )
        assert self.admission.handle_message(client, UnitStarted(compiler.pid))
        return compiler

    def heard(self, client: GateClient) -> str:
        """Return the next word that a gate is told."""
        word = b""
        while not word.endswith(b"\n"):
            word += self.sockets[client.number].recv(1)
        return word.decode().strip()

    def silent(self, client: GateClient) -> bool:
        gate = self.sockets[client.number]
        gate.setblocking(False)
        try:
            return not gate.recv(1)
        except BlockingIOError:
            return True
        finally:
            gate.settimeout(SOON)

    def outcomes(self) -> list[str]:
        return [one.outcome for one in self.records if isinstance(one, UnitRun)]

    def kinds(self) -> list[str]:
        return [one.kind for one in self.records if isinstance(one, TimelineEvent)]

    def close(self) -> None:
        self.admission.close()
        self._pool.close()
        for client in self.clients:
            client.close()
        for gate in self.sockets.values():
            gate.close()
        for compiler in self.compilers.values():
            compiler.kill()
            compiler.wait()


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made = Build(tmp_path)
    yield made
    made.close()


def two(build: Build) -> tuple[GateClient, GateClient]:
    """Let two units run, the second of them younger."""
    old = build.come(1)
    build.now += 1
    young = build.come(2)
    assert build.heard(old) == build.heard(young) == "go"
    return old, young


def need_of(build: Build, number: int) -> tuple[int, float] | None:
    need = build.history.find(describe_unit("/src", ["cc", "-c", f"{number}.c"], ["/src"]).key)
    return None if need is None else (need.peak, need.seconds)


def test_the_youngest_is_ended_and_asks_again(build: Build) -> None:
    old, young = two(build)
    compiler = build.run(young)
    build.admission.apply_policy(NOTHING)
    assert build.heard(young) == "again"
    assert compiler.wait(SOON) == -signal.SIGTERM
    build.admission.apply_policy(NOTHING)  # its effect is awaited: nobody else is ended
    assert build.silent(old)
    build.ask(young)
    assert build.heard(young) == "go"
    assert (build.outcomes(), build.kinds()) == (["ended"], ["rerun"])


def test_a_real_compiler_that_is_ended_leaves_nothing_behind(build: Build, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "header.h")
    (tmp_path / "a.c").write_text('#include "header.h"\n')
    (tmp_path / "temporary").mkdir()
    words = ("cc", "-c", str(tmp_path / "a.c"), "-o", str(tmp_path / "a.o"))
    _, young = two(build)
    compiler = build.run(young, *words, TMPDIR=str(tmp_path / "temporary"))
    with (tmp_path / "header.h").open("w"):  # it reads, and waits for more
        build.admission._apply(Pause(2))
        build.admission.apply_policy(NOTHING)
        assert compiler.wait(SOON) != 0
    until(lambda: not any((tmp_path / "temporary").iterdir()))
    assert not (tmp_path / "a.o").exists()


def test_after_a_failure_nothing_starts_until_the_last_gate_has_left(build: Build) -> None:
    running, other = two(build)
    waiting = build.come(3)
    assert build.silent(waiting), "two processors are busy"
    build.admission.refuse()
    assert build.heard(waiting) == "stop"
    late = build.come(4)
    assert build.heard(late) == "stop"
    assert build.silent(running)
    assert build.silent(other)
    for client in (waiting, late, other):
        assert not build.admission.handle_message(client, GateGone())
    assert build.heard(build.come(5)) == "stop", "one still runs, and its processor is free"
    for client in (running, build.clients[-1]):
        assert not build.admission.handle_message(client, GateGone())
    assert build.heard(build.come(6)) == "go", (
        "this is another run, as of a setup.py that tries again without CUDA"
    )


def test_a_refusal_while_nothing_is_built_refuses_nothing(build: Build) -> None:
    build.admission.refuse()
    assert build.heard(build.come(1)) == "go"


def test_a_gate_whose_compiler_died_first_gets_one_answer(build: Build) -> None:
    _, young = two(build)
    build.run(young)
    build.admission.apply_policy(NOTHING)
    assert build.admission.handle_message(young, UnitEnded(137, MIB, killed=True))
    assert build.heard(young) == "again"
    assert build.silent(young)
    build.ask(young)
    assert build.heard(young) == "go"
    assert (build.outcomes(), build.kinds()) == (["ended"], ["rerun"])


def test_a_unit_that_succeeds_while_it_is_being_ended_is_done(build: Build) -> None:
    _, young = two(build)
    build.admission.apply_policy(NOTHING)
    assert build.admission.handle_message(young, UnitEnded(0, 70 * MIB, killed=False))
    assert not build.admission.handle_message(young, GateGone())
    assert build.outcomes() == ["done"]
    assert need_of(build, 2) == (70 * MIB, 0.0)


def test_a_compiler_that_was_just_about_to_start_is_ended_too(build: Build) -> None:
    _, young = two(build)
    build.admission.apply_policy(NOTHING)
    assert build.heard(young) == "again"
    compiler = build.run(young)
    assert compiler.wait(SOON) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes have one number")
def test_a_process_that_is_not_the_gates_is_left_alone(build: Build) -> None:
    _, young = two(build)
    script = "setsid sleep 60 & echo $!; wait $!; echo $?"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout
        stranger = int(
            other.stdout.readline()
        )  # its number is what a gate in another namespace says
        until(lambda: os.getpgid(stranger) == stranger)
        assert build.admission.handle_message(young, UnitStarted(stranger))
        build.admission.apply_policy(NOTHING)
        assert build.heard(young) == "again"
        assert not build.admission.handle_message(young, GateGone())
        os.kill(stranger, signal.SIGUSR1)
        assert int(other.stdout.readline()) == 128 + signal.SIGUSR1


def test_a_unit_that_was_ended_often_runs_alone(build: Build) -> None:
    old, young = two(build)
    for _ in range(2):
        build.admission.apply_policy(NOTHING)
        assert build.heard(young) == "again"
        build.ask(young)
        if build.kinds().count("rerun") < 2:
            assert build.heard(young) == "go"
    assert build.silent(young)
    assert build.admission.handle_message(old, UnitEnded(0, MIB, killed=False))
    build.admission.apply_policy(PLENTY)
    assert build.heard(young) == "go"
    assert build.kinds() == ["rerun", "rerun", "alone"]


def test_the_time_of_a_pause_is_not_learned(build: Build) -> None:
    old, young = two(build)
    compiler = build.run(young)
    build.admission._apply(Pause(2))
    until(lambda: Path(f"/proc/{compiler.pid}/stat").read_text().split(") ")[1][0] == "T", "a stop")
    build.now += 100
    build.admission._apply(Resume(2))
    build.now += 5
    build.admission.handle_message(young, UnitEnded(0, MIB, killed=False))
    assert need_of(build, 2) == (MIB, 5.0)
    assert build.silent(old)


def test_a_stopped_compiler_whose_gate_left_is_ended(build: Build) -> None:
    _, young = two(build)
    compiler = build.run(young)
    build.admission._apply(Pause(2))
    assert not build.admission.handle_message(young, GateGone())
    assert compiler.wait(SOON) == -signal.SIGKILL
    assert build.outcomes() == ["failed"]


def test_the_memory_of_units_is_measured(build: Build) -> None:
    old, _ = two(build)
    build.run(old)
    assert build.admission.used == 0
    build.admission.measure_units()
    assert 0 < build.admission.used < 10 * MIB
    build.admission.apply_policy(PLENTY)
    moment = build.records[-1]
    assert isinstance(moment, TimelineMoment)
    assert (moment.running, moment.used) == (2, build.admission.used)
    assert moment.allowed == PLENTY.headroom + moment.used


def test_what_fails_is_not_learned(build: Build) -> None:
    old, _ = two(build)
    assert build.admission.handle_message(old, UnitEnded(1, MIB, killed=False))
    assert build.outcomes() == ["failed"]
    assert need_of(build, 1) is None


def test_time_in_which_memory_kept_a_unit_waiting_is_counted(build: Build) -> None:
    scarce = RoomReading(headroom=200 * MIB, cores=2.0, falling=0.0, rising=0.0, late=0.0)
    build.come(1, scarce)
    build.come(2, scarce)
    for _ in range(3):
        build.now += 1
        build.admission.apply_policy(scarce)
    moment = build.records[-1]
    assert isinstance(moment, TimelineMoment)
    assert (moment.running, moment.waiting, moment.short) == (1, 1, 3.0)


def test_waiting_units_are_reconsidered_when_others_have_ended(build: Build) -> None:
    scarce = RoomReading(headroom=200 * MIB, cores=2.0, falling=0.0, rising=0.0, late=0.0)
    clients = [build.come(number, scarce) for number in range(1, 7)]
    for client in clients:
        assert build.heard(client) == "go"
        assert build.admission.handle_message(client, UnitEnded(0, 20 * MIB, killed=False))
        build.now += 1
        build.admission.apply_policy(scarce)
    first, *_, last = [one.expected for one in build.records if isinstance(one, UnitRun)]
    assert last == 20 * MIB < first


def test_memory_is_rarely_measured_without_units(build: Build) -> None:
    assert build.admission.apply_policy(PLENTY) == IDLE_LOOK_SECONDS
    old, _ = two(build)
    assert build.admission.apply_policy(PLENTY) < IDLE_LOOK_SECONDS
    assert not build.admission.handle_message(old, GateGone())


def test_there_is_time_for_other_things_while_compilers_run_and_memory_is_far_from_short(
    build: Build,
) -> None:
    two(build)
    build.admission.apply_policy(PLENTY)
    assert build.admission.calm
    build.admission.apply_policy(replace(PLENTY, headroom=1024 * MIB))
    assert not build.admission.calm


def test_all_gates_are_told_to_stop(build: Build) -> None:
    old, young = two(build)
    build.admission.stop()
    assert build.heard(old) == build.heard(young) == "stop"


@pytest.fixture
def course() -> Iterator[TrackedUnit]:
    gate, ours = socket.socketpair()
    client = GateClient(ours, 1)
    begun = TrackedUnit(client)
    begun.start()
    yield begun
    client.close()
    gate.close()


def test_the_memory_of_a_run_is_recorded_as_a_curve(course: TrackedUnit) -> None:
    for look in range(10_000):
        course.record_memory(look / 50, 1000 + look)
    curve = course.recorder.curve(200.0, course.peak)
    assert course.peak == course.highest_peak == 10_999
    assert curve[0] < 0.2
    assert curve[-1] == 1.0
    course.start()
    assert course.recorder.curve(200.0, 0) == FLAT_CURVE


def test_the_most_of_all_runs_is_remembered(course: TrackedUnit) -> None:
    course.record_peak(100)
    course.start()
    course.record_peak(50)
    assert (course.peak, course.highest_peak) == (50, 100)
    assert course.describe_need("needed").startswith("needed 50")


GIB = 2**30


def gauge(*left: int, most: int | None = None) -> MemoryProbe:
    values = itertools.chain(left, itertools.repeat(left[-1]))
    return MemoryProbe(lambda _: LimitReading("memory", next(values)), most, lambda: 2)


def test_the_tighter_of_machine_and_user_counts() -> None:
    assert gauge(8 * GIB).read(0.0, 0.0, GIB).headroom == 8 * GIB
    assert gauge(8 * GIB, most=3 * GIB).read(0.0, 0.0, GIB).headroom == 2 * GIB
    assert gauge(GIB, most=3 * GIB).read(0.0, 0.0, GIB).headroom == GIB
    assert gauge(8 * GIB, most=3 * GIB).read(0.0, 0.0, 4 * GIB).headroom == -GIB


def test_the_probe_passes_on_what_the_units_use() -> None:
    assert (
        MemoryProbe(lambda used: LimitReading("memory", 5 * GIB, used), None, lambda: 1)
        .read(0.0, 0.0, 2 * GIB)
        .headroom
        == 3 * GIB
    )


def test_the_pace_is_that_of_the_last_two_looks() -> None:
    measured = gauge(8 * GIB, 7 * GIB, 7 * GIB, 8 * GIB)
    paces = [measured.read(now, now, 0).falling for now in (0.0, 0.5, 1.0, 1.5)]
    assert paces == [0, 2 * GIB, 0, 0]


def test_an_instant_is_no_flood() -> None:
    measured = gauge(8 * GIB, 8 * GIB - 2**20, 7 * GIB)
    measured.read(0.0, 0.0, 0)
    assert measured.read(0.0001, 0.0001, 0).falling == 0
    assert measured.read(1.0, 1.0, 0).falling == GIB


def test_looks_that_came_late_are_remembered_for_a_while() -> None:
    measured = gauge(GIB)
    assert measured.read(1.0, 1.5, 0).late == 0  # something happened before it was due
    assert measured.read(2.0, 1.75, 0).late == 0.25
    for _ in range(7):
        assert measured.read(3.0, 3.0, 0).late == 0.25
    assert measured.read(3.0, 3.0, 0).late == 0
