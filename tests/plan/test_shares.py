"""How long builds take in shares, and which number of machines is advised."""

from dataclasses import replace

import pytest

from tests.plan.test_estimate import LARGE, SMALL, assumed, estimated, planned
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.plan import shares
from torchmill.plan.shares import SharedBuild

COUNTS = (1, 2, 4, 8, 16, 32, 64)


def forecast(
    facts: Facts, name: str, tag: str, jobs: int, counts: tuple[int, ...] = COUNTS
) -> list[SharedBuild]:
    plan = planned(facts, name, tag, LARGE, f"--jobs={jobs}")
    longest = shares.longest_compile(facts, plan.release)
    return list(
        shares.forecast_shares(assumed(facts), estimated(facts, plan), plan.jobs, longest, counts)
    )


def test_one_machine_takes_what_the_build_takes(shipped: Facts) -> None:
    whole = estimated(shipped, planned(shipped, "wheel-3.10-cpu", "v1.13.1", SMALL))
    (one,) = shares.forecast_shares(assumed(shipped), whole, 2, 61, [1])
    assert (one.wall, one.machine_seconds) == (whole.wall.likely, whole.wall.likely)


@pytest.mark.parametrize(
    ("name", "tag"), [("wheel-3.10-cpu", "v1.13.1"), ("wheel-3.10-cu126", "v2.6.0")]
)
def test_more_machines_are_sooner_and_cost_more(shipped: Facts, name: str, tag: str) -> None:
    builds = forecast(shipped, name, tag, 4)
    assert [one.machines for one in builds] == list(COUNTS)
    assert [one.wall for one in builds] == sorted((one.wall for one in builds), reverse=True)
    assert [one.machine_seconds for one in builds] == sorted(one.machine_seconds for one in builds)


def test_no_share_is_shorter_than_the_longest_compile_and_what_comes_before_it(
    shipped: Facts,
) -> None:
    plan = planned(shipped, "wheel-3.10-cpu", "v1.13.1")
    terms = replace(assumed(shipped), share_seconds=CostRange(100, 100))
    (many,) = shares.forecast_shares(terms, estimated(shipped, plan), 2, 61, [1000])
    assert many.share == 161


def test_the_longest_compile_is_one_of_the_package_and_release(shipped: Facts) -> None:
    torch = planned(shipped, "wheel-3.10-cpu", "v1.13.1").release
    assert shares.longest_compile(shipped, torch) == 118
    assert shares.longest_compile(shipped, replace(torch, package="unknown")) == 0


def test_one_machine_is_advised_for_a_short_build_and_several_for_a_long_one(
    shipped: Facts,
) -> None:
    assert shares.advised_machines(forecast(shipped, "wheel-3.10-cpu", "v1.13.1", 4)).machines == 1
    advised = shares.advised_machines(forecast(shipped, "wheel-3.10-cu126", "v2.6.0", 4))
    assert 4 <= advised.machines <= 16


def test_the_quickest_is_advised_of_those_that_are_worth_their_machines() -> None:
    whole, two, four = (
        SharedBuild(1, 40000, 0),
        SharedBuild(2, 21000, 1000),
        SharedBuild(4, 12000, 1000),
    )
    assert shares.advised_machines([whole, two, four]) is four
    assert shares.advised_machines([whole, two, replace(four, share=12500)]) is two
