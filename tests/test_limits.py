"""Limits on memory and processors: made-up kernel trees, and real ones where this machine lets us."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from torchwright.guard import cgroups, limits
from torchwright.guard.cgroups import Quota, Reading
from torchwright.guard.limits import Cores, Limit

GIB = 2**30
V1_MOUNT = "35 31 0:32 {base} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
V1_CPU_MOUNT = "36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V2_MOUNT = "31 23 0:28 {base} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
OTHER_MOUNT = "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def tree(root: Path, files: dict[str, str | int]) -> Path:
    """Write kernel files below `root`."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


def available(root: Path) -> list[int]:
    return sorted(reading.available for reading in cgroups.memory_readings(root))


def test_the_tightest_reading_wins_and_is_named() -> None:
    readings = [Reading("roomy", 8 * GIB), Reading("tight", 6 * GIB, used=5 * GIB, reclaimable=2 * GIB)]
    assert limits.memory_limit(readings) == Limit(3 * GIB, "tight")


def test_usage_beyond_a_limit_leaves_nothing() -> None:
    assert Reading("full", limit=GIB, used=2 * GIB).available == 0


def test_more_reclaimable_than_used_does_not_raise_the_limit() -> None:
    assert Reading("odd", limit=GIB, used=1, reclaimable=2).available == GIB


@pytest.mark.parametrize(("cores", "count"), [(0.2, 1), (1.0, 1), (1.5, 2), (8.0, 8)])
def test_a_begun_processor_counts(cores: float, count: int) -> None:
    assert limits.core_limit([Quota("all", 64), Quota("quota", cores)]) == Cores(count, "quota")


def test_v2_walks_every_ancestor_up_to_the_mount(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/build",
            "proc/self/mountinfo": OTHER_MOUNT + V2_MOUNT.format(base="/"),
            f"{group}/user/build/memory.max": 8 * GIB,
            f"{group}/user/build/memory.high": "max",
            f"{group}/user/build/memory.current": 1 * GIB,
            # siblings use the parent's memory; only its cache comes back
            f"{group}/user/memory.max": 9 * GIB,
            f"{group}/user/memory.high": 7 * GIB,
            f"{group}/user/memory.current": 5 * GIB,
            f"{group}/user/memory.stat": f"anon {4 * GIB}\ninactive_file {1 * GIB}\nactive_file 77",
        },
    )
    assert available(root) == [3 * GIB, 5 * GIB, 7 * GIB]
    tightest = limits.memory_limit(cgroups.memory_readings(root))
    assert tightest.source == str(root / group / "user/memory.high")


def test_v2_in_a_container_with_its_own_view_reads_the_mount_itself(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": V2_MOUNT.format(base="/"),
            "sys/fs/cgroup/memory.max": 2 * GIB,
            "sys/fs/cgroup/memory.current": 0,
        },
    )
    assert available(root) == [2 * GIB]


def test_v1_subtracts_the_hierarchys_cache_and_ignores_no_limit(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/batch/job\n1:cpu:/\n0::/",
            "proc/self/mountinfo": V1_MOUNT.format(base="/"),
            f"{group}/memory.limit_in_bytes": 9223372036854771712,
            f"{group}/memory.usage_in_bytes": 20 * GIB,
            f"{group}/batch/memory.limit_in_bytes": 4 * GIB,
            f"{group}/batch/memory.usage_in_bytes": 3 * GIB,
            f"{group}/batch/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}",
            f"{group}/batch/job/memory.limit_in_bytes": 9223372036854771712,
        },
    )
    assert available(root) == [2 * GIB]


def test_v1_in_a_container_whose_path_is_the_mounts_base(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc",
            "proc/self/mountinfo": V1_MOUNT.format(base="/docker/abc"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": GIB,
        },
    )
    assert available(root) == [GIB]


def test_v1_sees_the_limit_of_an_ancestor_that_is_not_mounted(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/pod/abc",
            "proc/self/mountinfo": V1_MOUNT.format(base="/pod/abc"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
            "sys/fs/cgroup/memory/memory.stat": f"hierarchical_memory_limit {3 * GIB}",
        },
    )
    assert available(root) == [2 * GIB]


def test_a_mount_point_with_a_blank_is_found(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": "31 23 0:28 / /my\\040groups rw - cgroup2 cgroup2 rw",
            "my groups/memory.max": GIB,
        },
    )
    assert available(root) == [GIB]


def test_a_system_without_control_groups_sets_no_limit(tmp_path: Path) -> None:
    assert cgroups.memory_readings(tmp_path) == []
    assert cgroups.quotas(tmp_path) == []


def test_v2_quotas(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b",
            "proc/self/mountinfo": V2_MOUNT.format(base="/"),
            "sys/fs/cgroup/a/cpu.max": "250000 100000",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        },
    )
    assert cgroups.quotas(root) == [Quota(str(root / "sys/fs/cgroup/a/cpu.max"), 2.5)]


def test_v1_quotas(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/job",
            "proc/self/mountinfo": V1_CPU_MOUNT,
            f"{folder}/cpu.cfs_quota_us": -1,
            f"{folder}/cpu.cfs_period_us": 100000,
            f"{folder}/job/cpu.cfs_quota_us": 50000,
            f"{folder}/job/cpu.cfs_period_us": 100000,
        },
    )
    assert [quota.cores for quota in cgroups.quotas(root)] == [0.5]


def test_slurm_grants_are_limits(tmp_path: Path) -> None:
    granted = {"SLURM_MEM_PER_NODE": "64", "SLURM_CPUS_ON_NODE": "1"}
    assert limits.memory(tmp_path, granted) == Limit(64 * 2**20, "SLURM_MEM_PER_NODE")
    assert limits.cores(tmp_path, granted).count == 1
    per_cpu = {"SLURM_MEM_PER_CPU": "32", "SLURM_CPUS_ON_NODE": "2"}
    assert limits.memory(tmp_path, per_cpu) == Limit(64 * 2**20, "SLURM_MEM_PER_CPU")


def test_all_of_a_node_is_no_limit(tmp_path: Path) -> None:
    everything = {"SLURM_MEM_PER_NODE": "0"}
    assert limits.memory(tmp_path, everything).source != "SLURM_MEM_PER_NODE"


def test_this_machine_has_something_to_give() -> None:
    assert 0 < limits.memory().bytes <= psutil.virtual_memory().total
    assert 1 <= limits.cores().count <= (os.cpu_count() or 1)


MEASURE = (
    "from torchwright.guard.limits import memory; seen = memory(environ={}); print(seen.bytes, seen.source)"
)
ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(sys.platform == "win32", reason="ulimit is not known there")
def test_ulimit_is_seen() -> None:
    command = f"ulimit -v 1048576; exec {sys.executable} -c '{MEASURE}'"
    said = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said == f"{GIB} ulimit -v\n"


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_affinity_is_seen() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from torchwright.guard import limits; print(limits.cores(environ={}).count)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout == "1\n"


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a real memory group (version 1) below our own, or skip."""
    folder = Path("/sys/fs/cgroup/memory") / f"torchwright-test-{os.getpid()}"
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
