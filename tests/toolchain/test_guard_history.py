"""The history: what is kept from build to build, and what a broken file costs."""

import sqlite3
from pathlib import Path

from torchmill.toolchain.guard.expectations import MeasuredNeed, NeedHistory


def test_what_was_learned_is_known_in_the_next_build(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "units.sqlite"
    first = NeedHistory(file)
    first.learn("a", MeasuredNeed(100, 2.0, 0.3))
    assert first.find("a") == MeasuredNeed(100, 2.0, 0.3), "at once, not only when it was saved"
    assert first.save() is None
    assert NeedHistory(file).find("a") == MeasuredNeed(100, 2.0, 0.3)
    assert NeedHistory(file).find("b") is None


def test_a_peak_is_forgotten_slowly_and_a_larger_one_counts_at_once(tmp_path: Path) -> None:
    history = NeedHistory(tmp_path / "units.sqlite")
    for peak in (1000, 500):
        history.learn("a", MeasuredNeed(peak, 4.0, 0.4))
    assert history.find("a") == MeasuredNeed(950, 4.0, 0.4)
    history.learn("a", MeasuredNeed(2000, 2.0, 0.2))
    assert history.find("a") == MeasuredNeed(2000, 3.0, 0.2)
    history.learn("a", MeasuredNeed(2000, 3.0))
    assert history.find("a") == MeasuredNeed(2000, 3.0, 0.2), (
        "a run whose growth nobody saw says nothing of it"
    )


def test_two_builds_keep_what_each_learned(tmp_path: Path) -> None:
    file = tmp_path / "units.sqlite"
    one, other = NeedHistory(file), NeedHistory(file)
    one.learn("a", MeasuredNeed(1, 1.0))
    other.learn("b", MeasuredNeed(2, 2.0))
    assert (one.save(), other.save()) == (None, None)
    assert [NeedHistory(file).find(key) for key in "ab"] == [MeasuredNeed(1, 1.0), MeasuredNeed(2, 2.0)]


def test_a_file_that_is_no_database_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "units.sqlite"
    file.write_text("this was something else\n" * 100)
    history = NeedHistory(file)
    assert history.find("a") is None
    history.learn("a", MeasuredNeed(1, 1.0))
    assert history.save() is None
    assert NeedHistory(file).find("a") == MeasuredNeed(1, 1.0)


def test_a_database_of_another_shape_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "units.sqlite"
    older = sqlite3.connect(file)
    older.execute("CREATE TABLE needs (key TEXT PRIMARY KEY, peak INTEGER)")
    older.close()
    history = NeedHistory(file)
    history.learn("a", MeasuredNeed(1, 1.0))
    assert history.save() is None
    assert NeedHistory(file).find("a") == MeasuredNeed(1, 1.0)


def test_where_nothing_can_be_written_the_reason_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.write_text("a file where a folder is needed")
    history = NeedHistory(place / "units.sqlite")
    history.learn("a", MeasuredNeed(1, 1.0))
    assert "cache" in (history.save() or "")
    assert history.find("a") == MeasuredNeed(1, 1.0)
    place.unlink()
    assert history.save() is None
    assert NeedHistory(place / "units.sqlite").find("a") == MeasuredNeed(1, 1.0)
