"""What there is for units, measured again and again."""

import itertools

from torchmill.toolchain.guard.scheduler import MemoryProbe

GIB = 2**30


def gauge(*left: int, most: int | None = None) -> MemoryProbe:
    values = itertools.chain(left, itertools.repeat(left[-1]))
    return MemoryProbe(lambda _: next(values), most, lambda: 2)


def test_the_tighter_of_machine_and_user_counts() -> None:
    assert gauge(8 * GIB).read(0.0, 0.0, GIB).headroom == 8 * GIB
    assert gauge(8 * GIB, most=3 * GIB).read(0.0, 0.0, GIB).headroom == 2 * GIB
    assert gauge(GIB, most=3 * GIB).read(0.0, 0.0, GIB).headroom == GIB
    assert gauge(8 * GIB, most=3 * GIB).read(0.0, 0.0, 4 * GIB).headroom == -GIB


def test_the_machine_is_told_what_the_units_have() -> None:
    assert (
        MemoryProbe(lambda used: 5 * GIB - used, None, lambda: 1).read(0.0, 0.0, 2 * GIB).headroom == 3 * GIB
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
