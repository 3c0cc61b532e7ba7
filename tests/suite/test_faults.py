"""The short form of the attacks in benchmarks/faults/."""

import subprocess
import tempfile

import pytest
from faults import archives, connections, disks, kills, losses
from faults.proxy import WAYS
from faults.tally import Tally

SEED = 20261124


def survived(tally: Tally, at_least: int) -> None:
    assert tally.outcomes.total() >= at_least
    assert tally.failures == []


@pytest.mark.parametrize("kind", archives.KINDS)
def test_damaged_archives_are_refused_or_harmless(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "KINDS", (kind,))
    (tally,) = archives.attack_archives(150, SEED)
    survived(tally, 200)
    assert tally.outcomes["refused"] > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", connections.KINDS)
def test_a_connection_that_breaks_loses_nothing_and_the_same_command_goes_on(kind: str) -> None:
    survived(connections.attack_connections(kind, len(WAYS), SEED), len(WAYS))


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_with_the_same_command() -> None:
    survived(kills.attack_by_kills(6, SEED), 6)


@pytest.mark.long
def test_a_file_that_is_gone_or_spoiled_is_made_again_by_the_same_command() -> None:
    survived(losses.attack_by_losses(len(losses.KEPT), SEED), len(losses.KEPT))


@pytest.mark.long
def test_a_disk_that_is_too_small_is_called_that_and_loses_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            ["mount", "-t", "tmpfs", "none", folder], check=False, capture_output=True
        )
        if tried.returncode:
            pytest.skip("only who may mount can make a small disk")
        subprocess.run(["umount", folder], check=True)
    survived(disks.attack_by_disks(1, SEED), 1)
