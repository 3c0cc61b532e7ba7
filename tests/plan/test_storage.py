"""How many bytes each part of a build takes on disk."""

from dataclasses import replace

import pytest

from tests.support.estimates import SMALL, plan_with_options
from tests.support.plans import GIB, plan_base
from torchmill.config.costs import CostRange, MeasuredRun
from torchmill.config.facts import Facts
from torchmill.plan.plan import Plan
from torchmill.plan.storage import storage_needs

GB = 10**9


def require_needs(shipped: Facts, plan: Plan, *runs: MeasuredRun) -> dict[str, CostRange]:
    needs = storage_needs(shipped, plan, runs)
    assert needs is not None
    assert set(needs) - {"cache"} == {"tree", "kit", "environment", "trial"}
    return dict(needs)


def test_the_real_build_lies_within(shipped: Facts) -> None:
    """Measured on 2026-11-21 for torch 1.13.1 and torchvision 0.14.1 without CUDA, Python 3.10."""
    needs = require_needs(shipped, plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1"))
    assert needs["tree"].low <= 3.1 * GIB <= needs["tree"].high
    assert needs["cache"].low <= 0.14 * GB <= needs["cache"].high
    installed = needs["kit"] + needs["environment"]
    assert installed.low <= 1.3 * GIB <= installed.high
    vision = require_needs(shipped, plan_with_options(shipped, "vision-3.10-cpu", "v1.13.1"))
    assert vision["environment"].low <= 0.6 * GB <= vision["environment"].high
    assert vision["trial"].high < 3 * GB


def test_an_environment_with_a_torch_from_pypi_has_nvidias_libraries(shipped: Facts) -> None:
    """6.3 GiB were measured for torch-scatter against torch 2.11.0, and as many for its trial."""
    plan = plan_with_options(shipped, "scatter-3.11-cu130", "v2.11.0", SMALL, "--torch=PyPI")
    needs = require_needs(shipped, plan)
    for part in ("environment", "trial"):
        assert needs[part].low <= 6.3 * GIB <= needs[part].high, part
    plan = plan_with_options(shipped, "scatter-3.11-cpu", "v2.11.0", SMALL, "--torch=PyPI")
    needs = require_needs(shipped, plan)
    assert needs["environment"].high > 6.3 * GIB, "PyPI's torch for x86_64 is the one with CUDA"


def test_builds_of_this_machine_narrow_the_range(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    before = require_needs(shipped, plan)
    run = MeasuredRun(
        "torch", "1.13.1", "", "this machine", "compile", "test", tree=3 * GB, environment=GB
    )
    after = require_needs(shipped, plan, run)
    assert after["tree"].low == pytest.approx(2.85 * GB)
    assert after["tree"].high == pytest.approx(3.3 * GB)
    assert after["environment"].high == pytest.approx(1.1 * GB)
    assert after["kit"] == before["kit"], "a run does not tell the kit apart"
    for other in (
        replace(run, release="1.12.1"),
        replace(run, capabilities="8.0"),
        replace(run, tree=None),
    ):
        assert require_needs(shipped, plan, other)["tree"] == before["tree"]


def test_a_package_without_recorded_builds_has_none(small_facts: Facts) -> None:
    assert storage_needs(small_facts, plan_base(small_facts)) is None
