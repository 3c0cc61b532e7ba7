"""The short form of the attacks in benchmarks/faults/."""

import pytest
from faults import archives, connections
from faults.proxy import WAYS
from faults.tally import Tally

SEED = 20261124


def survived(tally: Tally, at_least: int) -> None:
    assert tally.outcomes.total() >= at_least
    assert tally.failures == []


@pytest.mark.parametrize("kind", archives.KINDS)
def test_damaged_archives_are_refused_or_harmless(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "KINDS", (kind,))
    (tally,) = archives.attack_archives(150, SEED)
    survived(tally, 200)
    assert tally.outcomes["refused"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", connections.KINDS)
def test_a_connection_that_breaks_loses_nothing_and_the_same_command_goes_on(kind: str) -> None:
    survived(connections.attack_connections(kind, len(WAYS), SEED), len(WAYS))
