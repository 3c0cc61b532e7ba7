"""Made-up kernel files: what /proc and /sys say on machines that we do not have."""

from collections.abc import Mapping
from pathlib import Path

MIB, GIB = 2**20, 2**30
NO_LIMIT_V1 = 9223372036854771712

V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"
V1_MOUNT = (
    "35 31 0:32 {base} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
)
V1_CPU_MOUNT = "36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V2_MOUNT = "31 23 0:28 {base} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
OTHER_MOUNT = "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def tree(root: Path, files: Mapping[str, str | int]) -> Path:
    """Write kernel files below `root`."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


def in_v2(root: Path, group: str, files: Mapping[str, str | int], base: str = "/") -> Path:
    """Write version 2's files, named below the mount, and put this process into `group`."""
    return tree(
        root,
        {
            "proc/self/cgroup": f"0::{group}",
            "proc/self/mountinfo": OTHER_MOUNT + V2_MOUNT.format(base=base),
            **{f"{V2}/{name}": text for name, text in files.items()},
        },
    )


def in_v1(root: Path, group: str, files: Mapping[str, str | int], base: str = "/") -> Path:
    """Write the files of version 1's memory controller in the same way."""
    return tree(
        root,
        {
            "proc/self/cgroup": f"4:memory:{group}\n1:cpu:/\n0::/",
            "proc/self/mountinfo": OTHER_MOUNT + V1_MOUNT.format(base=base),
            **{f"{V1}/{name}": text for name, text in files.items()},
        },
    )
