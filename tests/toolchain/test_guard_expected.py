"""What is expected of a unit: by what is known best."""

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from torchmill.config.model import Facts, KnownUnit
from torchmill.toolchain.guard.expectations import (
    FAMILIES,
    NEIGHBOURS,
    RELATIVES,
    MeasuredNeed,
    NeedHistory,
    UnitExpectations,
    expect_again,
    relevant_units,
)
from torchmill.toolchain.guard.forecast import MIB, Unit
from torchmill.toolchain.guard.units import UnitDescription

KNOWN = (
    KnownUnit("csrc/jit/python/init.cpp", 2000 * MIB, 50),
    KnownUnit("csrc/*init.cpp", 900 * MIB, 13),
    KnownUnit("flash_attn/*.cu", 5000 * MIB),
)


@pytest.fixture
def history(tmp_path: Path) -> NeedHistory:
    return NeedHistory(tmp_path / "units.sqlite")


def described(source: str, family: str = "c++", weight: float = 1.0) -> UnitDescription:
    return UnitDescription(family, f"g++|{source}|-O2", weight, source)


def test_what_ran_before_is_known_best(history: NeedHistory) -> None:
    one = described("torch/csrc/jit/python/init.cpp")
    history.learn(one.key, MeasuredNeed(7 * MIB, 3.0, 0.2))
    assert UnitExpectations(history, KNOWN).expect(one) == Unit(
        one.key, 7 * MIB, 3.0, 1.0, measured=True, half=0.2
    )


def test_the_first_pattern_that_a_path_ends_like_counts(history: NeedHistory) -> None:
    expectations = UnitExpectations(history, KNOWN)
    assert expectations.expect(described("torch/csrc/jit/python/init.cpp")).peak == 2000 * MIB
    assert expectations.expect(described("csrc/jit/python/init.cpp")).seconds == 50
    assert expectations.expect(described("torch/csrc/onnx/init.cpp")).peak == 900 * MIB
    assert expectations.expect(described("torch/mycsrc/onnx/init.cpp")).peak == FAMILIES["c++"].peak
    assert not expectations.expect(described("torch/csrc/onnx/init.cpp")).measured


def test_of_cuda_it_is_for_each_thread_and_time_that_is_not_known_is_the_family_s(
    history: NeedHistory,
) -> None:
    one = UnitExpectations(history, KNOWN).expect(described("flash_attn/fwd.cu", "cuda", 4.0))
    assert (one.peak, one.seconds, one.weight) == (20000 * MIB, FAMILIES["cuda"].seconds, 4.0)


def test_neighbours_tell_more_than_the_family(history: NeedHistory) -> None:
    expectations = UnitExpectations(history, KNOWN)
    for number in range(RELATIVES):
        assert expectations.expect(described("far/x.cpp")).peak == FAMILIES["c++"].peak
        expectations.learn(described(f"far/away/{number}.cpp"), (100 + number) * MIB, 4.0)
    for number in range(RELATIVES, 8):
        expectations.learn(described(f"far/away/{number}.cpp"), (100 + number) * MIB, 4.0)
    assert expectations.expect(described("far/x.cpp")).peak == 106 * MIB, "three of four needed no more"
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


def test_what_is_learned_is_kept(history: NeedHistory) -> None:
    one = described("a.cu", "cuda", 2.0)
    UnitExpectations(history, ()).learn(one, 600 * MIB, 5.0, 0.25)
    assert history.find(one.key) == MeasuredNeed(600 * MIB, 5.0, 0.25)


def test_what_was_ended_is_given_more() -> None:
    one = Unit("a", 100, 1.0)
    assert expect_again(one, 200).peak == 300
    assert expect_again(one, 10).peak == 100


def test_only_what_holds_for_a_release_is_sent_along() -> None:
    known = (
        KnownUnit("a", 1, 1.0, "torch", SpecifierSet(">=2"), "seen"),
        KnownUnit("b", 2, None, "torchvision"),
        KnownUnit("c", 3),
    )
    assert relevant_units(known, "torch", "2.1.0a0") == (KnownUnit("a", 1, 1.0), KnownUnit("c", 3))
    assert [one.pattern for one in relevant_units(known, "torchvision", "0.14.1")] == ["b", "c"]


@pytest.mark.parametrize(
    ("source", "low", "high"),
    [
        ("torch/csrc/jit/python/init.cpp", 1950, 2200),
        ("build/aten/src/ATen/RegisterCPU.cpp", 1600, 1800),
        ("build/aten/src/ATen/native/cpu/BinaryOpsKernel.cpp.AVX2.cpp", 1000, 1100),
        ("aten/src/ATen/native/transformers/cuda/flash_attn/kernels/flash_bwd_sm80.cu", 4500, 5200),
        ("aten/src/ATen/native/Convolution.cpp", 500, 800),
    ],
)
def test_the_shipped_figures_know_the_heaviest(
    shipped: Facts, history: NeedHistory, source: str, low: int, high: int
) -> None:
    expectations = UnitExpectations(history, relevant_units(shipped.units, "torch", "2.0.0"))
    family = "cuda" if source.endswith(".cu") else "c++"
    assert low <= expectations.expect(described(source, family)).peak / MIB <= high
