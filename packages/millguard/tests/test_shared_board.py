"""Builds of one user share one budget: claims, their sums, and the policy beside other builds."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from guard_support.commands import IMPORTS, SOURCE, command_environment, millguard_words
from guard_support.guards import until
from millguard import shared_board
from millguard.policy import Admit, Pause, PolicyInput, Rerun, Unit, UnitTicket, decide
from millguard.shared_board import (
    NOBODY,
    PHYSICAL_MEMORY,
    STALE_SECONDS,
    BuildClaim,
    OtherBuilds,
    SharedBoard,
    sum_claims,
)

GIB = 2**30


def test_a_claim_is_seen_by_others_until_it_is_taken_back(tmp_path: Path) -> None:
    mine, other = SharedBoard(tmp_path / "b"), SharedBoard(tmp_path / "b")
    claim = BuildClaim(PHYSICAL_MEMORY, growth=GIB, busy=2.0, moving=1, oldest=5.0)
    with other.locked() as is_locked:
        assert is_locked
        other.write(claim)
    assert mine.read_others(PHYSICAL_MEMORY) == OtherBuilds(GIB, 2.0, 1, 5.0)
    assert other.read_others(PHYSICAL_MEMORY) == NOBODY
    other.close()
    assert mine.read_others(PHYSICAL_MEMORY) == NOBODY
    mine.close()
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["lock"]


def test_the_claim_of_a_killed_guard_is_removed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from millguard.shared_board import *\n"
        "board = SharedBoard(Path(sys.argv[1])); board.write(BuildClaim('physical memory', 7))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "b")],
        env={**os.environ, "PYTHONPATH": str(IMPORTS)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    mine = SharedBoard(tmp_path / "b")
    assert mine.read_others(PHYSICAL_MEMORY).growth == 7
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert mine.read_others(PHYSICAL_MEMORY) == NOBODY
    assert len(list((tmp_path / "b").glob("*.build"))) == 1
    mine.close()


def test_a_lock_that_is_never_given_back_does_not_stop_a_build(tmp_path: Path) -> None:
    mine, other = SharedBoard(tmp_path / "b"), SharedBoard(tmp_path / "b")
    with other.locked(), mine.locked() as is_locked:
        assert not is_locked
    mine.close()
    other.close()


def test_a_board_that_was_removed_has_no_claims(tmp_path: Path) -> None:
    board = SharedBoard(tmp_path / "b")
    shutil.rmtree(tmp_path / "b")
    assert board.read_others(PHYSICAL_MEMORY) == NOBODY
    board.close()


def test_a_claim_that_nobody_can_read_is_no_claim(tmp_path: Path) -> None:
    """Without the board's lock, another guard may take a new file for that of a dead one."""

    class UnlockedBoard(SharedBoard):
        @contextlib.contextmanager
        def locked(self) -> Iterator[bool]:
            yield False
            self._path.unlink()

    with pytest.raises(OSError, match="was removed at once"):
        UnlockedBoard(tmp_path / "b")


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b").chmod(mode)
    with pytest.raises(OSError, match="open to other users"):
        SharedBoard(tmp_path / "b")


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "b").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="is not a folder"):
        SharedBoard(tmp_path / "b")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"domain": 1}',
        b'{"domain": "a", "growth": -1}',
        b'{"domain": "physical memory", "growth": 1.5}',
        b'{"domain": "physical memory", "busy": 1e999}',
        b'{"domain": "physical memory", "moving": true}',
    ],
)
def test_what_is_no_claim_counts_as_none(tmp_path: Path, content: bytes) -> None:
    mine, other = SharedBoard(tmp_path / "b"), SharedBoard(tmp_path / "b")
    other_file = next(path for path in (tmp_path / "b").glob("*.build") if path.read_bytes() == b"")
    for path in (tmp_path / "b").glob("*.build"):
        path.write_bytes(content)
    assert mine.read_others(PHYSICAL_MEMORY) == NOBODY
    assert other_file.exists()
    mine.close()
    other.close()


def test_only_files_are_claims(tmp_path: Path) -> None:
    board = SharedBoard(tmp_path / "b")
    os.mkfifo(tmp_path / "b" / "fifo.build")  # to open it would wait for a writer
    (tmp_path / "b" / "folder.build").mkdir()
    (tmp_path / "b" / "link.build").symlink_to("/dev/zero")
    assert board.read_others(PHYSICAL_MEMORY) == NOBODY
    board.close()


def test_the_claim_of_a_guard_that_is_stopped_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = SharedBoard(tmp_path / "b"), SharedBoard(tmp_path / "b")
    claim = BuildClaim(PHYSICAL_MEMORY, growth=GIB)
    other.write(claim)
    assert mine.read_others(PHYSICAL_MEMORY).growth == GIB
    long_ago = time.monotonic() - 2 * STALE_SECONDS
    os.utime(other._path, (long_ago, long_ago))
    assert mine.read_others(PHYSICAL_MEMORY) == NOBODY
    monkeypatch.setattr(shared_board, "TOUCH_SECONDS", 0.0)
    other.write(claim)  # the same one
    assert mine.read_others(PHYSICAL_MEMORY).growth == GIB
    mine.close()
    other.close()


def test_only_builds_under_the_same_limit_take_from_it() -> None:
    claims = [BuildClaim("group/a", growth=1, wanted=2, busy=1.0), BuildClaim("group/b", growth=4)]
    assert sum_claims("group/a", claims).growth == 3
    assert sum_claims("group/b", claims).growth == 4
    assert sum_claims(PHYSICAL_MEMORY, claims).growth == 7
    assert sum_claims("group/c", claims) == OtherBuilds(0, 1.0, 0, 0.0)


def _ticket(number: int, *, used: int = 0, since: float = 0.0) -> UnitTicket:
    return UnitTicket(number, Unit(f"u{number}", GIB, 10.0), since, used=used)


def test_nothing_is_forced_to_start_while_another_build_runs() -> None:
    state = PolicyInput(now=1.0, headroom=GIB // 2, limit=4 * GIB, cores=2, waiting=(_ticket(1),))
    assert decide(state) == (Admit(1),)
    assert decide(replace(state, moving_elsewhere=1)) == ()


def test_a_unit_that_must_be_alone_is_so_in_its_own_build() -> None:
    alone = replace(_ticket(1), alone=True)
    state = PolicyInput(
        now=1.0,
        headroom=3 * GIB,
        limit=4 * GIB,
        cores=2,
        waiting=(alone, _ticket(2)),
        moving_elsewhere=1,
    )
    assert decide(state) in {(Admit(1),), (Admit(2),)}


def test_the_oldest_here_yields_to_an_older_one_elsewhere() -> None:
    state = PolicyInput(
        now=5.0,
        headroom=1,
        limit=4 * GIB,
        cores=2,
        running=(_ticket(1, used=2 * GIB),),
        falling=GIB,
    )
    assert decide(state) == ()
    yielded = decide(replace(state, older_elsewhere=True, moving_elsewhere=1))
    assert yielded in {(Rerun(1),), (Pause(1),)}


def test_a_command_waits_for_the_memory_that_another_build_claims(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(SOURCE)
    other = SharedBoard(tmp_path / "board")
    everything = BuildClaim(PHYSICAL_MEMORY, growth=2**50, busy=1.0, moving=1, oldest=0.001)
    other.write(everything)
    words = millguard_words("-q", "--", "c++", "-c", "a.cpp")
    process = subprocess.Popen(words, cwd=tmp_path, env=command_environment(tmp_path))
    until(lambda: other.read_others(PHYSICAL_MEMORY).growth > 0, "the claim of what waits")
    time.sleep(1.0)
    assert process.poll() is None
    assert not (tmp_path / "a.o").exists()
    other.close()
    assert process.wait(60) == 0
    assert (tmp_path / "a.o").exists()
