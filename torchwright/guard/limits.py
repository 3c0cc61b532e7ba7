"""The memory and the processors that this process may really use, and what sets the limit."""

import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchwright.guard import cgroups
from torchwright.guard.cgroups import Quota, Reading


@dataclass(frozen=True, slots=True)
class Limit:
    """The memory that can be had now, in bytes, and which limit says so."""

    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Cores:
    """The processors that can be kept busy, and which limit says so."""

    count: int
    source: str


def memory_limit(readings: Iterable[Reading]) -> Limit:
    """Return the tightest of some readings, of which there is at least one."""
    tightest = min(readings, key=lambda reading: reading.available)
    return Limit(tightest.available, tightest.source)


def core_limit(quotas: Iterable[Quota]) -> Cores:
    """Return the tightest of some quotas, of which there is at least one; a begun processor counts."""
    tightest = min(quotas, key=lambda quota: quota.cores)
    return Cores(max(1, math.ceil(tightest.cores)), tightest.source)


def memory(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Limit:
    """Measure the memory that this process and its children can still get.

    `root` is the file system's root, below which /proc and /sys are read.
    """
    return memory_limit(
        [_physical(), *_address_space(), *_slurm_memory(environ), *cgroups.memory_readings(root)]
    )


def cores(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Cores:
    """Measure the processors that this process and its children may use."""
    return core_limit([_affinity(), *_slurm_cores(environ), *cgroups.quotas(root)])


def _physical() -> Reading:
    import psutil  # noqa: PLC0415 (the pure half is wanted without it)

    seen = psutil.virtual_memory()
    return Reading("physical memory", seen.total, seen.total - seen.available)


def _address_space() -> list[Reading]:
    if sys.platform == "win32":
        return []
    import resource  # noqa: PLC0415 (not on Windows)

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return [] if soft == resource.RLIM_INFINITY else [Reading("ulimit -v", soft)]


def _affinity() -> Quota:
    if sys.platform == "linux":
        return Quota("processors of this machine given to this process", len(os.sched_getaffinity(0)))
    return Quota("processors of this machine", os.cpu_count() or 1)


def _slurm_memory(environ: Mapping[str, str]) -> list[Reading]:
    """Read what Slurm granted, in megabytes: not every site confines its jobs by control groups."""
    readings = []
    node = environ.get("SLURM_MEM_PER_NODE", "")
    if node.isdigit() and int(node):  # 0 is all of the machine
        readings.append(Reading("SLURM_MEM_PER_NODE", int(node) * 2**20))
    per_cpu, cpus = environ.get("SLURM_MEM_PER_CPU", ""), environ.get("SLURM_CPUS_ON_NODE", "")
    if per_cpu.isdigit() and cpus.isdigit() and int(per_cpu):
        readings.append(Reading("SLURM_MEM_PER_CPU", int(per_cpu) * int(cpus) * 2**20))
    return readings


def _slurm_cores(environ: Mapping[str, str]) -> list[Quota]:
    cpus = environ.get("SLURM_CPUS_ON_NODE", "")
    return [Quota("SLURM_CPUS_ON_NODE", int(cpus))] if cpus.isdigit() and int(cpus) else []
