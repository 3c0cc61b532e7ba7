"""Limits on memory and processors: control groups, Slurm, the memory of process groups."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import millguard
import psutil
import pytest
from guard_support.kernel_tree import (
    GIB,
    MIB,
    NO_LIMIT_V1,
    V1,
    V1_CPU_MOUNT,
    V1_MOUNT,
    V2,
    V2_MOUNT,
    in_v1,
    in_v2,
    tree,
)
from millguard import limits
from millguard.limits import CpuQuota, LimitMeter, LimitReading


def test_the_tightest_reading_wins_and_is_named() -> None:
    readings = [
        LimitReading("roomy", 8 * GIB),
        LimitReading("tight", 6 * GIB, used=5 * GIB, reclaimable=2 * GIB),
    ]
    tightest = min(readings, key=limits.tightness)
    assert bound(tightest) == (3 * GIB, "tight")


@pytest.mark.parametrize(("cores", "count"), [(0.2, 1), (1.0, 1), (1.5, 2), (8.0, 8)])
def test_a_begun_processor_counts(cores: float, count: int) -> None:
    tightest = min([CpuQuota("all", 64), CpuQuota("quota", cores)], key=limits.tightness)
    assert (tightest.count, tightest.source) == (count, "quota")


def bound(reading: LimitReading) -> tuple[int, str]:
    return reading.available, reading.source


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_limit_that_changes_is_seen_at_once(tmp_path: Path) -> None:
    root = in_v2(
        tmp_path,
        "/a",
        {"a/memory.max": 2 * MIB, "a/memory.current": 0, "a/cpu.max": "50000 100000"},
    )
    meter = LimitMeter(root, {}, Clock())
    assert (meter.memory().available, meter.cores().count) == (2 * MIB, 1)
    (root / V2 / "a/memory.current").write_text(str(MIB))
    assert bound(meter.memory()) == (MIB, str(root / V2 / "a/memory.max"))
    (root / V2 / "a/memory.max").write_text("max")
    (root / V2 / "a/cpu.max").write_text("max 100000")
    assert meter.memory().source == "physical memory"
    assert "cpu.max" not in meter.cores().source


def test_a_group_that_gets_a_limit_is_asked_within_a_second(tmp_path: Path) -> None:
    root, clock = in_v2(tmp_path, "/a", {"a/memory.max": "max", "a/memory.current": 0}), Clock()
    meter = LimitMeter(root, {}, clock)
    assert meter.memory().source == "physical memory"
    (root / V2 / "a/memory.max").write_text(str(MIB))
    assert meter.memory().source == "physical memory"
    clock.now += limits.UNLIMITED_SECONDS
    assert bound(meter.memory()) == (MIB, str(root / V2 / "a/memory.max"))


@pytest.mark.skipif(sys.platform != "linux", reason="others have no such file")
def test_physical_memory_is_that_of_psutil() -> None:
    memory = psutil.virtual_memory()
    (reading,) = [one for one in LimitMeter(environ={}).readings() if "physical" in one.source]
    assert reading.limit == memory.total
    assert reading.available == pytest.approx(memory.available, rel=0.3)


@pytest.mark.skipif(sys.platform != "linux", reason="others have no such file")
@pytest.mark.parametrize("text", ["MemTotal: 8 kB\n", "MemTotal: 8 kB\nMemAvailable: 9 kB\n", ""])
def test_a_strange_file_on_memory_is_left_to_psutil(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Old kernels, and some containers, have no such row."""
    (tmp_path / "meminfo").write_text(text)
    monkeypatch.setattr(limits, "_MEMORY_FILE", tmp_path / "meminfo")
    reading = LimitMeter(tmp_path, {}).memory()
    assert reading.limit == psutil.virtual_memory().total


def test_a_group_that_vanishes_is_found_anew(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/a", {"a/memory.max": 2 * MIB, "b/memory.max": MIB})
    meter = LimitMeter(root, {}, Clock())
    assert meter.memory().available == 2 * MIB
    (root / V2 / "a/memory.max").unlink()
    (root / "proc/self/cgroup").write_text("0::/b")
    assert bound(meter.memory()) == (MIB, str(root / V2 / "b/memory.max"))
    (root / V2 / "b/memory.max").unlink()
    assert meter.memory().source == "physical memory"


def test_a_process_that_is_moved_is_followed_in_a_while(tmp_path: Path) -> None:
    root, clock = in_v2(tmp_path, "/a", {"a/memory.max": 2 * MIB, "b/memory.max": MIB}), Clock()
    meter = LimitMeter(root, {}, clock)
    assert meter.memory().available == 2 * MIB
    (root / "proc/self/cgroup").write_text("0::/b")
    clock.now += limits.REREAD_SECONDS / 2
    assert meter.memory().available == 2 * MIB
    clock.now += limits.REREAD_SECONDS
    assert meter.memory().available == MIB


def test_a_limit_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/a", {"a/memory.max": 2 * MIB, "memory.max/of": "a folder"})
    assert LimitMeter(root, {}).memory().available == 2 * MIB


def test_slurm_grants_are_limits(tmp_path: Path) -> None:
    granted = {"SLURM_MEM_PER_NODE": "64", "SLURM_CPUS_ON_NODE": "1"}
    assert bound(limits.LimitMeter(tmp_path, granted).memory()) == (64 * MIB, "SLURM_MEM_PER_NODE")
    assert limits.LimitMeter(tmp_path, granted).cores().count == 1
    per_cpu = {"SLURM_MEM_PER_CPU": "32", "SLURM_CPUS_ON_NODE": "2"}
    assert bound(limits.LimitMeter(tmp_path, per_cpu).memory()) == (64 * MIB, "SLURM_MEM_PER_CPU")
    per_gpu = {"SLURM_MEM_PER_GPU": "32", "SLURM_GPUS_ON_NODE": "3"}
    assert bound(limits.LimitMeter(tmp_path, per_gpu).memory()) == (96 * MIB, "SLURM_MEM_PER_GPU")


def test_grants_that_nobody_measures_are_used_up_by_the_children(tmp_path: Path) -> None:
    meter = LimitMeter(tmp_path, {"SLURM_MEM_PER_NODE": "64"})
    assert bound(meter.memory(used=24 * MIB)) == (40 * MIB, "SLURM_MEM_PER_NODE")
    assert meter.memory(used=99 * MIB).available == 0


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
    assert 0 < limits.LimitMeter().memory().available <= psutil.virtual_memory().total
    assert 1 <= limits.LimitMeter().cores().count <= (os.cpu_count() or 1)


MEASURE = (
    "from millguard.limits import *; seen = LimitMeter(environ={}).memory();"
    "print(seen.available, seen.source)"
)

IMPORTS = Path(millguard.__file__).parents[1]


@pytest.mark.skipif(sys.platform == "win32", reason="ulimit is not known there")
def test_ulimit_bounds_one_process_and_not_all_together() -> None:
    code = "from millguard.limits import *;print(process_memory_limits(), LimitMeter(environ={}).memory().source)"
    command = f"ulimit -v 4194304; exec {sys.executable} -c '{code}'"
    said = subprocess.run(
        ["sh", "-c", command], cwd=IMPORTS, capture_output=True, text=True, check=True
    ).stdout
    assert str(LimitReading("ulimit -v", 4 * GIB)) in said
    assert not said.endswith("ulimit -v\n")


@pytest.mark.skipif(sys.platform == "win32", reason="ulimit is not known there")
@pytest.mark.parametrize(("limit", "seconds"), [("1800", "1800"), ("unlimited", "None")])
def test_the_seconds_that_a_process_may_use_are_read(limit: str, seconds: str) -> None:
    code = 'from millguard.limits import process_limit; print(process_limit("RLIMIT_CPU"))'
    command = f"ulimit -S -t {limit}; exec {sys.executable} -c '{code}'"
    said = subprocess.run(
        ["sh", "-c", command], cwd=IMPORTS, capture_output=True, text=True, check=True
    ).stdout
    assert said == f"{seconds}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_affinity_is_seen() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from millguard import limits; print(limits.LimitMeter(environ={}).cores().count)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=IMPORTS, capture_output=True, text=True, check=True
    )
    assert said.stdout == "1\n"


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a real memory group (version 1) below our own, or skip."""
    folder = Path("/sys/fs/cgroup/memory") / f"millguard-test-{os.getpid()}"
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
        said = subprocess.run(
            ["sh", "-c", command], cwd=IMPORTS, capture_output=True, text=True, check=True
        )
    finally:
        inner.rmdir()
    count, _, source = said.stdout.strip().partition(" ")
    assert GIB // 4 < int(count) <= GIB // 2
    assert str(group) in source


def readings(root: Path) -> dict[str, LimitReading]:
    """Return what limits say, by where they stand below the mount."""
    found = [read() for read in limits.memory_limits(root)]
    mounts = (f"{root / V1}/", f"{root / V2}/")
    return {one.source.removeprefix(mounts[0]).removeprefix(mounts[1]): one for one in found if one}


def available(root: Path) -> dict[str, int]:
    return {source: one.available for source, one in readings(root).items()}


def quotas(root: Path) -> list[CpuQuota]:
    return [found for read in limits.core_limits(root) if (found := read())]


def test_usage_beyond_a_limit_leaves_nothing() -> None:
    assert LimitReading("full", limit=GIB, used=2 * GIB).available == 0


def test_more_reclaimable_than_used_does_not_raise_the_limit() -> None:
    assert LimitReading("odd", limit=GIB, used=1, reclaimable=2).available == GIB


def test_v2_walks_every_ancestor_up_to_the_mount(tmp_path: Path) -> None:
    root = in_v2(
        tmp_path,
        "/user/build",
        {
            "user/build/memory.max": 8 * GIB,
            "user/build/memory.high": "max",
            "user/build/memory.current": 1 * GIB,
            # siblings use the parent's memory; only its cache comes back
            "user/memory.max": 9 * GIB,
            "user/memory.high": 7 * GIB,
            "user/memory.current": 5 * GIB,
            "user/memory.stat": f"anon {4 * GIB}\ninactive_file {GIB}",
        },
    )
    assert available(root) == {
        "user/build/memory.max": 7 * GIB,
        "user/memory.max": 5 * GIB,
        "user/memory.high": 3 * GIB,
    }


def test_v2_files_that_are_cached_can_be_had_but_not_those_that_are_mapped(tmp_path: Path) -> None:
    stat = (
        "anon 100\ninactive_file 300\nactive_file 500\nfile_mapped 80\nslab_reclaimable 60\nshmem 7"
    )
    root = in_v2(tmp_path, "/", {"memory.max": 1000, "memory.current": 990, "memory.stat": stat})
    assert readings(root)["memory.max"] == LimitReading(
        str(root / V2 / "memory.max"), 1000, used=990, reclaimable=300 + 500 - 80 + 30
    )


def test_v1_counts_the_cache_of_the_whole_hierarchy_and_ignores_no_limit(tmp_path: Path) -> None:
    stat = f"inactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}\ntotal_mapped_file {GIB // 2}"
    root = in_v1(
        tmp_path,
        "/batch/job",
        {
            "memory.limit_in_bytes": NO_LIMIT_V1,
            "memory.usage_in_bytes": 20 * GIB,
            "batch/memory.limit_in_bytes": 4 * GIB,
            "batch/memory.usage_in_bytes": 3 * GIB,
            "batch/memory.stat": stat,
            "batch/job/memory.limit_in_bytes": NO_LIMIT_V1,
        },
    )
    assert available(root) == {"batch/memory.limit_in_bytes": 2.5 * GIB}


def test_v1_with_swap_has_a_second_limit(tmp_path: Path) -> None:
    root = in_v1(
        tmp_path,
        "/job",
        {
            "job/memory.limit_in_bytes": 4 * GIB,
            "job/memory.usage_in_bytes": GIB,
            "job/memory.memsw.limit_in_bytes": 5 * GIB,
            "job/memory.memsw.usage_in_bytes": 4 * GIB,  # 3 GiB of it on the disk
        },
    )
    assert available(root) == {
        "job/memory.limit_in_bytes": 3 * GIB,
        "job/memory.memsw.limit_in_bytes": GIB,
    }


@pytest.mark.parametrize(
    "base", ["/docker/abc", "/kubepods.slice/kubepods-pod1.slice/cri-abc.scope"]
)
def test_a_container_that_is_told_its_groups_real_name_reads_the_mount(
    tmp_path: Path, base: str
) -> None:
    root = in_v1(tmp_path, base, {"memory.limit_in_bytes": GIB}, base)
    assert available(root) == {"memory.limit_in_bytes": GIB}


def test_a_container_with_its_own_view_reads_the_mount(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/", {"memory.max": 2 * GIB, "memory.current": 0})
    assert available(root) == {"memory.max": 2 * GIB}


def test_a_container_that_is_told_a_name_it_cannot_see_reads_the_mount(tmp_path: Path) -> None:
    root = in_v1(tmp_path, "/docker/abc", {"memory.limit_in_bytes": GIB})
    assert available(root) == {"memory.limit_in_bytes": GIB}


def test_a_group_within_a_namespace_is_found(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/../b/c", {"b/memory.max": GIB, "b/c/memory.max": 2 * GIB}, "/..")
    assert available(root) == {"b/memory.max": GIB, "b/c/memory.max": 2 * GIB}


def test_the_hosts_mount_in_a_namespace_confines_from_above(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/", {"memory.max": 8 * GIB}, "/../../..")
    assert available(root) == {"memory.max": 8 * GIB}


def test_the_group_of_others_is_not_ours(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/../elsewhere", {"memory.max": GIB})
    tree(root, {"sys/fs/elsewhere/memory.max": 1})
    assert available(root) == {}


def test_a_pod_of_kubernetes_as_its_node_sees_it(tmp_path: Path) -> None:
    pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice"
    root = in_v2(
        tmp_path,
        f"/{pod}/cri-containerd-5.scope",
        {
            f"{pod}/cri-containerd-5.scope/memory.max": 6 * GIB,
            f"{pod}/cri-containerd-5.scope/memory.current": GIB,
            f"{pod}/memory.max": 8 * GIB,
            f"{pod}/memory.current": 5 * GIB,  # its other containers
            "kubepods.slice/memory.max": 60 * GIB,
            "kubepods.slice/memory.current": 20 * GIB,
            f"{pod}/cri-containerd-5.scope/cpu.max": "250000 100000",
            f"{pod}/cpu.max": "400000 100000",
        },
    )
    assert min(available(root).values()) == available(root)[f"{pod}/memory.max"] == 3 * GIB
    assert [quota.cores for quota in quotas(root)] == [2.5, 4.0]


def test_a_step_of_slurm(tmp_path: Path) -> None:
    root = in_v1(
        tmp_path,
        "/slurm/uid_1000/job_77/step_0/task_0",
        {
            "slurm/uid_1000/job_77/memory.limit_in_bytes": 16 * GIB,
            "slurm/uid_1000/job_77/memory.usage_in_bytes": 12 * GIB,  # another step's
            "slurm/uid_1000/job_77/step_0/memory.limit_in_bytes": 8 * GIB,
            "slurm/uid_1000/job_77/step_0/memory.usage_in_bytes": GIB,
            "slurm/uid_1000/job_77/step_0/task_0/memory.limit_in_bytes": NO_LIMIT_V1,
        },
    )
    assert sorted(available(root).values()) == [4 * GIB, 7 * GIB]


def test_the_processes_that_groups_allow_are_counted_less_those_there_are(tmp_path: Path) -> None:
    usual = limits.process_room(tmp_path)  # by `ulimit -u` alone
    files: dict[str, str | int] = {
        "a/pids.max": 2048,
        "a/pids.current": 48,
        "a/b/pids.max": "max",
        "a/b/pids.current": 3,
    }
    assert limits.process_room(in_v2(tmp_path, "/a/b", files)) == min(2000, usual or 2000)


def test_a_hybrid_hierarchy_has_its_memory_in_version_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n0::/user",
            "proc/self/mountinfo": V1_MOUNT.format(base="/")
            + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/unified/user/cgroup.procs": "1",
            f"{V1}/job/memory.limit_in_bytes": GIB,
        },
    )
    assert available(root) == {"job/memory.limit_in_bytes": GIB}


def test_v1_sees_the_limit_of_an_ancestor_that_is_not_mounted(tmp_path: Path) -> None:
    root = in_v1(
        tmp_path,
        "/pod/abc",
        {
            "memory.limit_in_bytes": NO_LIMIT_V1,
            "memory.usage_in_bytes": GIB,
            "memory.stat": f"hierarchical_memory_limit {3 * GIB}",
        },
        "/pod/abc",
    )
    assert available(root) == {"memory.stat (hierarchical_memory_limit)": 2 * GIB}


def test_a_mount_point_with_a_blank_is_found(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": "31 23 0:28 / /my\\040groups rw - cgroup2 cgroup2 rw",
            "my groups/memory.max": GIB,
        },
    )
    assert list(available(root).values()) == [GIB]


def test_a_hierarchy_that_is_mounted_twice_counts_once(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/", {"memory.max": GIB})
    tree(root, {"proc/self/mountinfo": V2_MOUNT.format(base="/") * 2})
    assert len(limits.memory_limits(root)) == 1


def test_a_long_list_of_mounts_is_read_to_its_end(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/", {"memory.max": GIB})
    overlay = "99 1 0:50 / /var/lib/overlay/{} rw - overlay overlay rw,lowerdir=/{}\n"
    many = "".join(overlay.format(number, "x" * 200) for number in range(500))
    tree(root, {"proc/self/mountinfo": many + V2_MOUNT.format(base="/")})
    assert available(root) == {"memory.max": GIB}


def test_a_system_without_control_groups_sets_no_limit(tmp_path: Path) -> None:
    assert limits.memory_limits(tmp_path) == []
    assert limits.core_limits(tmp_path) == []


@pytest.mark.parametrize("garbage", ["", "²", "8G", "-5", "max", "\x00\xff", "9" * 5000, "1 2 3"])
def test_garbage_is_no_limit(tmp_path: Path, garbage: str) -> None:
    files = {"memory.max": garbage, "cpu.max": garbage, "cpuset.cpus.effective": f"0-{garbage}"}
    root = in_v2(tmp_path, "/", files)
    assert available(root) == {}
    assert quotas(root) == []


@pytest.mark.parametrize("garbage", ["", "usage", "-5"])
def test_garbage_beside_a_limit_leaves_the_limit(tmp_path: Path, garbage: str) -> None:
    stat = f"inactive_file {garbage}\n{garbage}\n\ninactive_file"
    root = in_v2(tmp_path, "/", {"memory.max": GIB, "memory.current": garbage, "memory.stat": stat})
    assert available(root) == {"memory.max": GIB}


@pytest.mark.parametrize("garbage", ["", "::::", "0", "no colon here\n4:memory", "0::/a\n" * 3])
def test_garbage_in_the_list_of_groups_is_passed_over(tmp_path: Path, garbage: str) -> None:
    root = in_v2(tmp_path, "/", {"memory.max": GIB})
    tree(root, {"proc/self/cgroup": garbage, "proc/self/mountinfo": f"1 2\n - cgroup2\n{V2_MOUNT}"})
    assert set(available(root).values()) <= {GIB}


def node(number: int, total: int, free: int, cached: int = 0) -> str:
    """Return the meminfo of a NUMA node, with sizes in MiB."""
    sizes = {"MemTotal": total, "MemFree": free, "Active(file)": cached, "Mapped": 0}
    return "".join(f"Node {number} {name}: {size * 1024} kB\n" for name, size in sizes.items())


def with_nodes(folder: Path, allowed: str) -> Path:
    """Return a root with two NUMA nodes, and a process that may use some of them."""
    nodes = "sys/devices/system/node"
    return tree(
        folder,
        {
            "proc/self/status": f"Name:\tpython\nMems_allowed_list:\t{allowed}\n",
            f"{nodes}/has_memory": "0-1",
            f"{nodes}/node0/meminfo": node(0, 64 * 1024, 1024),
            f"{nodes}/node1/meminfo": node(1, 2048, 512, cached=256),
        },
    )


def test_only_the_nodes_that_may_be_used_count(tmp_path: Path) -> None:
    (limit,) = [reader() for reader in limits.memory_limits(with_nodes(tmp_path, "1"))]
    assert limit is not None
    assert limit.source == "memory of NUMA nodes 1 (cpuset.mems)"
    assert (limit.limit, limit.available) == (2 * GIB, 768 * 2**20)


@pytest.mark.parametrize("allowed", ["0-1", "0,1", "0-63", "", "7", "1-0", "x", "0-99999999999"])
def test_a_process_that_may_use_all_nodes_has_no_limit_by_them(
    tmp_path: Path, allowed: str
) -> None:
    assert limits.memory_limits(with_nodes(tmp_path, allowed)) == []


def test_v2_quotas(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/a/b", {"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000"})
    assert quotas(root) == [CpuQuota(str(root / V2 / "a/cpu.max"), 2.5)]


@pytest.mark.parametrize(
    ("said", "cores"), [("0-3,8", [5]), ("7", [1]), ("", []), ("3-0", []), ("a-b", [])]
)
def test_a_set_of_processors(tmp_path: Path, said: str, cores: list[int]) -> None:
    root = in_v2(tmp_path, "/a", {"a/cpuset.cpus.effective": said, "cpuset.cpus.effective": "0-63"})
    assert [quota.cores for quota in quotas(root)] == cores


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
    assert [quota.cores for quota in quotas(root)] == [0.5]


# Leads a group in which it has 40 MiB, and its child 80.
LEADER = """
import subprocess, sys
kept = b"x" * (40 * 2**20)
subprocess.run([sys.executable, "-c", "kept = b'x' * (80 * 2**20); print('.', flush=True); input()"])
"""


@contextlib.contextmanager
def group_of_memory() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    ) as leader:
        assert leader.stdout
        assert leader.stdout.readline()
        yield leader.pid
        leader.communicate(b"\n")


def test_all_processes_of_a_group_count() -> None:
    with group_of_memory() as one, group_of_memory() as other:
        has = limits.groups_memory([one, other])
        assert list(has) == [one, other]
        for number, resident in has.items():
            leader = psutil.Process(number)
            members = [leader, *leader.children()]
            assert resident == pytest.approx(
                sum(member.memory_info().rss for member in members), rel=0.01
            )
            assert resident > 120 * MIB


def test_a_group_that_ended_has_nothing() -> None:
    with subprocess.Popen(["true"], process_group=0) as ended:
        ended.wait()
    assert limits.groups_memory([ended.pid]) == {ended.pid: 0}


def test_nothing_is_asked_of_nobody() -> None:
    assert limits.groups_memory([]) == {}
