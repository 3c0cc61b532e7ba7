"""The future: whether units that run together stay within the memory."""

from torchwright.guard.future import FOREVER, Forecast, Future


def test_peaks_are_added_up_where_no_end_is_known() -> None:
    future = Future(100, [Forecast(FOREVER, 50, 40, 1.0)])
    assert future.fits(Forecast(10.0, 0, 60, 5.0))
    assert not future.fits(Forecast(10.0, 0, 61, 5.0))


def test_what_ends_gives_back_all() -> None:
    future = Future(100, [Forecast(2.0, 50, 40, 1.0)])
    assert future.fits(Forecast(10.0, 0, 150, 8.0)), "at 2 s it has taken 37; then it has the 50 as well"
    assert not future.fits(Forecast(10.0, 0, 151, 8.0))
    assert not future.fits(Forecast(10.0, 0, 150, 3.0)), "too steep: 100 at 2 s"
    assert not future.fits(Forecast(1.0, 0, 61, 0.5)), "it ends before the other does"


def test_what_is_added_counts() -> None:
    future = Future(100, [])
    new = Forecast(FOREVER, 0, 60, 1.0)
    assert future.fits(new)
    future.add(new)
    assert not future.fits(new)


def test_levels_are_those_of_all_at_each_end() -> None:
    running = [Forecast(2.0, 30, 0, 1.0), Forecast(4.0, 30, 10, 1.0), Forecast(FOREVER, 0, 20, 1.0)]
    assert Future(60, running).fits(Forecast(9.0, 0, 100, 9.0)), (
        "22 + 30 at 2 s, 44 at 4 s, 100 - 60 + 20 at 9 s"
    )
    assert not Future(60, running).fits(Forecast(9.0, 0, 101, 9.0))
