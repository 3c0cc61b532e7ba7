"""What a unit went through, in numbers."""

import socket
from collections.abc import Iterator

import pytest

from torchmill.toolchain.guard.clients import GateClient
from torchmill.toolchain.guard.scheduler import UnitCourse


@pytest.fixture
def course() -> Iterator[UnitCourse]:
    gate, ours = socket.socketpair()
    client = GateClient(ours, 1)
    begun = UnitCourse(client)
    begun.begin(10.0)
    yield begun
    client.close()
    gate.close()


def test_only_the_time_between_pauses_counts(course: UnitCourse) -> None:
    assert course.ran(12.0) == 2
    course.pause(12.0)
    assert course.ran(15.0) == 2
    course.resume(16.0)
    assert course.ran(17.0) == 3
    course.begin(20.0)
    assert course.ran(21.0) == 1


def test_how_long_it_had_less_than_half_of_its_peak(course: UnitCourse) -> None:
    for second, has in enumerate((10, 20, 40, 49, 50, 90, 30)):
        course.saw_now(10.0 + second, has)
    course.saw(100)
    assert course.half(20.0) == 0.3


def test_of_a_unit_that_nobody_looked_at_nothing_is_said(course: UnitCourse) -> None:
    course.saw(100)
    assert course.half(10.0) == 0.0


def test_a_long_growth_is_not_noted_in_every_detail(course: UnitCourse) -> None:
    for look in range(10_000):
        course.saw_now(10.0 + look / 50, 1000 + look)
    assert len(course.rises) < 60
    assert course.peak == course.most == 10_999


def test_the_most_of_all_runs_is_remembered(course: UnitCourse) -> None:
    course.saw(100)
    course.begin(20.0)
    course.saw(50)
    assert (course.peak, course.most) == (50, 100)
    assert course.figures("needed").startswith("needed 50")
