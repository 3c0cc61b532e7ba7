"""The future: whether units that run together stay within the memory."""

import random

from torchmill.toolchain.guard.forecast import FOREVER, MemoryForecast, RoomReservation, UnitForecast


def forecast(left: float, used: int, growth: int, rise: float, guess: float = 5.0) -> UnitForecast:
    """Return what is known of a unit; of one whose end nobody knows a guess."""
    return UnitForecast(left, used, growth, rise, guess if left == FOREVER else left)


def test_peaks_are_added_up_where_no_end_is_known() -> None:
    future = MemoryForecast(100, [forecast(FOREVER, 50, 40, 1.0)])
    assert future.fits(forecast(10.0, 0, 60, 5.0))
    assert not future.fits(forecast(10.0, 0, 61, 5.0))


def test_what_ends_gives_back_all() -> None:
    future = MemoryForecast(100, [forecast(2.0, 50, 40, 1.0)])
    assert future.fits(forecast(10.0, 0, 150, 8.0)), "at 2 s it has taken 37; then it has the 50 as well"
    assert not future.fits(forecast(10.0, 0, 151, 8.0))
    assert not future.fits(forecast(10.0, 0, 150, 3.0)), "too steep: 100 at 2 s"
    assert not future.fits(forecast(1.0, 0, 61, 0.5)), "it ends before the other does"


def test_what_is_added_counts() -> None:
    future = MemoryForecast(100, [])
    new = forecast(FOREVER, 0, 60, 1.0)
    assert future.fits(new)
    future.add(new)
    assert not future.fits(new)


def test_one_by_one_is_as_all_at_once() -> None:
    source = random.Random(1)  # noqa: S311 - the same units each time

    def drawn() -> UnitForecast:
        left = source.choice((FOREVER, 1.0, 2.0, source.uniform(1, 9)))
        return forecast(left, source.randrange(40), source.randrange(40), source.uniform(0.1, 9))

    answers = set()
    for _ in range(300):
        units, new = [drawn() for _ in range(6)], drawn()
        future = MemoryForecast(90, units[:3])
        for count, one in enumerate(units[3:], 4):
            future.fits(new)
            future.add(one)
            answers.add(future.fits(new))
            assert future.fits(new) == MemoryForecast(90, units[:count]).fits(new)
    assert answers == {True, False}


def test_levels_are_those_of_all_at_each_end() -> None:
    running = [forecast(2.0, 30, 0, 1.0), forecast(4.0, 30, 10, 1.0), forecast(FOREVER, 0, 20, 1.0)]
    assert MemoryForecast(60, running).fits(forecast(9.0, 0, 100, 9.0)), (
        "22 + 30 at 2 s, 44 at 4 s, 100 - 60 + 20 at 9 s"
    )
    assert not MemoryForecast(60, running).fits(forecast(9.0, 0, 101, 9.0))


def test_room_is_kept_from_when_enough_has_ended() -> None:
    running = [forecast(FOREVER, 30, 10, 1.0, guess=4.0), forecast(2.0, 20, 10, 1.0)]
    future = MemoryForecast(40, running)
    assert future.reserve(21) == RoomReservation(2.0, 29), (
        "20 are free, and 30 more when the second has ended"
    )
    assert future.reserve(50) == RoomReservation(2.0, 0)
    assert future.reserve(51) == RoomReservation(4.0, 39)
    assert future.reserve(91) is None, "more than there is when nothing runs"


def test_only_those_pass_that_end_in_time_or_fit_beside() -> None:
    kept = RoomReservation(10.0, 50)
    assert kept.lets_pass(forecast(10.0, 0, 900, 1.0)), "it has ended by then"
    assert kept.lets_pass(forecast(FOREVER, 0, 900, 1.0, guess=9.0)), "so it is thought"
    assert kept.lets_pass(forecast(11.0, 0, 30, 1.0))
    assert not kept.lets_pass(forecast(11.0, 0, 30, 1.0)), "there is room for one such only"
    assert kept.lets_pass(forecast(FOREVER, 0, 20, 1.0, guess=11.0))
