"""Each toolkit can be installed on each machine, or is refused before the first step."""

import pytest

from tools.ways_page import described_hosts, newest_cell, stop_reason, walk_cell
from torchmill.config.facts import Facts
from torchmill.plan.walk import Step, Stop, chosen_origin

Walked = tuple[str, str, tuple[Step, ...], tuple[Stop, ...]]


@pytest.fixture(scope="module")
def walks(shipped: Facts) -> list[Walked]:
    """Return toolkit, machine, steps and stops of every pair for which a release can be built."""
    walks = []
    for name, host in described_hosts().items():
        for toolkit in shipped.toolkits:
            cell = newest_cell(shipped, toolkit, host)
            if cell is not None:
                steps, stops = walk_cell(shipped, cell, host)
                walks.append((toolkit.version, name, steps, stops))
    return walks


def test_every_pair_has_a_way_or_a_reason(walks: list[Walked]) -> None:
    hosts = described_hosts()
    assert {name for _, name, _, _ in walks} == {*hosts}
    for version, name, steps, stops in walks:
        origins = [chosen_origin(step, {}) for step in steps if step.vital and step.origins]
        assert bool(stops) or None not in origins, (
            f"CUDA {version} on {name}: a step without an origin stops nothing"
        )
        assert not stops or stop_reason(stops, hosts[name]), f"CUDA {version} on {name}: no reason"
        assert steps[-1].purpose, f"CUDA {version} on {name}: the way has no end"


def test_a_missing_toolkit_is_a_step(walks: list[Walked]) -> None:
    hosts = described_hosts()
    for version, name, steps, stops in walks:
        brought = any(step.command == f"invoke toolkit --cuda {version}" for step in steps)
        assert brought or stops or version in hosts[name].toolkits.homes, (
            f"nothing installs CUDA {version} on {name}"
        )
