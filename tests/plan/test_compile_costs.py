"""Which recorded costs of compiles hold for a release."""

from pathlib import Path

import pytest
from millguard.costs import KnownCost
from millguard.expectations import NeedHistory, UnitExpectations
from millguard.known_costs import load_known_costs
from millguard.units import UnitDescription
from packaging.specifiers import SpecifierSet

from torchmill.config.costs import KnownUnit
from torchmill.config.facts import Facts
from torchmill.plan.compile_costs import release_costs

MIB = 2**20


def test_costs_of_other_packages_and_releases_are_left_out() -> None:
    units = (
        KnownUnit("a", 1, 1.0, "torch", SpecifierSet(">=2"), "seen"),
        KnownUnit("b", 2, None, "torchvision"),
        KnownUnit("c", 3),
    )
    costs = release_costs(units, "torch", "2.1.0a0")
    assert costs == (KnownCost("a", 1, 1.0), KnownCost("c", 3), *load_known_costs())
    costs = release_costs(units, "torchvision", "0.14.1")
    assert costs == (KnownCost("b", 2), KnownCost("c", 3), *load_known_costs())


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
def test_the_shipped_figures_name_the_heaviest_units(
    shipped: Facts, tmp_path: Path, source: str, low: int, high: int
) -> None:
    costs = release_costs(shipped.costs.known_units, "torch", "2.0.0")
    expectations = UnitExpectations(NeedHistory(tmp_path / "units.sqlite"), costs)
    family = "cuda" if source.endswith(".cu") else "c++"
    unit = UnitDescription(source, family, 1.0, source)
    assert low <= expectations.expect(unit).peak / MIB <= high
