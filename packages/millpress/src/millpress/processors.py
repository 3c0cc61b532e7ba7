"""Count the processors that this process may use."""

import math
import os
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")


def usable_processors(
    cgroup_root: Path = CGROUP_ROOT, cgroup_file: Path = Path("/proc/self/cgroup")
) -> int:
    """Return how many processors this process may keep busy, at least one.

    Counts its affinity (taskset, Slurm) and, on Linux, the quotas of its control groups
    (containers). Quotas of control groups of version 1 are not read.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        count = len(os.sched_getaffinity(0))
    for quota in _cgroup_quotas(cgroup_root, cgroup_file):
        # rounded up: of 1.5 processors, two threads use more than one does
        count = min(count, math.ceil(quota))
    return max(count, 1)


def _cgroup_quotas(cgroup_root: Path, cgroup_file: Path) -> list[float]:
    """Return the quotas, in processors, of this process's control group and those above it."""
    try:
        lines = cgroup_file.read_text("utf-8").splitlines()
    except OSError:  # no Linux
        return []
    quotas = []
    for line in lines:
        number, _, path = line.split(":", 2)
        if number != "0":  # only the group of version 2 has this number
            continue
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            try:
                limit, period = (cgroup_root / folder / "cpu.max").read_text("utf-8").split()
            except (OSError, ValueError):  # the root has no such file
                continue
            if limit != "max":
                quotas.append(int(limit) / int(period))
    return quotas
