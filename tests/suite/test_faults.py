"""The short form of the attacks in tests/faults/."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults import archives, connections, disks, flaky, kills, losses
from tests.faults.proxy import WAYS
from tests.faults.tally import Tally

ROOT = Path(__file__).parents[2]
SEED = 20261124


def survived(tally: Tally, at_least: int) -> None:
    assert tally.outcomes.total() >= at_least
    assert tally.failures == []


def test_the_attacks_can_be_run_without_pytest() -> None:
    argv = [sys.executable, "-m", "tests.faults", "archives", "--scale=0.01"]
    attack = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
    assert attack.returncode == 0, attack.stderr
    assert "damaged zip" in attack.stdout


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


@pytest.mark.parametrize("kind", ["pypi", "toolkit", "index", "github"])
def test_a_server_that_fails_one_request_in_five_fails_no_command(kind: str) -> None:
    tally = flaky.attack_kind(kind, 3, SEED)
    survived(tally, 3)
    assert tally.outcomes["right"] == 3


@pytest.mark.long
@pytest.mark.parametrize("kind", flaky.KINDS)
def test_a_flaky_network_fails_no_command(kind: str) -> None:
    tally = flaky.attack_kind(kind, 10, SEED)
    survived(tally, 10)
    assert tally.outcomes["right"] == 10


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_with_the_same_command() -> None:
    survived(kills.attack_by_kills(6, SEED), 6)


@pytest.mark.long
def test_a_file_that_is_gone_or_spoiled_is_made_again_by_the_same_command() -> None:
    survived(losses.attack_by_losses(len(losses.KEPT), SEED), len(losses.KEPT))


@pytest.mark.long
def test_a_disk_that_is_too_small_is_called_that_and_loses_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "none", folder], check=False, capture_output=True
        )
        if mount.returncode:
            pytest.skip("making a small disk needs the right to mount")
        subprocess.run(["umount", folder], check=True)
    survived(disks.attack_by_disks(1, SEED), 1)
