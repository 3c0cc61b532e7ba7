"""Each toolkit can be installed on each machine, or is refused before the first step."""

from pathlib import Path

import pytest

from tools.facts import WAYS
from tools.ways_page import Walked, described_hosts, stop_reason, walk_every_pair, ways_page
from torchmill.config.facts import Facts
from torchmill.plan.walk import Step, Stop, chosen_origin

ROOT = Path(__file__).parents[2]
Walk = tuple[str, str, tuple[Step, ...], tuple[Stop, ...]]


@pytest.fixture(scope="module")
def pairs(shipped: Facts) -> dict[tuple[str, str], Walked]:
    """Return the walks of every pair for which a release can be built, which take a while."""
    return walk_every_pair(shipped)


@pytest.fixture(scope="module")
def walks(pairs: dict[tuple[str, str], Walked]) -> list[Walk]:
    """Return toolkit, machine, steps and stops of every pair."""
    return [(version, name, steps, stops) for (version, name), (steps, stops) in pairs.items()]


def test_the_page_is_up_to_date(shipped: Facts, pairs: dict[tuple[str, str], Walked]) -> None:
    written = (ROOT / "docs" / "reference" / WAYS).read_text("utf-8")
    assert written == ways_page(shipped, pairs), "stale: run `invoke facts --table`"


def test_every_pair_has_a_way_or_a_reason(walks: list[Walk]) -> None:
    hosts = described_hosts()
    assert {name for _, name, _, _ in walks} == {*hosts}
    for version, name, steps, stops in walks:
        origins = [chosen_origin(step, {}) for step in steps if step.is_vital and step.origins]
        assert bool(stops) or None not in origins, (
            f"CUDA {version} on {name}: a step without an origin stops nothing"
        )
        assert not stops or stop_reason(stops, hosts[name]), f"CUDA {version} on {name}: no reason"
        assert steps[-1].purpose, f"CUDA {version} on {name}: the way has no end"


def test_a_missing_toolkit_is_a_step(walks: list[Walk]) -> None:
    hosts = described_hosts()
    for version, name, steps, stops in walks:
        brought = any(step.command == f"invoke toolkit --cuda {version}" for step in steps)
        assert brought or stops or version in hosts[name].toolkits.homes, (
            f"nothing installs CUDA {version} on {name}"
        )
