"""What a build writes: against what the real one took, and by this machine's own builds."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.test_estimate import SMALL, planned
from torchmill.config import cell_lookup, matrix
from torchmill.config.cost_model import CostRange, MeasuredRun
from torchmill.config.model import Facts, Options, Plan
from torchmill.plan import build_plan, estimate

GB = 10**9


def needs(facts: Facts, made: Plan, *runs: MeasuredRun) -> dict[str, CostRange]:
    found = estimate.storage_needs(facts, made, runs)
    assert found is not None
    assert set(found) == set(estimate.STORAGE_PARTS)
    return dict(found)


def test_the_real_build_lies_within(shipped: Facts) -> None:
    """Measured on 2026-11-21 for torch 1.13.1 and torchvision 0.14.1 without CUDA, with Python 3.10."""
    made = needs(shipped, planned(shipped, "wheel-3.10-cpu", "v1.13.1"))
    took = {"tree": 3.1 * 2**30, "cache": 0.14 * GB}
    for part, size in took.items():
        assert made[part].low <= size <= made[part].high, part
    installed = CostRange(
        *(made["kit"].low + made["environment"].low, made["kit"].high + made["environment"].high)
    )
    assert installed.low <= 1.3 * 2**30 <= installed.high
    vision = needs(shipped, planned(shipped, "vision-3.10-cpu", "v1.13.1"))
    assert vision["environment"].low <= 0.6 * GB <= vision["environment"].high


def test_what_this_machine_has_built_says_it_better(shipped: Facts) -> None:
    made = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    before = needs(shipped, made)
    run = MeasuredRun("torch", "1.13.1", "", "this machine", "compile", "test", tree=3 * GB, environment=GB)
    after = needs(shipped, made, run)
    assert after["tree"].low == pytest.approx(2.85 * GB)
    assert after["tree"].high == pytest.approx(3.3 * GB)
    assert after["environment"].high == pytest.approx(1.1 * GB)
    assert after["kit"] == before["kit"], "what requirements take is known"
    for other in (replace(run, release="1.12.1"), replace(run, capabilities="8.0"), replace(run, tree=None)):
        assert needs(shipped, made, other)["tree"] == before["tree"]


def test_a_manifest_says_what_was_written(shipped: Facts, tmp_path: Path) -> None:
    said = (
        '{"package": "torch", "tag": "v1.13.1", "jobs": 2, "cpu_seconds": 9, "seconds": {}, "size": 5, '
        '"switches": {}%s}'
    )
    (tmp_path / "old.whl.json").write_text(said % "")
    (tmp_path / "ours.whl.json").write_text(said % ', "disk": {"tree": 70, "outputs": 20, "environment": 10}')
    (tmp_path / "strange.whl.json").write_text(said % ', "disk": {"tree": "much"}')
    found = [(run.source, run.tree, run.environment) for run in estimate.read_own_runs(shipped, tmp_path)]
    assert found == [("old.whl", None, None), ("ours.whl", 90, 10)]


def test_a_package_without_recorded_builds_has_none(known: Facts) -> None:
    cell = cell_lookup.find_cell(
        known, "wheel-3.10-cpu", "x86_64", matrix.find_release(known, "base", "v1.0.0")
    )
    assert estimate.storage_needs(known, build_plan.compute_plan(known, cell, SMALL, Options())) is None
