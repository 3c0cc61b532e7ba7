"""The short form of the attacks in benchmarks/faults/."""

import pytest
from faults import archives
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
