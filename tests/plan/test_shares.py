"""How long builds take in shares, and which number of machines is advised."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.estimates import (
    LARGE,
    plan_with_options,
    require_assumptions,
    require_estimate,
)
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.plan import shares
from torchmill.plan.shares import SharedBuild

COUNTS = (1, 2, 4, 8, 16, 32, 64)


def forecast(
    shipped: Facts, identifier: str, tag: str, counts: Sequence[int] = COUNTS
) -> list[SharedBuild]:
    """Return a build with four jobs on each number of machines."""
    plan = plan_with_options(shipped, identifier, tag, LARGE, "--jobs=4")
    assumed = require_assumptions(shipped)
    cost = require_estimate(shipped, plan)
    longest = shares.longest_compile(shipped, plan.release)
    return list(shares.forecast_shares(assumed, cost, plan.jobs, longest, counts))


def test_one_machine_takes_the_time_of_the_whole_build(shipped: Facts) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    whole = require_estimate(shipped, plan)
    (single,) = shares.forecast_shares(require_assumptions(shipped), whole, 2, 61, [1])
    assert single.wall == whole.wall.likely
    assert single.machine_seconds == whole.wall.likely


@pytest.mark.parametrize(
    ("identifier", "tag"), [("wheel-3.10-cpu", "v1.13.1"), ("wheel-3.10-cu126", "v2.6.0")]
)
def test_more_machines_are_sooner_and_cost_more(shipped: Facts, identifier: str, tag: str) -> None:
    builds = forecast(shipped, identifier, tag)
    assert [build.machines for build in builds] == list(COUNTS)
    walls = [build.wall for build in builds]
    assert walls == sorted(walls, reverse=True)
    machine_seconds = [build.machine_seconds for build in builds]
    assert machine_seconds == sorted(machine_seconds)


def test_no_share_is_shorter_than_the_longest_compile_and_its_preparation(
    shipped: Facts,
) -> None:
    plan = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1")
    assumed = replace(require_assumptions(shipped), share_seconds=CostRange(100, 100))
    cost = require_estimate(shipped, plan)
    (build,) = shares.forecast_shares(assumed, cost, 2, 61, [1000])
    assert build.share == 161


def test_the_longest_compile_is_one_of_the_package_and_release(shipped: Facts) -> None:
    release = plan_with_options(shipped, "wheel-3.10-cpu", "v1.13.1").release
    assert shares.longest_compile(shipped, release) == 118
    assert shares.longest_compile(shipped, replace(release, package="unknown")) == 0
    flash_attn = plan_with_options(shipped, "flash-3.12-cu126", "v2.9.1").release
    assert shares.longest_compile(shipped, flash_attn) == 400


def test_one_machine_is_advised_for_a_short_build_and_several_for_a_long_one(
    shipped: Facts,
) -> None:
    short = shares.advised_machines(forecast(shipped, "wheel-3.10-cpu", "v1.13.1"))
    assert short.machines == 1
    long = shares.advised_machines(forecast(shipped, "wheel-3.10-cu126", "v2.6.0"))
    assert 4 <= long.machines <= 16


def test_the_quickest_of_those_that_are_worth_their_machines_is_advised() -> None:
    single = SharedBuild(1, 40000, 0)
    double = SharedBuild(2, 21000, 1000)
    quadruple = SharedBuild(4, 12000, 1000)
    assert shares.advised_machines([single, double, quadruple]) is quadruple
    expensive = replace(quadruple, share=12500)
    assert shares.advised_machines([single, double, expensive]) is double
