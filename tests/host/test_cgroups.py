"""Limits of control groups: made-up kernel trees, as containers, clusters and plain machines have them."""

from pathlib import Path

import pytest

from tests.support.kernel_tree import (
    GIB,
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
from torchmill.host import limits
from torchmill.host.limits import CpuQuota, LimitReading


def readings(root: Path) -> dict[str, LimitReading]:
    """Return what limits say, by where they stand below the mount."""
    found = [limit.read() for limit in limits.memory_limits(root)]
    mounts = (f"{root / V1}/", f"{root / V2}/")
    return {one.source.removeprefix(mounts[0]).removeprefix(mounts[1]): one for one in found if one}


def available(root: Path) -> dict[str, int]:
    return {source: one.available for source, one in readings(root).items()}


def quotas(root: Path) -> list[CpuQuota]:
    return [found for limit in limits.core_limits(root) if (found := limit.read())]


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
    stat = "anon 100\ninactive_file 300\nactive_file 500\nfile_mapped 80\nslab_reclaimable 60\nshmem 7"
    root = in_v2(tmp_path, "/", {"memory.max": 1000, "memory.current": 990, "memory.stat": stat})
    assert readings(root)["memory.max"] == LimitReading(
        str(root / V2 / "memory.max"), 1000, used=990, reclaimable=300 + 500 - 80 + 30
    )


def test_v1_counts_the_cache_of_the_whole_hierarchy_and_ignores_no_limit(tmp_path: Path) -> None:
    stat = (
        f"inactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}\ntotal_mapped_file {GIB // 2}"
    )
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


@pytest.mark.parametrize("base", ["/docker/abc", "/kubepods.slice/kubepods-pod1.slice/cri-abc.scope"])
def test_a_container_that_is_told_its_groups_real_name_reads_the_mount(tmp_path: Path, base: str) -> None:
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


def test_v2_quotas(tmp_path: Path) -> None:
    root = in_v2(tmp_path, "/a/b", {"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000"})
    assert quotas(root) == [CpuQuota(str(root / V2 / "a/cpu.max"), 2.5)]


@pytest.mark.parametrize(("said", "cores"), [("0-3,8", [5]), ("7", [1]), ("", []), ("3-0", []), ("a-b", [])])
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
