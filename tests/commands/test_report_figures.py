"""What a recording comes to."""

from pathlib import Path

import pytest

from tests.support.recorded import GIB, moment, ran, recording
from torchmill.commands.report.recording import (
    largest_runs,
    longest_runs,
    misjudged_runs,
    picture_columns,
    sum_up,
)


def test_the_totals_of_a_build(tmp_path: Path) -> None:
    sums = sum_up(recording(tmp_path))
    assert (sums.wall, sums.units, sums.failed) == (20.0, 3, 1)
    assert sums.together == pytest.approx((8 + 8 + 9 + 1.5) / 20)
    assert sums.peak is not None
    assert (sums.peak.at, sums.peak.used) == (4.0, int(3.9 * GIB))
    assert (sums.short, sums.lost) == (2.5, 8.0)
    assert dict(sums.events) == {"pause": 1, "resume": 1, "rerun": 1}


def test_the_totals_of_next_to_nothing(tmp_path: Path) -> None:
    sums = sum_up(recording(tmp_path, [moment(0)]))
    assert (sums.wall, sums.units, sums.together) == (0.0, 0, 0.0)
    assert sum_up(recording(tmp_path, [ran("a", 0, 1)])).peak is None


def test_units_that_stand_out(tmp_path: Path) -> None:
    found = recording(
        tmp_path,
        [
            ran("right", 0, 9, peak=5 * GIB, expected=5 * GIB),
            ran("over", 0, 2, peak=1 * GIB, expected=4 * GIB),
            ran("under", 0, 3, peak=6 * GIB, expected=4 * GIB),
            ran("cut", 0, 1, peak=GIB // 2, expected=9 * GIB, outcome="killed"),
        ],
    )
    assert [one.key.split("|")[1] for one in longest_runs(found, 2)] == ["right", "under"]
    assert [one.key.split("|")[1] for one in largest_runs(found, 2)] == ["under", "right"]
    assert [one.key.split("|")[1] for one in misjudged_runs(found, 9)] == ["over", "under"]


def test_many_moments_become_few_columns_that_keep_the_extremes() -> None:
    moments = [moment(number / 4, used=1, running=number % 2) for number in range(40_001)]
    moments[20_002] = moment(5000.5, used=3, allowed=3.5, running=0)
    found = picture_columns(moments, 100)
    assert len(found) == 101
    assert (found[0].at, found[-1].at) == (0.0, 10_000.0)
    assert max(found, key=lambda one: one.used).at == pytest.approx(5000, abs=100)
    assert min(one.allowed for one in found) == int(3.5 * GIB)
    assert found[10].running == pytest.approx(0.5, abs=0.01)


def test_few_moments_stay_what_they_are() -> None:
    found = picture_columns([moment(0), moment(7, used=2, short=3.5), moment(10, short=3.5)], 100)
    assert [(one.at, one.used, one.short) for one in found] == [
        (0, GIB, 0.0),
        (7, 2 * GIB, 0.5),
        (10, GIB, 0.0),
        (10, GIB, 0.0),
    ]
    assert picture_columns([], 100) == []
    assert len(picture_columns([moment(0)], 100)) == 2
