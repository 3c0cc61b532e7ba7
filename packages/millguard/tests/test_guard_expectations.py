"""What units are expected to need: history, facts, similar units."""

import sqlite3
from pathlib import Path

import pytest
from millguard.costs import KnownCost
from millguard.expectations import (
    FAMILIES,
    NEIGHBOURS,
    RELATIVES,
    MeasuredNeed,
    NeedHistory,
    UnitExpectations,
    expect_again,
)
from millguard.policy import CURVE_PARTS, FLAT_CURVE, MIB, Unit
from millguard.units import UnitDescription

RISING = tuple((part + 1) / CURVE_PARTS for part in range(CURVE_PARTS))
KNOWN = (
    KnownCost("csrc/jit/python/init.cpp", 2000 * MIB, 50),
    KnownCost("csrc/*init.cpp", 900 * MIB, 13),
    KnownCost("flash_attn/*.cu", 5000 * MIB),
)


@pytest.fixture
def history(tmp_path: Path) -> NeedHistory:
    return NeedHistory(tmp_path / "units.sqlite")


def described(source: str, family: str = "c++", weight: float = 1.0) -> UnitDescription:
    return UnitDescription(family, f"g++|{source}|-O2", weight, source)


def test_the_history_of_a_unit_comes_first(history: NeedHistory) -> None:
    one = described("torch/csrc/jit/python/init.cpp")
    history.learn(one.key, MeasuredNeed(7 * MIB, 3.0, RISING))
    assert UnitExpectations(history, KNOWN).expect(one) == Unit(
        one.key, 7 * MIB, 3.0, 1.0, measured=True, curve=RISING
    )


def test_the_first_pattern_that_a_path_ends_like_counts(history: NeedHistory) -> None:
    expectations = UnitExpectations(history, KNOWN)
    assert expectations.expect(described("torch/csrc/jit/python/init.cpp")).peak == 2000 * MIB
    assert expectations.expect(described("csrc/jit/python/init.cpp")).seconds == 50
    assert expectations.expect(described("torch/csrc/onnx/init.cpp")).peak == 900 * MIB
    assert expectations.expect(described("torch/mycsrc/onnx/init.cpp")).peak == FAMILIES["c++"].peak
    assert not expectations.expect(described("torch/csrc/onnx/init.cpp")).measured


def test_figures_for_cuda_are_for_each_thread_and_default_to_the_familys_time(
    history: NeedHistory,
) -> None:
    one = UnitExpectations(history, KNOWN).expect(described("flash_attn/fwd.cu", "cuda", 4.0))
    assert (one.peak, one.seconds, one.weight) == (20000 * MIB, FAMILIES["cuda"].seconds, 4.0)


def test_units_of_the_same_folder_count_before_the_family(history: NeedHistory) -> None:
    expectations = UnitExpectations(history, KNOWN)
    for number in range(RELATIVES):
        assert expectations.expect(described("far/x.cpp")).peak == FAMILIES["c++"].peak
        expectations.learn(described(f"far/away/{number}.cpp"), (100 + number) * MIB, 4.0)
    for number in range(RELATIVES, 8):
        expectations.learn(described(f"far/away/{number}.cpp"), (100 + number) * MIB, 4.0)
    assert expectations.expect(described("far/x.cpp")).peak == 106 * MIB, (
        "three of four needed no more"
    )
    for number in range(NEIGHBOURS):
        expectations.learn(described(f"near/{number}.cpp"), 900 * MIB, 20.0)
    near = expectations.expect(described("near/x.cpp"))
    assert (near.peak, near.seconds, near.measured) == (900 * MIB, 20.0, False)
    assert expectations.expect(described("near/x.c", "c")).peak == FAMILIES["c"].peak


def test_a_compiler_that_needs_twice_as_much_corrects_the_figures(history: NeedHistory) -> None:
    expectations = UnitExpectations(history, KNOWN)
    for number in range(5):
        expectations.learn(described(f"csrc/{number}init.cpp"), 1800 * MIB, 26.0)
    assert expectations.expect(described("csrc/jit/python/init.cpp")).peak == 4000 * MIB


def test_measured_needs_are_saved(history: NeedHistory) -> None:
    one = described("a.cu", "cuda", 2.0)
    UnitExpectations(history, ()).learn(one, 600 * MIB, 5.0, RISING)
    assert history.find(one.key) == MeasuredNeed(600 * MIB, 5.0, RISING)


def test_a_unit_that_was_ended_is_expected_to_need_more() -> None:
    one = Unit("a", 100, 1.0)
    assert expect_again(one, 200).peak == 300
    assert expect_again(one, 10).peak == 100


def test_the_next_build_uses_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "units.sqlite"
    first = NeedHistory(file)
    first.learn("a", MeasuredNeed(100, 2.0, RISING))
    assert first.find("a") == MeasuredNeed(100, 2.0, RISING), "at once, not only when it was saved"
    assert first.save() is None
    assert NeedHistory(file).find("a") == MeasuredNeed(100, 2.0, RISING)
    assert NeedHistory(file).find("b") is None


def test_a_peak_is_forgotten_slowly_and_a_larger_one_counts_at_once(tmp_path: Path) -> None:
    history = NeedHistory(tmp_path / "units.sqlite")
    for peak in (1000, 500):
        history.learn("a", MeasuredNeed(peak, 4.0))
    assert history.find("a") == MeasuredNeed(950, 4.0)
    history.learn("a", MeasuredNeed(2000, 2.0))
    assert history.find("a") == MeasuredNeed(2000, 3.0)


def test_a_hump_is_forgotten_slowly_and_a_new_one_counts_at_once(tmp_path: Path) -> None:
    history = NeedHistory(tmp_path / "units.sqlite")
    half = CURVE_PARTS // 2
    early = (1.0,) * half + (0.5,) * half
    late = (0.5,) * half + (1.0,) * half
    for curve in (early, late, FLAT_CURVE):  # a run whose memory nobody saw says nothing of it
        history.learn("a", MeasuredNeed(1000, 4.0, curve))
    need = history.find("a")
    assert need is not None
    assert need.curve == pytest.approx((0.95,) * half + (1.0,) * half)


@pytest.mark.parametrize("curve", ["", "0.5", "1 2", "nan", "x", "0 " * CURVE_PARTS])
def test_a_database_with_a_broken_curve_is_replaced(tmp_path: Path, curve: str) -> None:
    file = tmp_path / "units.sqlite"
    history = NeedHistory(file)
    history.learn("a", MeasuredNeed(1, 1.0))
    assert history.save() is None
    database = sqlite3.connect(file)
    with database:
        database.execute("UPDATE needs SET curve = ?", (curve,))
    database.close()
    assert NeedHistory(file).find("a") is None
    assert not file.exists()


def test_two_builds_keep_what_each_learned(tmp_path: Path) -> None:
    file = tmp_path / "units.sqlite"
    one, other = NeedHistory(file), NeedHistory(file)
    one.learn("a", MeasuredNeed(1, 1.0))
    other.learn("b", MeasuredNeed(2, 2.0))
    assert (one.save(), other.save()) == (None, None)
    assert [NeedHistory(file).find(key) for key in "ab"] == [
        MeasuredNeed(1, 1.0),
        MeasuredNeed(2, 2.0),
    ]


def test_a_file_that_is_no_database_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "units.sqlite"
    file.write_text("this was something else\n" * 100)
    history = NeedHistory(file)
    assert history.find("a") is None
    history.learn("a", MeasuredNeed(1, 1.0))
    assert history.save() is None
    assert NeedHistory(file).find("a") == MeasuredNeed(1, 1.0)


def test_a_database_with_another_schema_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "units.sqlite"
    older = sqlite3.connect(file)
    older.execute("CREATE TABLE needs (key TEXT PRIMARY KEY, peak INTEGER)")
    older.close()
    history = NeedHistory(file)
    history.learn("a", MeasuredNeed(1, 1.0))
    assert history.save() is None
    assert NeedHistory(file).find("a") == MeasuredNeed(1, 1.0)


def test_a_history_that_cannot_be_written_gives_the_reason_and_loses_nothing(
    tmp_path: Path,
) -> None:
    place = tmp_path / "cache"
    place.write_text("a file where a folder is needed")
    history = NeedHistory(place / "units.sqlite")
    history.learn("a", MeasuredNeed(1, 1.0))
    assert "cache" in (history.save() or "")
    assert history.find("a") == MeasuredNeed(1, 1.0)
    place.unlink()
    assert history.save() is None
    assert NeedHistory(place / "units.sqlite").find("a") == MeasuredNeed(1, 1.0)
