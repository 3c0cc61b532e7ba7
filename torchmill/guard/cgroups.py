"""What the control groups of this process allow it, in their first and second version.

A group is confined by every ancestor, and an ancestor's usage includes siblings, so each level is a
limit of its own. Where the limits stand is found once (`memory_limits`, `core_limits`); what they say can
then be read again and again. `root` stands for the file system's root: tests give a made-up one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from torchmill.guard import kernel

_OCTAL = re.compile(r"\\([0-7]{3})")
_UNLIMITED = 2**60  # version 1 writes "no limit" as the largest multiple of a page

# Rows of memory.stat that the kernel gives back on demand, and how much of each. A page cache that was read
# often ("active") goes as readily as one read once: with 900 of 1024 MiB full of either, processes get 1008.
# What is mapped is code that runs, and part of its processes' resident size. Of the slab some is in use;
# version 1 does not say how much of it there is.
_CACHE_V1 = {"total_inactive_file": 1.0, "total_active_file": 1.0, "total_mapped_file": -1.0}
_CACHE_V2 = {"inactive_file": 1.0, "active_file": 1.0, "file_mapped": -1.0, "slab_reclaimable": 0.5}


@dataclass(frozen=True, slots=True)
class Reading:
    """One limit on memory, in bytes, and what counts against it already."""

    source: str  # for people: "/sys/fs/cgroup/memory/batch/memory.limit_in_bytes"
    limit: int
    used: int = 0
    reclaimable: int = 0  # part of `used` that the kernel gives back on demand

    @property
    def available(self) -> int:
        """Return the bytes that can still be had."""
        return max(0, self.limit - max(0, self.used - self.reclaimable))


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit on processors, in processors: 1.5 is one and a half."""

    source: str
    cores: float


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The files in which one control group says what memory it allows."""

    limit: Path
    used: Path
    stat: Path
    cache: Mapping[str, float]  # what of `stat` the kernel gives back on demand
    row: str = ""  # of `limit`, where that is a table

    @property
    def source(self) -> str:
        """Return where the limit stands, for people."""
        return f"{self.limit} ({self.row})" if self.row else str(self.limit)

    def read(self) -> Reading | None:
        """Return what the group says now; None where it sets no limit.

        Raises OSError where the group is gone.
        """
        text = kernel.read(self.limit)
        limit = kernel.table(text).get(self.row) if self.row else kernel.number(text)
        if limit is None or not 0 <= limit < _UNLIMITED:
            return None
        stat = kernel.table(kernel.text(self.stat))
        reclaimable = int(sum(share * stat.get(row, 0) for row, share in self.cache.items()))
        used = max(0, kernel.number(kernel.text(self.used)) or 0)
        return Reading(self.source, limit, used, max(0, min(reclaimable, used)))


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The files in which one control group says how much processor time it allows."""

    quota: Path
    period: Path | None = None  # None: `quota` holds it too

    def read(self) -> Quota | None:
        """Return what the group says now; None where it sets no limit.

        Raises OSError where the group is gone.
        """
        quota, _, period = kernel.read(self.quota).partition(" ")
        times = kernel.number(quota), kernel.number(kernel.text(self.period) if self.period else period)
        allowed, of = (max(0, time or 0) for time in times)
        return Quota(str(self.quota), allowed / of) if allowed and of else None


@dataclass(frozen=True, slots=True)
class CoreSet:
    """The file in which a control group says which processors it may use."""

    cores: Path

    def read(self) -> Quota | None:
        """Return how many they are; None where the group does not say.

        Raises OSError where the group is gone.
        """
        count = kernel.members(kernel.read(self.cores))
        return Quota(str(self.cores), count) if count > 0 else None


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """Return where limits on this process's memory may stand."""
    return [
        limit
        for version, folders in _hierarchies(root, "memory")
        for limit in (_memory_v1 if version == 1 else _memory_v2)(folders)
        if kernel.text(limit.limit)
    ]


def core_limits(root: Path = Path("/")) -> list[QuotaLimit | CoreSet]:
    """Return where limits on this process's processors may stand."""
    quotas = [
        QuotaLimit(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
        if version == 1
        else QuotaLimit(folder / "cpu.max")
        for version, folders in _hierarchies(root, "cpu")
        for folder in folders
    ]
    sets = [  # what is effective is within every ancestor's
        CoreSet(folders[0] / ("cpuset.effective_cpus" if version == 1 else "cpuset.cpus.effective"))
        for version, folders in _hierarchies(root, "cpuset")
    ]
    return [
        *(limit for limit in quotas if kernel.text(limit.quota)),
        *(limit for limit in sets if kernel.text(limit.cores)),
    ]


def _memory_v1(folders: list[Path]) -> Iterator[MemoryLimit]:
    for folder in folders:
        for kind in ("memory", "memory.memsw"):  # the second counts what was swapped out as well
            limit, used = folder / f"{kind}.limit_in_bytes", folder / f"{kind}.usage_in_bytes"
            yield MemoryLimit(limit, used, folder / "memory.stat", _CACHE_V1)
    # an ancestor that is not mounted here; its own usage is not to be seen
    top = folders[-1]
    above = MemoryLimit(
        top / "memory.stat",
        top / "memory.usage_in_bytes",
        top / "memory.stat",
        _CACHE_V1,
        "hierarchical_memory_limit",
    )
    within = kernel.number(kernel.text(top / "memory.limit_in_bytes"))
    hidden = kernel.table(kernel.text(above.limit)).get(above.row)
    if within is not None and hidden is not None and hidden < within:
        yield above


def _memory_v2(folders: list[Path]) -> Iterator[MemoryLimit]:
    for folder in folders:
        for name in ("memory.max", "memory.high"):
            yield MemoryLimit(folder / name, folder / "memory.current", folder / "memory.stat", _CACHE_V2)


def _hierarchies(root: Path, controller: str) -> Iterator[tuple[int, list[Path]]]:
    """Yield, for each hierarchy that may hold the controller, this process's group and then its ancestors."""
    groups = _groups(root)
    for version, controllers, base, point in dict.fromkeys(_mounts(root)):
        if version == 1 and controller not in controllers:
            continue
        group = groups.get(controller if version == 1 else "")
        below = _below(group, base) if group is not None else None
        if below is not None:
            yield version, [point.joinpath(*below[:depth]) for depth in range(len(below), -1, -1)]


def _below(group: PurePosixPath, base: PurePosixPath) -> tuple[str, ...] | None:
    """Return the way from the group that is mounted to a process's own; None where there is no such way.

    Both are told as a namespace sees them, in which what lies outside begins with "..".
    """
    inside = group.relative_to(base).parts if group.is_relative_to(base) else ()
    # the path is another namespace's, or its names are not to be seen: the mount itself is what is left
    return None if ".." in inside else inside


def _groups(root: Path) -> dict[str, PurePosixPath]:
    """Return this process's group by controller; "" stands for version 2."""
    groups: dict[str, PurePosixPath] = {}
    for line in kernel.text(root / "proc/self/cgroup").splitlines():
        _, colon, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if colon and second:
            groups |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    return groups


def _mounts(root: Path) -> Iterator[tuple[int, frozenset[str], PurePosixPath, Path]]:
    """Yield the version of each hierarchy, its controllers, the group that is mounted, and where."""
    for line in kernel.text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        fields = left.split(" ")
        if kind not in {"cgroup", "cgroup2"} or len(fields) < 5:  # noqa: PLR2004 - proc(5) counts them
            continue
        base, point = (_unescape(field) for field in fields[3:5])
        controllers = frozenset(options.rpartition(" ")[2].split(","))
        yield 1 if kind == "cgroup" else 2, controllers, PurePosixPath(base), root / point.lstrip("/")


def _unescape(field: str) -> str:
    """Return a path as it is: mountinfo writes a blank as a backslash and 040."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)
