"""The guard's records as lines, and how few lines its moments become."""

import io
import json
from dataclasses import replace

import pytest

from tests.support.recorded import GIB, moment, ran, small
from torchmill.toolchain.guard.timeline import (
    SHARE,
    BuildAccount,
    TimelineEvent,
    TimelineMoment,
    TimelineWriter,
    UnitRun,
    format_record,
    parse_record,
)


@pytest.mark.parametrize("record", small())
def test_what_is_written_is_read(record: TimelineMoment | UnitRun | TimelineEvent) -> None:
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
        '{"record":"event","at":1,"kind":"pause","key":"k","more":1}',
        format_record(moment(1))[:-9],
        "[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_anything_else_is_no_record(line: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_record(line)


def lines(pen: TimelineWriter, out: io.StringIO, looks: list[TimelineMoment]) -> list[TimelineMoment]:
    for one in looks:
        pen.write(one)
    pen.finish()
    found = [parse_record(line) for line in out.getvalue().splitlines()]
    assert all(isinstance(one, TimelineMoment) for one in found)
    return [one for one in found if isinstance(one, TimelineMoment)]


def test_of_many_looks_a_second_four_are_written_the_tightest() -> None:
    out = io.StringIO()
    looks = [moment(number / 50, used=3.5 if number == 77 else 1) for number in range(500)]
    written = lines(TimelineWriter(out), out, looks)
    assert 40 <= len(written) <= 42
    assert looks[77] in written


def test_six_hours_stay_small() -> None:
    out = io.StringIO()
    peak = 12345 * 5
    looks = [moment(number / 5, used=3.9 if number == peak else 1.25) for number in range(6 * 3600 * 5)]
    written = lines(TimelineWriter(out, SHARE), out, looks)
    assert len(written) < 9700
    assert len(out.getvalue()) < 1_300_000
    assert looks[peak] in written, "the tightest moment of all is kept"
    assert written[-1].at == pytest.approx(6 * 3600, rel=SHARE)


def test_what_is_no_moment_is_written_at_once() -> None:
    out = io.StringIO()
    pen = TimelineWriter(out)
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
        "3 compiles and links came by the guard, at most 3.9 GiB at a time, 1 paused, 1 ended to run again"
    )


def test_what_came_and_went_between_two_looks_was_there() -> None:
    account = BuildAccount()
    account.add(replace(ran("a.cpp", 1.5, 1.7), peak=GIB))
    assert account.summary() == "1 compile or link came by the guard, at most 1.0 GiB at a time"


def test_a_run_lasts_from_its_beginning_to_its_end() -> None:
    assert ran("a.cpp", 1.5, 4.0).seconds == 2.5
