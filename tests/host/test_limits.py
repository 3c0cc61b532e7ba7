"""Limits on memory and processors: made-up kernel trees, and real ones where this machine lets us."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.kernel_tree import GIB, MIB, V2, in_v2
from torchmill.host import limits
from torchmill.host.limits import CoreBound, CpuQuota, LimitMeter, LimitReading, MemoryBound


def test_the_tightest_reading_wins_and_is_named() -> None:
    readings = [
        LimitReading("roomy", 8 * GIB),
        LimitReading("tight", 6 * GIB, used=5 * GIB, reclaimable=2 * GIB),
    ]
    assert limits.tightest_memory(readings) == MemoryBound(3 * GIB, "tight")


@pytest.mark.parametrize(("cores", "count"), [(0.2, 1), (1.0, 1), (1.5, 2), (8.0, 8)])
def test_a_begun_processor_counts(cores: float, count: int) -> None:
    assert limits.tightest_quota([CpuQuota("all", 64), CpuQuota("quota", cores)]) == CoreBound(count, "quota")


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_limit_that_changes_is_seen_at_once(tmp_path: Path) -> None:
    root = in_v2(
        tmp_path, "/a", {"a/memory.max": 2 * MIB, "a/memory.current": 0, "a/cpu.max": "50000 100000"}
    )
    meter = LimitMeter(root, {}, Clock())
    assert (meter.memory().bytes, meter.cores().count) == (2 * MIB, 1)
    (root / V2 / "a/memory.current").write_text(str(MIB))
    assert meter.memory() == MemoryBound(MIB, str(root / V2 / "a/memory.max"))
    (root / V2 / "a/memory.max").write_text("max")
    (root / V2 / "a/cpu.max").write_text("max 100000")
    assert meter.memory().source == "physical memory"
    assert "cpu.max" not in meter.cores().source


def test_a_group_that_vanishes_is_found_anew(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/a", {"a/memory.max": 2 * MIB, "b/memory.max": MIB})
    meter = LimitMeter(root, {}, Clock())
    assert meter.memory().bytes == 2 * MIB
    (root / V2 / "a/memory.max").unlink()
    (root / "proc/self/cgroup").write_text("0::/b")
    assert meter.memory() == MemoryBound(MIB, str(root / V2 / "b/memory.max"))
    (root / V2 / "b/memory.max").unlink()
    assert meter.memory().source == "physical memory"


def test_a_process_that_is_moved_is_followed_in_a_while(tmp_path: Path) -> None:
    root, clock = in_v2(tmp_path, "/a", {"a/memory.max": 2 * MIB, "b/memory.max": MIB}), Clock()
    meter = LimitMeter(root, {}, clock)
    assert meter.memory().bytes == 2 * MIB
    (root / "proc/self/cgroup").write_text("0::/b")
    clock.now += limits.KEPT_SECONDS / 2
    assert meter.memory().bytes == 2 * MIB
    clock.now += limits.KEPT_SECONDS
    assert meter.memory().bytes == MIB


def test_a_limit_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/a", {"a/memory.max": 2 * MIB, "memory.max/of": "a folder"})
    assert LimitMeter(root, {}).memory().bytes == 2 * MIB


def test_slurm_grants_are_limits(tmp_path: Path) -> None:
    granted = {"SLURM_MEM_PER_NODE": "64", "SLURM_CPUS_ON_NODE": "1"}
    assert limits.measure_memory(tmp_path, granted) == MemoryBound(64 * MIB, "SLURM_MEM_PER_NODE")
    assert limits.measure_cores(tmp_path, granted).count == 1
    per_cpu = {"SLURM_MEM_PER_CPU": "32", "SLURM_CPUS_ON_NODE": "2"}
    assert limits.measure_memory(tmp_path, per_cpu) == MemoryBound(64 * MIB, "SLURM_MEM_PER_CPU")
    per_gpu = {"SLURM_MEM_PER_GPU": "32", "SLURM_GPUS_ON_NODE": "3"}
    assert limits.measure_memory(tmp_path, per_gpu) == MemoryBound(96 * MIB, "SLURM_MEM_PER_GPU")


def test_grants_that_nobody_measures_are_used_up_by_the_children(tmp_path: Path) -> None:
    meter = LimitMeter(tmp_path, {"SLURM_MEM_PER_NODE": "64"})
    assert meter.memory(used=24 * MIB) == MemoryBound(40 * MIB, "SLURM_MEM_PER_NODE")
    assert meter.memory(used=99 * MIB).bytes == 0


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_MEM_PER_NODE": "0"},
        {"SLURM_MEM_PER_NODE": "8G"},
        {"SLURM_MEM_PER_NODE": "-1", "SLURM_CPUS_ON_NODE": "²"},
        {"SLURM_MEM_PER_CPU": "32"},
        {"SLURM_MEM_PER_GPU": "32", "SLURM_GPUS_ON_NODE": ""},
    ],
)
def test_what_is_no_grant_is_no_limit(tmp_path: Path, environ: dict[str, str]) -> None:
    assert [one.source for one in LimitMeter(tmp_path, environ).readings()] == ["physical memory"]
    assert len(LimitMeter(tmp_path, environ).quotas()) == 1  # this machine itself


def test_this_machine_has_something_to_give() -> None:
    assert 0 < limits.measure_memory().bytes <= psutil.virtual_memory().total
    assert 1 <= limits.measure_cores().count <= (os.cpu_count() or 1)


MEASURE = (
    "from torchmill.host import limits; seen = limits.measure_memory(environ={});"
    "print(seen.bytes, seen.source)"
)
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="ulimit is not known there")
def test_ulimit_bounds_one_process_and_not_all_together() -> None:
    code = (
        "from torchmill.host.limits import *;"
        "print(process_memory_limits(), measure_memory(environ={}).source)"
    )
    command = f"ulimit -v 4194304; exec {sys.executable} -c '{code}'"
    said = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert str(LimitReading("ulimit -v", 4 * GIB)) in said
    assert not said.endswith("ulimit -v\n")


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_affinity_is_seen() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from torchmill.host import limits; print(limits.measure_cores(environ={}).count)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout == "1\n"


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a real memory group (version 1) below our own, or skip."""
    folder = Path("/sys/fs/cgroup/memory") / f"torchmill-test-{os.getpid()}"
    if not (folder.parent / "memory.limit_in_bytes").exists():
        pytest.skip("there is no version 1 memory controller here")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"memory groups cannot be made here: {error.strerror}")
    try:
        yield folder
    finally:
        folder.rmdir()


def test_a_real_v1_group_is_seen_from_inside(group: Path) -> None:
    (group / "memory.limit_in_bytes").write_text(str(GIB // 2))
    inner = group / "inner"
    inner.mkdir()  # without a limit of its own: the ancestor's counts
    try:
        command = f"echo $$ > {inner}/cgroup.procs; exec {sys.executable} -c '{MEASURE}'"
        said = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    finally:
        inner.rmdir()
    count, _, source = said.stdout.strip().partition(" ")
    assert GIB // 4 < int(count) <= GIB // 2
    assert str(group) in source
