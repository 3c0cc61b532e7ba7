"""The memory and processors that this process may use: physical, control groups, ulimit, Slurm."""

import contextlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

_T = TypeVar("_T")
Reader = Callable[[], _T | None]

_OCTAL = re.compile(r"\\([0-7]{3})")
_HIDDEN_ROW = "hierarchical_memory_limit"  # of memory.stat: the tightest of all ancestors
_UNLIMITED = 2**60  # version 1 writes "no limit" as the largest multiple of a page
# Rows of memory.stat that the kernel gives back on demand, and how much of each. A page cache that was read
# often ("active") goes as readily as one read once: with 900 of 1024 MiB full of either, processes get 1008.
# What is mapped is code that runs, and part of its processes' resident size. Of the slab some is in use;
# version 1 does not say how much of it there is.
_CACHE_V1 = {"total_inactive_file": 1.0, "total_active_file": 1.0, "total_mapped_file": -1.0}
_CACHE_V2 = {"inactive_file": 1.0, "active_file": 1.0, "file_mapped": -1.0, "slab_reclaimable": 0.5}
# Slurm's grants of memory on this node, by what each is multiplied with
_SLURM_MEMORY = {
    "SLURM_MEM_PER_NODE": None,
    "SLURM_MEM_PER_CPU": "SLURM_CPUS_ON_NODE",
    "SLURM_MEM_PER_GPU": "SLURM_GPUS_ON_NODE",
}
KEPT_SECONDS = 10.0  # for which the control groups, once found, are believed to be still ours
_LINUX = sys.platform == "linux"
_PAGE = os.sysconf("SC_PAGE_SIZE") if _LINUX else 1
_BLOCK = 2**16  # bytes read at a time


def _read(file: Path) -> str:
    """Return a kernel file's text; raise OSError where it does not exist, or we may not read it."""
    handle = os.open(file, os.O_RDONLY)  # in half the time of Path.read_text
    try:
        blocks = iter(lambda: os.read(handle, _BLOCK), b"")  # the kernel gives long files in pieces
        return b"".join(blocks).decode(errors="replace").strip()
    finally:
        os.close(handle)


def _text(file: Path) -> str:
    """Return a kernel file's text; "" where it cannot be read."""
    try:
        return _read(file)
    except OSError:
        return ""


def _number(text: str) -> int | None:
    """Return the number that a text is; None where it is none ("max")."""
    try:
        return int(text)
    except ValueError:
        return None


def _table(text: str) -> dict[str, int]:
    """Return the rows of a table of names and numbers, such as memory.stat; others are left out."""
    rows = (line.partition(" ") for line in text.splitlines())
    return {name: number for name, _, value in rows if (number := _number(value)) is not None}


@dataclass(frozen=True, slots=True)
class LimitReading:
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
class CpuQuota:
    """One limit on processors, in processors: 1.5 is one and a half."""

    source: str
    cores: float

    @property
    def count(self) -> int:
        """Return the processors that can be kept busy: a begun one counts."""
        return max(1, math.ceil(self.cores))


def _memory_limit(
    limit: Path, used: Path, stat: Path, cache: Mapping[str, float]
) -> LimitReading | None:
    """Return the memory that a control group allows; None for no limit. Raises OSError where it is gone.

    `cache` tells which rows of `stat` the kernel gives back on demand.
    """
    row = _HIDDEN_ROW if limit == stat else ""
    text = _read(limit)
    allowed = _table(text).get(row) if row else _number(text)
    if allowed is None or not 0 <= allowed < _UNLIMITED:
        return None
    rows = _table(_text(stat))
    reclaimable = int(sum(share * rows.get(name, 0) for name, share in cache.items()))
    in_use = max(0, _number(_text(used)) or 0)
    source = f"{limit} ({row})" if row else str(limit)
    return LimitReading(source, allowed, in_use, max(0, min(reclaimable, in_use)))


def _quota(file: Path, period_file: Path | None = None) -> CpuQuota | None:
    """Return the processors that a control group allows; without `period_file`, `file` has the period too."""
    quota, _, period = _read(file).partition(" ")
    times = (_number(quota), _number(_text(period_file) if period_file else period))
    allowed, of = (max(0, time or 0) for time in times)
    return CpuQuota(str(file), allowed / of) if allowed and of else None


def _core_set(file: Path) -> CpuQuota | None:
    """Return how many processors a control group may use, as in "0-3,8"; None where it is no such list."""
    count = 0
    for part in _read(file).split(","):
        low, dash, high = part.partition("-")
        first, last = _number(low), _number(high if dash else low)
        if first is None or last is None:
            return None
        count += last - first + 1
    return CpuQuota(str(file), count) if count > 0 else None


def memory_limits(root: Path = Path("/")) -> list[Reader[LimitReading]]:
    """Return what reads the limits on this process's memory; it raises OSError where a group is gone."""
    found: list[Reader[LimitReading]] = []
    for version, folders in _hierarchies(root, "memory"):
        for folder in folders:
            stat = folder / "memory.stat"
            if version == 1:
                files = [
                    (folder / f"{kind}.limit_in_bytes", folder / f"{kind}.usage_in_bytes")
                    for kind in (
                        "memory",
                        "memory.memsw",
                    )  # the second counts what was swapped out as well
                ]
            else:
                files = [
                    (folder / name, folder / "memory.current")
                    for name in ("memory.max", "memory.high")
                ]
            cache = _CACHE_V1 if version == 1 else _CACHE_V2
            found += [
                partial(_memory_limit, limit, used, stat, cache)
                for limit, used in files
                if _text(limit)
            ]
        if version == 1:  # an ancestor that is not mounted here; its own usage cannot be seen
            top = folders[-1]
            stat = top / "memory.stat"
            within = _number(_text(top / "memory.limit_in_bytes"))
            hidden = _table(_text(stat)).get(_HIDDEN_ROW)
            if within is not None and hidden is not None and hidden < within:
                found.append(
                    partial(_memory_limit, stat, top / "memory.usage_in_bytes", stat, _CACHE_V1)
                )
    return found


def core_limits(root: Path = Path("/")) -> list[Reader[CpuQuota]]:
    """Return what reads the limits on this process's processors; it raises OSError where a group is gone."""
    found: list[Reader[CpuQuota]] = []
    for version, folders in _hierarchies(root, "cpu"):
        for folder in folders:
            quota = folder / ("cpu.cfs_quota_us" if version == 1 else "cpu.max")
            if _text(quota):
                found.append(
                    partial(_quota, quota, folder / "cpu.cfs_period_us" if version == 1 else None)
                )
    for version, folders in _hierarchies(
        root, "cpuset"
    ):  # what is effective is within every ancestor's
        cores = folders[0] / ("cpuset.effective_cpus" if version == 1 else "cpuset.cpus.effective")
        if _text(cores):
            found.append(partial(_core_set, cores))
    return found


def process_limit(kind: str) -> int | None:
    """Return a limit of this process, such as "RLIMIT_FSIZE" (`ulimit -f`); None without one."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit: int = resource.getrlimit(getattr(resource, kind))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def process_room(root: Path = Path("/")) -> int | None:
    """Return how many processes this one and its children may start, by `ulimit -u` and control groups; None: any."""
    found = [process_limit("RLIMIT_NPROC")]
    for folder in (one for _, folders in _hierarchies(root, "pids") for one in folders):
        most = _number(_text(folder / "pids.max"))
        found.append(
            None if most is None else most - (_number(_text(folder / "pids.current")) or 0)
        )
    return min((one for one in found if one is not None), default=None)


def _hierarchies(root: Path, controller: str) -> Iterator[tuple[int, list[Path]]]:
    """Yield, for each hierarchy that may hold the controller, this process's group and then its ancestors."""
    groups = _groups(root)
    for version, controllers, base, point in dict.fromkeys(_mounts(root)):
        if version == 1 and controller not in controllers:
            continue
        group = groups.get(controller if version == 1 else "")
        if group is None:
            continue
        # the way from the group that is mounted; where its path is another namespace's, or its names are not to
        # be seen, the mount itself is what is left
        below = group.relative_to(base).parts if group.is_relative_to(base) else ()
        if ".." not in below:  # what lies outside of the namespace begins with that
            yield version, [point.joinpath(*below[:depth]) for depth in range(len(below), -1, -1)]


def _groups(root: Path) -> dict[str, PurePosixPath]:
    """Return this process's group by controller; "" stands for version 2."""
    groups: dict[str, PurePosixPath] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, colon, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if colon and second:
            groups |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    return groups


def _mounts(root: Path) -> Iterator[tuple[int, frozenset[str], PurePosixPath, Path]]:
    """Yield the version of each hierarchy, its controllers, the group that is mounted, and where."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        fields = left.split(" ")
        if kind not in {"cgroup", "cgroup2"} or len(fields) < 5:  # noqa: PLR2004 - proc(5) counts them
            continue
        # a path as it is: mountinfo writes a blank as a backslash and 040
        base, point = (
            _OCTAL.sub(lambda match: chr(int(match[1], 8)), field) for field in fields[3:5]
        )
        controllers = frozenset(options.rpartition(" ")[2].split(","))
        yield (
            1 if kind == "cgroup" else 2,
            controllers,
            PurePosixPath(base),
            root / point.lstrip("/"),
        )


class LimitMeter:
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
        count = _slurm_number(environ, "SLURM_CPUS_ON_NODE")
        self._granted_cores = [CpuQuota("SLURM_CPUS_ON_NODE", count)] if count else []
        self._read_memory = _read_again(lambda: memory_limits(root), clock)
        self._read_cores = _read_again(lambda: core_limits(root), clock)

    def memory(self, used: int = 0) -> LimitReading:
        """Return the tightest limit on the memory of children who have `used` bytes between them."""
        return min(self.readings(used), key=tightness)

    def cores(self) -> CpuQuota:
        """Return the tightest limit on processors."""
        return min(self.quotas(), key=tightness)

    def readings(self, used: int = 0) -> list[LimitReading]:
        """Return every limit on memory as it stands; `used` counts against grants that nobody measures."""
        import psutil

        seen = psutil.virtual_memory()
        physical = LimitReading("physical memory", seen.total, seen.total - seen.available)
        return [physical, *(replace(one, used=used) for one in self._granted), *self._read_memory()]

    def quotas(self) -> list[CpuQuota]:
        """Return every limit on processors as it stands."""
        return [_affinity(), *self._granted_cores, *self._read_cores()]


def tightness(limit: LimitReading | CpuQuota) -> float:
    """Order limits of a kind: the tightest, which counts, is the least."""
    return limit.available if isinstance(limit, LimitReading) else limit.cores


def process_memory_limits() -> list[LimitReading]:
    """Return the limits on what a single process may take: they bound one compiler, not all together."""
    soft = {"ulimit -v": process_limit("RLIMIT_AS"), "ulimit -d": process_limit("RLIMIT_DATA")}
    return [LimitReading(name, limit) for name, limit in soft.items() if limit is not None]


def _read_again(
    find: Callable[[], Sequence[Reader[_T]]], clock: Callable[[], float]
) -> Callable[[], list[_T]]:
    """Return what reads limits each time; it finds them now and then, and when one is gone."""
    readers: Sequence[Reader[_T]] = ()
    until = -math.inf

    def read() -> list[_T]:
        nonlocal readers, until
        for due in (clock() >= until, True):
            if due:
                readers, until = find(), clock() + KEPT_SECONDS
            with contextlib.suppress(
                OSError
            ):  # a group is gone: this process has been moved to another one
                return [found for one in readers if (found := one()) is not None]
        return []

    return read


def _affinity() -> CpuQuota:
    if sys.platform == "linux":
        return CpuQuota(
            "processors of this machine given to this process", len(os.sched_getaffinity(0))
        )
    return CpuQuota("processors of this machine", os.cpu_count() or 1)


def _slurm_memory(environ: Mapping[str, str]) -> list[LimitReading]:
    """Read what Slurm granted, in megabytes: not every site confines its jobs by control groups."""
    granted = {
        name: _slurm_number(environ, name) * (_slurm_number(environ, times) if times else 1)
        for name, times in _SLURM_MEMORY.items()
    }
    return [
        LimitReading(name, many * 2**20) for name, many in granted.items() if many
    ]  # 0 is all of the machine


def _slurm_number(environ: Mapping[str, str], name: str) -> int:
    """Return the number that a variable holds; 0 where it holds none that is a grant."""
    return max(0, _number(environ.get(name, "")) or 0)


def groups_memory(groups: Collection[int]) -> dict[int, int]:
    """Return the resident bytes of process groups; one that has ended has none."""
    import psutil

    total = dict.fromkeys(groups, 0)
    for pid in psutil.pids() if total else ():
        try:
            group = os.getpgid(pid)
            if group in total:
                total[group] += _resident(pid)
        except OSError:  # it ended meanwhile
            continue
    return total


def _resident(pid: int) -> int:
    """Return the bytes of a process; raise OSError where it has ended."""
    if _LINUX:
        descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(descriptor, 256).split()[1]) * _PAGE
        finally:
            os.close(descriptor)
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        raise ProcessLookupError from None
