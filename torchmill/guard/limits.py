"""The memory and the processors that this process may really use, and what sets the limit."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from torchmill.guard import cgroups, kernel
from torchmill.guard.cgroups import Quota, Reading

# Slurm's grants of memory on this node, by what each is multiplied with
_SLURM_MEMORY = {
    "SLURM_MEM_PER_NODE": None,
    "SLURM_MEM_PER_CPU": "SLURM_CPUS_ON_NODE",
    "SLURM_MEM_PER_GPU": "SLURM_GPUS_ON_NODE",
}
KEPT = 10.0  # seconds for which the control groups, once found, are believed to be still ours


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


class Meter:
    """Measure, again and again, what this process and its children may use together.

    `root` is the file system's root, below which control groups are looked for.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._granted = _slurm_memory(environ)
        self._granted_cores = _slurm_cores(environ)
        self._memory = _Found(lambda: cgroups.memory_limits(root), clock)
        self._cores = _Found(lambda: cgroups.core_limits(root), clock)

    def memory(self, used: int = 0) -> Limit:
        """Return the memory that children can still get who have `used` bytes between them."""
        return memory_limit(self.readings(used))

    def cores(self) -> Cores:
        """Return the processors that can be kept busy."""
        return core_limit(self.quotas())

    def readings(self, used: int = 0) -> list[Reading]:
        """Return every limit on memory as it stands; `used` counts against grants that nobody measures."""
        return [_physical(), *(replace(one, used=used) for one in self._granted), *self._memory.read()]

    def quotas(self) -> list[Quota]:
        """Return every limit on processors as it stands."""
        return [_affinity(), *self._granted_cores, *self._cores.read()]


def memory_limit(readings: Iterable[Reading]) -> Limit:
    """Return the tightest of some readings, of which there is at least one."""
    tightest = min(readings, key=lambda reading: reading.available)
    return Limit(tightest.available, tightest.source)


def core_limit(quotas: Iterable[Quota]) -> Cores:
    """Return the tightest of some quotas, of which there is at least one; a begun processor counts."""
    tightest = min(quotas, key=lambda quota: quota.cores)
    return Cores(max(1, math.ceil(tightest.cores)), tightest.source)


def memory(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Limit:
    """Measure once the memory that this process and its children can still get."""
    return Meter(root, environ).memory()


def cores(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Cores:
    """Measure once the processors that this process and its children may use."""
    return Meter(root, environ).cores()


def of_one_process() -> list[Reading]:
    """Return the limits on what a single process may take: they bound one compiler, not all together."""
    if sys.platform == "win32":
        return []
    import resource  # noqa: PLC0415 (not on Windows)

    kinds = {"ulimit -v": resource.RLIMIT_AS, "ulimit -d": resource.RLIMIT_DATA}
    soft = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return [Reading(name, limit) for name, limit in soft.items() if limit != resource.RLIM_INFINITY]


_Said_co = TypeVar("_Said_co", covariant=True)


class _Source(Protocol[_Said_co]):
    def read(self) -> _Said_co | None: ...


class _Found(Generic[_Said_co]):
    """Sources of limits: found now and then and when one is gone, read each time."""

    def __init__(self, find: Callable[[], Sequence[_Source[_Said_co]]], clock: Callable[[], float]) -> None:
        self._find, self._clock = find, clock
        self._sources: Sequence[_Source[_Said_co]] = ()
        self._until = -math.inf

    def read(self) -> list[_Said_co]:
        """Return what each source says that says anything."""
        said = self._said() if self._clock() < self._until else None
        if said is None:
            self._sources, self._until = self._find(), self._clock() + KEPT
            said = self._said()
        return said or []

    def _said(self) -> list[_Said_co] | None:
        """Return None where a source is gone: this process has been moved to another group."""
        try:
            return [said for source in self._sources if (said := source.read()) is not None]
        except OSError:
            return None


def _physical() -> Reading:
    import psutil  # noqa: PLC0415 (the pure half is wanted without it)

    seen = psutil.virtual_memory()
    return Reading("physical memory", seen.total, seen.total - seen.available)


def _affinity() -> Quota:
    if sys.platform == "linux":
        return Quota("processors of this machine given to this process", len(os.sched_getaffinity(0)))
    return Quota("processors of this machine", os.cpu_count() or 1)


def _slurm_memory(environ: Mapping[str, str]) -> list[Reading]:
    """Read what Slurm granted, in megabytes: not every site confines its jobs by control groups."""
    found = []
    for name, times in _SLURM_MEMORY.items():
        each, count = _granted(environ, name), _granted(environ, times) if times else 1
        if each and count:  # 0 is all of the machine
            found.append(Reading(name, each * count * 2**20))
    return found


def _slurm_cores(environ: Mapping[str, str]) -> list[Quota]:
    count = _granted(environ, "SLURM_CPUS_ON_NODE")
    return [Quota("SLURM_CPUS_ON_NODE", count)] if count else []


def _granted(environ: Mapping[str, str], name: str) -> int:
    """Return the number that a variable holds; 0 where it holds none that is a grant."""
    return max(0, kernel.number(environ.get(name, "")) or 0)
