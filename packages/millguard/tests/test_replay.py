"""The replay of a recorded build with another number of jobs."""

import pytest
from millguard.replay import allowed_memory, finished_units, replay
from millguard.timeline import Record, TimelineEvent, TimelineMoment, UnitRun

GIB = 2**30


def _unit(number: int, seconds: float = 10.0, peak: int = GIB, outcome: str = "done") -> UnitRun:
    return UnitRun(f"c++|{number}.cpp|-O2", "c++", number, number + seconds, peak, peak, outcome)


@pytest.mark.parametrize(
    ("jobs", "cores", "seconds"), [(1, 4, 40), (2, 4, 20), (4, 4, 10), (4, 2, 20)]
)
def test_time_follows_from_jobs_and_processors(jobs: int, cores: int, seconds: float) -> None:
    build = replay([_unit(number) for number in range(4)], jobs, cores)
    assert build.seconds == pytest.approx(seconds, rel=0.01)


def test_more_jobs_than_processors_cost_memory_and_save_nothing() -> None:
    units = [_unit(number) for number in range(8)]
    few, many = replay(units, 2, 2), replay(units, 8, 2)
    assert many.seconds == pytest.approx(few.seconds, rel=0.01)
    assert (few.at_most, many.at_most) == (2 * GIB, 8 * GIB)
    assert few.peak <= few.at_most
    assert many.peak == pytest.approx(8 * GIB, rel=0.01)


def test_a_short_large_unit_among_many_is_not_missed() -> None:
    units = [_unit(number, 1.0, 1) for number in range(2000)]
    units[777] = _unit(777, 1.0, GIB)
    assert replay(units, 1, 1).peak == pytest.approx(GIB, rel=0.01)


def test_small_units_beside_a_large_one_do_not_add_up() -> None:
    units = [_unit(0, 100, 4 * GIB), *(_unit(number, 10, GIB) for number in range(1, 10))]
    assert replay(units, 2, 2).at_most == 5 * GIB


def test_what_was_cut_short_is_left_out() -> None:
    records: list[Record] = [_unit(1, outcome="killed"), _unit(0), TimelineEvent(1.0, "kill", "x")]
    assert finished_units(records) == [_unit(0)]


def test_a_build_of_nothing_takes_nothing() -> None:
    build = replay([], 4, 2)
    assert (build.seconds, build.peak, build.at_most) == (0.0, 0, 0)


def test_the_limit_is_the_largest_that_was_seen() -> None:
    moments = [TimelineMoment(at, 0, allowed, 0, 0, 0) for at, allowed in ((0.0, 5), (1.0, 7))]
    assert allowed_memory([*moments, _unit(0)]) == 7
    assert allowed_memory([]) == 0
