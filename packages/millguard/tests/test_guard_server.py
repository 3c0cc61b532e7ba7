"""The guard's process from command to records: orders, pipe, recorder, timeline, loop."""

import io
import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from guard_support.recorded import GIB, moment, ran, small
from millguard import server
from millguard.costs import KnownCost
from millguard.expectations import NeedHistory, UnitExpectations
from millguard.gate_protocol import GateClient, StartRequest, listen
from millguard.jobserver import TokenPool
from millguard.limits import LimitReading
from millguard.scheduler import MemoryProbe, UnitScheduler
from millguard.server import (
    BUFFERED_BYTES,
    READY,
    GuardCommand,
    GuardRecorder,
    GuardServer,
    GuardStarter,
    NonblockingPipe,
    parse_command,
)
from millguard.timeline import (
    MOMENT_SHARE,
    BuildAccount,
    Record,
    TimelineEvent,
    TimelineMoment,
    TimelineWriter,
    UnitRun,
    format_record,
    parse_record,
)

ORDERS = GuardCommand(
    folder="/run/ä b",
    timeline="/logs/t.jsonl",
    history="/cache/units.sqlite",
    roots=("/src", "/build"),
    cores=None,
    memory=12 * 2**30,
    known=(KnownCost("*/Register*.cpp", 2**30, 60.0), KnownCost("*.cu", 2**32, 300.0)),
)


def test_a_command_survives_its_json() -> None:
    line = ORDERS.to_line()
    assert "\n" not in line
    assert parse_command(line) == ORDERS


@pytest.mark.parametrize(
    "line", ["", "nonsense", "[]", "7", "{}", '{"known":[]}', '{"known":[{"x":1}],"roots":[]}']
)
def test_a_line_that_is_no_command_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no command for the guard: |Expecting value"):
        parse_command(line)


def test_the_starter_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    superior = GuardStarter(reading)
    os.write(writing, ORDERS.to_line().encode() + b"\n")
    assert parse_command(superior.read_first_line()) == ORDERS
    assert not superior.asked_to_end
    os.write(writing, b"end\n")
    superior.read()
    os.close(writing)
    superior.read()
    assert superior.asked_to_end
    assert not superior.gone
    os.close(reading)


def test_the_end_may_arrive_with_the_command() -> None:
    reading, writing = os.pipe()
    superior = GuardStarter(reading)
    os.write(writing, b"{}\nend\n")
    assert superior.read_first_line() == "{}"
    assert superior.asked_to_end
    os.close(writing)
    os.close(reading)


def test_a_longer_word_is_not_the_end() -> None:
    reading, writing = os.pipe()
    starter = GuardStarter(reading)
    os.write(writing, b"{}\nappend\n")
    assert starter.read_first_line() == "{}"
    assert not starter.asked_to_end
    os.close(writing)
    os.close(reading)


def test_a_line_that_is_cut_off_is_none() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"{}")
    os.close(writing)
    assert GuardStarter(reading).read_first_line() == ""
    os.close(reading)


def test_a_starter_that_closes_without_end_is_gone() -> None:
    reading, writing = os.pipe()
    superior = GuardStarter(reading)
    os.close(writing)
    assert superior.read_first_line() == ""
    assert superior.gone
    os.close(reading)


def read_all(descriptor: int) -> bytes:
    found = b""
    while block := os.read(descriptor, 65536):
        found += block
    return found


def test_a_late_reader_gets_everything_in_order() -> None:
    reading, writing = os.pipe()
    outlet = NonblockingPipe(writing)
    lines = [f"{number}\n" for number in range(30_000)]  # more than a pipe holds
    for line in lines:
        outlet.write(line)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(read_all(reading)))
    reader.start()
    outlet.flush()
    os.close(writing)
    reader.join()
    os.close(reading)
    assert found[0].decode() == "".join(lines)


def test_a_reader_who_never_comes_costs_no_more_memory_than_that() -> None:
    reading, writing = os.pipe()
    outlet = NonblockingPipe(writing)
    for _ in range(100):
        outlet.write("x" * (BUFFERED_BYTES // 10))
    assert len(outlet._pending) < 2 * BUFFERED_BYTES
    os.close(reading)
    os.close(writing)


def test_lines_that_follow_each_other_are_written_together() -> None:
    reading, writing = os.pipe()
    outlet = NonblockingPipe(writing)
    for line in ("first\n", "second\n", "third\n"):
        outlet.write(line)
    assert os.read(reading, 100) == b"first\n"
    outlet.flush()
    assert os.read(reading, 100) == b"second\nthird\n"
    os.close(reading)
    os.close(writing)


def test_writing_to_a_reader_that_left_is_harmless() -> None:
    reading, writing = os.pipe()
    outlet = NonblockingPipe(writing)
    os.close(reading)
    outlet.write("something\n")
    outlet.flush()
    os.close(writing)


MOMENT = TimelineMoment(1.0, 2, 3, 4, 5, 6)

EVENT = TimelineEvent(2.0, "pause", "a.c")


def recorded(file: Path, *records: Record) -> list[str]:
    """Return what is told when records are taken."""
    reading, writing = os.pipe()
    recorder = GuardRecorder(writing, file, lambda: 9.0)
    recorder.announce_ready()
    for record in records:
        recorder.record(record)
    recorder.close()
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        return pipe.readlines()


def test_records_go_to_the_pipe_and_the_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "timeline"
    ready, *told = recorded(file, MOMENT, EVENT)
    assert ready == READY
    assert [parse_record(line) for line in told] == [MOMENT, EVENT]
    assert file.read_text("utf-8").splitlines(keepends=True) == told


def test_the_file_is_overwritten(tmp_path: Path) -> None:
    recorded(tmp_path / "timeline", EVENT)
    recorded(tmp_path / "timeline", EVENT)
    assert len((tmp_path / "timeline").read_text("utf-8").splitlines()) == 1


def test_a_file_that_cannot_be_made_is_named_and_forgotten(tmp_path: Path) -> None:
    lost, ready, *told = recorded(tmp_path, EVENT)
    assert ready == READY
    event = parse_record(lost)
    assert isinstance(event, TimelineEvent)
    assert (event.kind, event.at) == ("no timeline", 9.0)
    assert str(tmp_path) in event.text
    assert [parse_record(line) for line in told] == [EVENT]


def test_a_full_disk_ends_the_file_only() -> None:
    _, *told = recorded(Path("/dev/full"), EVENT, EVENT)
    records = [parse_record(line) for line in told]
    assert [one.kind for one in records if isinstance(one, TimelineEvent)] == [
        "pause",
        "no timeline",
        "pause",
    ]


@pytest.mark.parametrize("record", small())
def test_records_survive_their_json(record: TimelineMoment | UnitRun | TimelineEvent) -> None:
    assert parse_record(format_record(record)) == record
    assert "\n" not in format_record(record)


def test_times_are_written_to_the_millisecond() -> None:
    assert json.loads(format_record(TimelineEvent(1.23456789, "pause", "k")))["at"] == 1.235


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "7",
        "{",
        '{"record":"moment"}',
        '{"record":"what","at":1}',
        '{"record":["moment"],"at":1}',
        '{"record":"event","at":"1","kind":"pause","key":"k"}',
        '{"record":"event","at":NaN,"kind":"pause","key":"k"}',
        '{"record":"event","at":1e999,"kind":"pause","key":"k"}',
        '{"record":"event","at":true,"kind":"pause","key":"k"}',
        '{"record":"event","at":null,"kind":"pause","key":"k"}',
        '{"record":"event","at":[],"kind":"pause","key":"k"}',
        '{"record":"event","at":1,"kind":"pause","key":"k","more":1}',
        format_record(moment(1))[:-9],
        "[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_anything_else_is_no_record(line: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_record(line)


def lines(
    pen: TimelineWriter, out: io.StringIO, looks: list[TimelineMoment]
) -> list[TimelineMoment]:
    for one in looks:
        pen.write(one)
    pen.finish()
    found = [parse_record(line) for line in out.getvalue().splitlines()]
    assert all(isinstance(one, TimelineMoment) for one in found)
    return [one for one in found if isinstance(one, TimelineMoment)]


def test_of_many_looks_a_second_four_are_written_the_tightest() -> None:
    out = io.StringIO()
    looks = [moment(number / 50, used=3.5 if number == 77 else 1) for number in range(500)]
    written = lines(TimelineWriter(out.write), out, looks)
    assert 40 <= len(written) <= 42
    assert looks[77] in written


def test_six_hours_stay_small() -> None:
    out = io.StringIO()
    peak = 12345 * 5
    looks = [
        moment(number / 5, used=3.9 if number == peak else 1.25) for number in range(6 * 3600 * 5)
    ]
    written = lines(TimelineWriter(out.write, MOMENT_SHARE), out, looks)
    assert len(written) < 9700
    assert len(out.getvalue()) < 1_300_000
    assert looks[peak] in written, "the tightest moment of all is kept"
    assert written[-1].at == pytest.approx(6 * 3600, rel=MOMENT_SHARE)


def test_runs_and_events_are_written_at_once() -> None:
    out = io.StringIO()
    pen = TimelineWriter(out.write)
    for number in range(3):
        pen.write(TimelineEvent(0.01 * number, "pause", "k"))
        assert len(out.getvalue().splitlines()) == number + 1


def test_an_account_adds_up() -> None:
    account = BuildAccount()
    for record in [
        *small(),
        TimelineEvent(21.0, "too large", "k", "needed 5.1 GiB"),
        TimelineEvent(22.0, "gave up", "k"),
    ]:
        account.add(record)
    assert (account.now.at, account.now.running) == (20, 0)
    assert account.peak == int(3.9 * GIB)
    assert account.now.short == 2.5
    assert account.units == 3, "what the guard ended is not done"
    assert account.counts == {"pause": 1, "resume": 1, "rerun": 1, "too large": 1, "gave up": 1}
    assert [one.at for one in account.gave_up] == [22.0]
    assert account.summary() == (
        "the guard scheduled 3 compiles and links, at most 3.9 GiB of memory at a time, 1 paused, 1 ended to run again"
    )


def test_a_run_between_two_measurements_counts() -> None:
    account = BuildAccount()
    account.add(replace(ran("a.cpp", 1.5, 1.7), peak=GIB))
    assert (
        account.summary()
        == "the guard scheduled 1 compile or link, at most 1.0 GiB of memory at a time"
    )


def test_a_run_lasts_from_its_beginning_to_its_end() -> None:
    assert ran("a.cpp", 1.5, 4.0).seconds == 2.5


def test_the_history_is_saved_now_and_then_while_compilers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SAVE_INTERVAL_SECONDS", 0.0)
    reading, writing = os.pipe()
    expectations = UnitExpectations(NeedHistory(tmp_path / "units.sqlite"), ())
    pool = TokenPool(tmp_path)
    admission = UnitScheduler(expectations, pool, (), lambda: 0.0, lambda _: None)
    theirs, ours = socket.socketpair()
    client = GateClient(ours, 1)
    admission.add_gate(client)
    assert admission.handle_message(client, StartRequest("/src", ("cc", "-c", "a.c")))
    gauge = MemoryProbe(lambda _: LimitReading("memory", 2**33), None, lambda: 2)
    serving = GuardServer(listen(tmp_path), GuardStarter(reading), admission, gauge, 10)
    serving.serve(lambda: os.write(writing, b"end\n"))  # without it, it would never end
    assert theirs.recv(10) == b"go\n", "its compiler runs all the while"
    serving.close()
    client.close()
    theirs.close()
    pool.close()
    os.close(reading)
    os.close(writing)
