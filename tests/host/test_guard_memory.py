"""The memory of real process groups."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from torchmill.host import limits

MIB = 2**20
# Leads a group in which it has 40 MiB, and its child 80.
LEADER = """
import subprocess, sys
kept = b"x" * (40 * 2**20)
subprocess.run([sys.executable, "-c", "kept = b'x' * (80 * 2**20); print('.', flush=True); input()"])
"""


@contextlib.contextmanager
def group() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as leader:
        assert leader.stdout
        assert leader.stdout.readline()
        yield leader.pid
        leader.communicate(b"\n")


def test_all_processes_of_a_group_count() -> None:
    with group() as one, group() as other:
        has = limits.groups_memory([one, other])
        assert list(has) == [one, other]
        for number, resident in has.items():
            leader = psutil.Process(number)
            members = [leader, *leader.children()]
            assert resident == pytest.approx(sum(member.memory_info().rss for member in members), rel=0.01)
            assert resident > 120 * MIB


def test_a_group_that_ended_has_nothing() -> None:
    with subprocess.Popen(["true"], process_group=0) as ended:
        ended.wait()
    assert limits.groups_memory([ended.pid]) == {ended.pid: 0}


def test_nothing_is_asked_of_nobody() -> None:
    assert limits.groups_memory([]) == {}
