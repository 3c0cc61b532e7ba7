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
from typing import NamedTuple, TypeVar

_Limit = TypeVar("_Limit")
Reader = Callable[[], _Limit | None]  # reads a limit anew; raises OSError if its group is gone

REREAD_SECONDS = 10.0  # after which the control groups of this process are looked for again
# After which groups without a limit, as most of them are, are asked for one again.
UNLIMITED_SECONDS = 1.0
_OCTAL = re.compile(r"\\([0-7]{3})")
# A row of memory.stat (version 1): the tightest limit of all ancestors.
_HIDDEN_ROW = "hierarchical_memory_limit"
_UNLIMITED = 2**60  # version 1 writes "no limit" as the largest multiple of a page
# Rows of memory.stat that the kernel gives back on demand, and how much of each. A page cache that
# was read often ("active") goes as readily as one read once: with 900 of 1024 MiB full of either,
# processes get 1008. Mapped files are code that runs, and part of the resident size of processes.
# Of the slab some is in use; version 1 does not say how much of it there is.
_CACHE_V1 = {"total_inactive_file": 1.0, "total_active_file": 1.0, "total_mapped_file": -1.0}
_CACHE_V2 = {"inactive_file": 1.0, "active_file": 1.0, "file_mapped": -1.0, "slab_reclaimable": 0.5}
# Slurm's grants of memory on this node, each with the variable that it is multiplied by
# (https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES).
_SLURM_MEMORY = {
    "SLURM_MEM_PER_NODE": None,
    "SLURM_MEM_PER_CPU": "SLURM_CPUS_ON_NODE",
    "SLURM_MEM_PER_GPU": "SLURM_GPUS_ON_NODE",
}
_MEMORY_FILE = Path("/proc/meminfo")
_MEMORY_ROWS = re.compile(r"^(MemTotal|MemAvailable): +(\d+) kB$", re.MULTILINE)
_ALLOWED_NODES = re.compile(r"^Mems_allowed_list:[ \t]*(\S+)$", re.MULTILINE)  # proc(5)
_NODE_ROWS = re.compile(r"^Node \d+ ([\w()]+): +(\d+) kB$", re.MULTILINE)
_MOST_NODES = 4096  # more than any kernel is built for
# As _CACHE_V2, in the words of a node's meminfo.
_CACHE_OF_NODES = {"Inactive(file)": 1.0, "Active(file)": 1.0, "Mapped": -1.0, "SReclaimable": 0.5}
_KIB = 2**10
_MIB = 2**20
_IS_LINUX = sys.platform == "linux"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if _IS_LINUX else 1
_BLOCK_BYTES = 2**16
_SHORTEST_PIECE_BYTES = 2**10  # that is followed by another one
_LONG_ROWED = {"mountinfo", "cgroup"}
_MOUNT_FIELDS = 5  # before the dash, as proc(5) counts them


@dataclass(frozen=True, slots=True)
class LimitReading:
    """One limit on memory, in bytes, and the memory that counts against it already."""

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
    """One limit on processors: 1.5 is one and a half."""

    source: str
    cores: float

    @property
    def count(self) -> int:
        """Return the processors that can be kept busy, rounded up."""
        return max(1, math.ceil(self.cores))


class _Mount(NamedTuple):
    """A mounted hierarchy of control groups."""

    version: int
    controllers: frozenset[str]
    group: PurePosixPath  # that is mounted
    point: Path


class LimitMeter:
    """Measure, again and again, the memory and processors of this process and its children together.

    Control groups are looked for below `root`, the root of the file system.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._granted_memory = _slurm_memory(environ)
        granted_cores = _slurm_number(environ, "SLURM_CPUS_ON_NODE")
        self._granted_cores: list[CpuQuota] = []
        if granted_cores:
            self._granted_cores.append(CpuQuota("SLURM_CPUS_ON_NODE", granted_cores))
        self._read_memory = _rereading(lambda: memory_limits(root), clock)
        self._read_cores = _rereading(lambda: core_limits(root), clock)

    def memory(self, used: int = 0) -> LimitReading:
        """Return the tightest limit on the memory of children that use `used` bytes together."""
        return min(self.readings(used), key=tightness)

    def cores(self) -> CpuQuota:
        """Return the tightest limit on processors."""
        return min(self.quotas(), key=tightness)

    def readings(self, used: int = 0) -> list[LimitReading]:
        """Return every limit on memory as it is now; `used` counts against Slurm's grants."""
        physical = LimitReading("physical memory", *_physical_memory())
        granted = [replace(grant, used=used) for grant in self._granted_memory]
        return [physical, *granted, *self._read_memory()]

    def quotas(self) -> list[CpuQuota]:
        """Return every limit on processors as it is now."""
        return [_affinity(), *self._granted_cores, *self._read_cores()]


def tightness(limit: LimitReading | CpuQuota) -> float:
    """Return the sort key of a limit: the tightest, which counts, is the least."""
    return limit.available if isinstance(limit, LimitReading) else limit.cores


def memory_limits(root: Path = Path("/")) -> list[Reader[LimitReading]]:
    """Return readers of the limits on this process's memory by control groups and NUMA nodes."""
    readers: list[Reader[LimitReading]] = []
    for version, folders in _hierarchies(root, "memory"):
        for folder in folders:
            readers += _group_memory_readers(version, folder)
        if version == 1:
            hidden = _hidden_limit_reader(folders[-1])
            if hidden is not None:
                readers.append(hidden)
    nodes = _node_memory_reader(root)
    if nodes is not None:
        readers.append(nodes)
    return readers


def core_limits(root: Path = Path("/")) -> list[Reader[CpuQuota]]:
    """Return readers of the limits on this process's processors by control groups."""
    readers: list[Reader[CpuQuota]] = []
    for version, folders in _hierarchies(root, "cpu"):
        for folder in folders:
            if version == 1:
                quota = folder / "cpu.cfs_quota_us"
                period = folder / "cpu.cfs_period_us"
            else:
                quota, period = folder / "cpu.max", None
            if _text(quota):
                readers.append(partial(_quota, quota, period))
    for version, folders in _hierarchies(root, "cpuset"):
        # The effective set of a group lies within those of its ancestors.
        name = "cpuset.effective_cpus" if version == 1 else "cpuset.cpus.effective"
        if _text(folders[0] / name):
            readers.append(partial(_core_set, folders[0] / name))
    return readers


def process_limit(kind: str) -> int | None:
    """Return a limit of this process, such as "RLIMIT_FSIZE" (`ulimit -f`); None without one."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit: int = resource.getrlimit(getattr(resource, kind))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def process_memory_limits() -> list[LimitReading]:
    """Return the limits on the memory of a single process: they bound one compiler, not all."""
    readings = []
    for name, kind in (("ulimit -v", "RLIMIT_AS"), ("ulimit -d", "RLIMIT_DATA")):
        limit = process_limit(kind)
        if limit is not None:
            readings.append(LimitReading(name, limit))
    return readings


def process_room(root: Path = Path("/")) -> int | None:
    """Return how many processes this one and its children may start at most; None for any number.

    `ulimit -u` and control groups limit it. The processes that the user runs already count against
    the former, and are not taken off.
    """
    rooms = []
    by_user = process_limit("RLIMIT_NPROC")
    if by_user is not None:
        rooms.append(by_user)
    for _, folders in _hierarchies(root, "pids"):
        for folder in folders:
            most = _number(_text(folder / "pids.max"))
            if most is not None:
                rooms.append(most - (_number(_text(folder / "pids.current")) or 0))
    return min(rooms, default=None)


def groups_memory(groups: Collection[int]) -> dict[int, int]:
    """Return the resident bytes of each of some process groups; 0 for one that has ended."""
    import psutil

    memory = dict.fromkeys(groups, 0)
    if not memory:
        return memory
    for pid in psutil.pids():
        try:
            group = os.getpgid(pid)
            if group in memory:
                memory[group] += _resident_bytes(pid)
        except OSError:  # it ended meanwhile
            continue
    return memory


def _group_memory_readers(version: int, folder: Path) -> list[Reader[LimitReading]]:
    stat = folder / "memory.stat"
    if version == 1:
        # memsw counts memory that was swapped out as well
        files = []
        for kind in ("memory", "memory.memsw"):
            files.append((folder / f"{kind}.limit_in_bytes", folder / f"{kind}.usage_in_bytes"))
        cache = _CACHE_V1
    else:
        used = folder / "memory.current"
        files = [(folder / "memory.max", used), (folder / "memory.high", used)]
        cache = _CACHE_V2
    readers: list[Reader[LimitReading]] = []
    for limit, used in files:
        if _text(limit):
            readers.append(partial(_memory_limit, limit, used, stat, cache))
    return readers


def _hidden_limit_reader(top: Path) -> Reader[LimitReading] | None:
    """Return a reader of the limit of an ancestor that is not mounted here; None without one.

    The ancestor's own usage cannot be seen, so that of the topmost visible group stands for it.
    """
    stat = top / "memory.stat"
    visible = _number(_text(top / "memory.limit_in_bytes"))
    hidden = _table(_text(stat)).get(_HIDDEN_ROW)
    if visible is None or hidden is None or hidden >= visible:
        return None
    return partial(_memory_limit, stat, top / "memory.usage_in_bytes", stat, _CACHE_V1)


def _memory_limit(
    limit: Path, used: Path, stat: Path, cache: Mapping[str, float]
) -> LimitReading | None:
    """Return the memory that a control group allows; None for no limit.

    `cache` has the rows of `stat` that the kernel gives back on demand. Raises OSError if the group
    is gone.
    """
    text = _read(limit)
    if limit == stat:
        source = f"{limit} ({_HIDDEN_ROW})"
        allowed = _table(text).get(_HIDDEN_ROW)
    else:
        source = str(limit)
        allowed = _number(text)
    if allowed is None or not 0 <= allowed < _UNLIMITED:
        return None
    rows = _table(_text(stat))
    reclaimable = int(sum(share * rows.get(name, 0) for name, share in cache.items()))
    in_use = max(0, _number(_text(used)) or 0)
    return LimitReading(source, allowed, in_use, max(0, min(reclaimable, in_use)))


def _node_memory_reader(root: Path) -> Reader[LimitReading] | None:
    """Return a reader of the memory of the NUMA nodes that this process may use.

    None if it may use all nodes, or if the system does not tell. A control group restricts them by
    cpuset.mems; the kernel then swaps or kills though other nodes have free memory.
    """
    folder = root / "sys/devices/system/node"
    match = _ALLOWED_NODES.search(_text(root / "proc/self/status"))
    allowed = _number_set(match[1]) if match else set[int]()
    nodes = _number_set(_text(folder / "has_memory"))
    usable = sorted(allowed & nodes)
    if not usable or len(usable) == len(nodes):
        return None
    files = [folder / f"node{number}/meminfo" for number in usable]
    shown_nodes = ", ".join(map(str, usable))
    return partial(_node_memory, files, f"memory of NUMA nodes {shown_nodes} (cpuset.mems)")


def _node_memory(files: Sequence[Path], source: str) -> LimitReading | None:
    """Return the memory of some NUMA nodes; None if they do not tell it.

    Raises OSError if a node is gone.
    """
    total = free = 0
    reclaimable = 0.0
    for file in files:
        rows = {name: int(size) * _KIB for name, size in _NODE_ROWS.findall(_read(file))}
        total += rows.get("MemTotal", 0)
        free += rows.get("MemFree", 0)
        reclaimable += sum(share * rows.get(name, 0) for name, share in _CACHE_OF_NODES.items())
    if not 0 <= free <= total or not total:
        return None
    used = total - free
    return LimitReading(source, total, used, max(0, min(int(reclaimable), used)))


def _number_set(text: str) -> set[int]:
    """Return the numbers in a list of the kernel, such as "0-3,8"; none if it is no such list."""
    numbers = set[int]()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        first = _number(low)
        last = _number(high if dash else low)
        if first is None or last is None or not 0 <= first <= last < _MOST_NODES:
            return set()
        numbers.update(range(first, last + 1))
    return numbers


def _quota(file: Path, period_file: Path | None = None) -> CpuQuota | None:
    """Return the processors that a control group allows; None for no limit.

    Without `period_file`, `file` has the period as well.
    """
    quota_text, _, period_text = _read(file).partition(" ")
    if period_file is not None:
        period_text = _text(period_file)
    quota = max(0, _number(quota_text) or 0)
    period = max(0, _number(period_text) or 0)
    return CpuQuota(str(file), quota / period) if quota and period else None


def _core_set(file: Path) -> CpuQuota | None:
    """Return how many processors a control group may use, as in "0-3,8"; None for no such list."""
    count = 0
    for part in _read(file).split(","):
        low, dash, high = part.partition("-")
        first = _number(low)
        last = _number(high if dash else low)
        if first is None or last is None:
            return None
        count += last - first + 1
    return CpuQuota(str(file), count) if count > 0 else None


def _hierarchies(root: Path, controller: str) -> Iterator[tuple[int, list[Path]]]:
    """Yield the version of each hierarchy with a controller, and the folders of its groups.

    They are this process's group and then its ancestors.
    """
    groups = _own_groups(root)
    for mount in dict.fromkeys(_mounts(root)):
        if mount.version == 1 and controller not in mount.controllers:
            continue
        group = groups.get(controller if mount.version == 1 else "")
        if group is None:
            continue
        # The path from the mounted group to ours. If ours is another namespace's, or its names
        # cannot be seen, the mounted group itself is all there is.
        inside: tuple[str, ...] = ()
        if group.is_relative_to(mount.group):
            inside = group.relative_to(mount.group).parts
        if ".." in inside:  # the group lies outside of the namespace
            continue
        depths = range(len(inside), -1, -1)
        yield mount.version, [mount.point.joinpath(*inside[:depth]) for depth in depths]


def _own_groups(root: Path) -> dict[str, PurePosixPath]:
    """Return this process's group by controller; "" stands for version 2."""
    groups: dict[str, PurePosixPath] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        fields = line.split(":", 2)  # "4:cpu,cpuacct:/batch"
        if len(fields) == 3:  # noqa: PLR2004 - hierarchy, controllers, path
            _, controllers, path = fields
            for controller in controllers.split(","):
                groups[controller] = PurePosixPath(path)
    return groups


def _mounts(root: Path) -> Iterator[_Mount]:
    """Yield the mounted hierarchies of control groups, by mountinfo (proc(5))."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        fields = left.split(" ")
        if kind not in {"cgroup", "cgroup2"} or len(fields) < _MOUNT_FIELDS:
            continue
        group, point = map(_unescape, fields[3:5])
        controllers = frozenset(options.rpartition(" ")[2].split(","))
        version = 1 if kind == "cgroup" else 2
        yield _Mount(version, controllers, PurePosixPath(group), root / point.lstrip("/"))


def _unescape(path: str) -> str:
    r"""Return a path of mountinfo, which writes a blank as "\040"."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def _rereading(
    find: Callable[[], Sequence[Reader[_Limit]]], clock: Callable[[], float]
) -> Callable[[], list[_Limit]]:
    """Return a function that reads all limits each time.

    It finds them anew now and then, and if one is gone: the process may have been moved to another
    group.
    """
    readers: Sequence[Reader[_Limit]] = ()
    limiting: Sequence[Reader[_Limit]] = ()  # those that gave a limit when all were read
    expires = -math.inf
    all_due = -math.inf

    def read_all() -> list[_Limit]:
        nonlocal limiting, all_due
        limits = [(reader, reader()) for reader in readers]
        limiting = [reader for reader, limit in limits if limit is not None]
        all_due = clock() + UNLIMITED_SECONDS
        return [limit for _, limit in limits if limit is not None]

    def read() -> list[_Limit]:
        nonlocal readers, expires, all_due
        for must_find in (clock() >= expires, True):
            if must_find:
                readers = find()
                expires = clock() + REREAD_SECONDS
                all_due = -math.inf
            with contextlib.suppress(OSError):
                if clock() >= all_due:
                    return read_all()
                limits = [reader() for reader in limiting]
                return [limit for limit in limits if limit is not None]
        return []

    return read


def _physical_memory() -> tuple[int, int]:
    """Return the bytes of memory that this machine has, and that cannot be had."""
    if _IS_LINUX:
        try:
            rows = _MEMORY_ROWS.findall(_read(_MEMORY_FILE))
        except FileNotFoundError:  # a chroot without /proc; the system call counts no cache
            total = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
            return total, total - os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES
        sizes = {name: int(size) * _KIB for name, size in rows}
        total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
        if 0 < available <= total:  # else an old kernel, or a container's own file
            return total, total - available
    import psutil  # not for every look: it takes four times as long

    memory = psutil.virtual_memory()
    return memory.total, memory.total - memory.available


def _affinity() -> CpuQuota:
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
        return CpuQuota("processors of this machine given to this process", cores)
    return CpuQuota("processors of this machine", os.cpu_count() or 1)


def _slurm_memory(environ: Mapping[str, str]) -> list[LimitReading]:
    """Return the memory that Slurm granted to this job.

    Not every site confines its jobs by control groups, so the kernel may not know the grant. Slurm
    counts in megabytes, and a grant of 0 is all of the machine.
    """
    grants = []
    for name, multiplier in _SLURM_MEMORY.items():
        megabytes = _slurm_number(environ, name)
        if multiplier:
            megabytes *= _slurm_number(environ, multiplier)
        if megabytes:
            grants.append(LimitReading(name, megabytes * _MIB))
    return grants


def _slurm_number(environ: Mapping[str, str], name: str) -> int:
    """Return the number in a variable; 0 if it holds none that is a grant."""
    return max(0, _number(environ.get(name, "")) or 0)


def _resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process. Raises OSError if it has ended."""
    if _IS_LINUX:
        descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(descriptor, 256).split()[1]) * _PAGE_BYTES
        finally:
            os.close(descriptor)
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        raise ProcessLookupError from None


def _read(file: Path) -> str:
    """Return the text of a kernel file. Raises OSError if it cannot be read.

    Not Path.read_text, which takes twice as long, and this is called many times a second.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = block = os.read(descriptor, _BLOCK_BYTES)
        # The kernel gives long files in pieces of whole rows. Without a long row, each is about a page.
        shortest = 0 if file.name in _LONG_ROWED else _SHORTEST_PIECE_BYTES
        while len(block) > shortest:
            block = os.read(descriptor, _BLOCK_BYTES)
            content += block
        return content.decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def _text(file: Path) -> str:
    """Return the text of a kernel file; "" if it cannot be read."""
    try:
        return _read(file)
    except OSError:
        return ""


def _number(text: str) -> int | None:
    """Return the number that a text is; None if it is something else ("max")."""
    try:
        return int(text)
    except ValueError:
        return None


def _table(text: str) -> dict[str, int]:
    """Return the rows of a table of names and numbers, such as memory.stat; others are left out."""
    rows = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        number = _number(value)
        if number is not None:
            rows[name] = number
    return rows
