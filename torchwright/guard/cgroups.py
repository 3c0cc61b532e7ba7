"""What the control groups of this process allow it, in their first and second version.

A group is confined by every ancestor, and an ancestor's usage includes siblings, so each level is a
reading of its own. `root` stands for the file system's root: tests give a made-up one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_OCTAL = re.compile(r"\\([0-7]{3})")
_UNLIMITED = 2**60  # version 1 writes "no limit" as the largest multiple of a page


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
class _Mount:
    version: int
    controllers: frozenset[str]
    base: PurePosixPath  # the group that is mounted
    point: Path  # where


def memory_readings(root: Path = Path("/")) -> list[Reading]:
    """Return every memory limit that some control group sets on this process."""
    return [
        reading
        for version, folder in _folders(root, "memory")
        for reading in (_memory_v1 if version == 1 else _memory_v2)(folder)
    ]


def quotas(root: Path = Path("/")) -> list[Quota]:
    """Return every processor quota that some control group sets on this process."""
    found = ((_quota_v1 if version == 1 else _quota_v2)(folder) for version, folder in _folders(root, "cpu"))
    return [quota for quota in found if quota is not None]


def _memory_v1(folder: Path) -> Iterator[Reading]:
    stat = _table(folder / "memory.stat")
    used = _number(folder / "memory.usage_in_bytes") or 0
    reclaimable = stat.get("total_inactive_file", 0)
    limit = _number(folder / "memory.limit_in_bytes")
    if limit is not None and limit < _UNLIMITED:
        yield Reading(str(folder / "memory.limit_in_bytes"), limit, used, reclaimable)
    # an ancestor that is not mounted here; its own usage is not to be seen
    above = stat.get("hierarchical_memory_limit", _UNLIMITED)
    if above < min(limit or _UNLIMITED, _UNLIMITED):
        yield Reading(f"{folder / 'memory.stat'} (hierarchical_memory_limit)", above, used, reclaimable)


def _memory_v2(folder: Path) -> Iterator[Reading]:
    used = _number(folder / "memory.current") or 0
    reclaimable = _table(folder / "memory.stat").get("inactive_file", 0)
    for name in ("memory.max", "memory.high"):
        limit = _number(folder / name)
        if limit is not None:
            yield Reading(str(folder / name), limit, used, reclaimable)


def _quota_v1(folder: Path) -> Quota | None:
    quota = _number(folder / "cpu.cfs_quota_us")
    period = _number(folder / "cpu.cfs_period_us")
    if quota is None or quota <= 0 or not period:
        return None
    return Quota(str(folder / "cpu.cfs_quota_us"), quota / period)


def _quota_v2(folder: Path) -> Quota | None:
    quota, _, period = (_text(folder / "cpu.max") or "max 100000").partition(" ")
    if not quota.isdigit() or not period.isdigit() or not int(period):
        return None
    return Quota(str(folder / "cpu.max"), int(quota) / int(period))


def _folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield this process's group in each hierarchy that may hold the controller, then its ancestors."""
    groups = _groups(root)
    for mount in _mounts(root):
        if mount.version == 1 and controller not in mount.controllers:
            continue
        group = groups.get(controller if mount.version == 1 else "")
        if group is None:
            continue
        # a group outside what is mounted (another namespace's path) leaves only the mount itself
        below = group.relative_to(mount.base).parts if group.is_relative_to(mount.base) else ()
        for depth in range(len(below), -1, -1):
            yield mount.version, mount.point.joinpath(*below[:depth])


def _groups(root: Path) -> dict[str, PurePosixPath]:
    """Return this process's group by controller; "" stands for version 2."""
    groups = {}
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = PurePosixPath(path)
    return groups


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in (_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        base, point = (_unescape(field) for field in left.split(" ")[3:5])
        yield _Mount(
            version=1 if kind == "cgroup" else 2,
            controllers=frozenset(options.rpartition(" ")[2].split(",")),
            base=PurePosixPath(base),
            point=root / point.lstrip("/"),
        )


def _unescape(field: str) -> str:
    """Return a path as it is: mountinfo writes a blank as a backslash and 040."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def _text(file: Path) -> str | None:
    """Return a kernel file's text; None where it is not there, or not for us."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(file: Path) -> int | None:
    """Return a kernel file's number; None where there is none ("max")."""
    text = _text(file) or ""
    return int(text) if text.lstrip("-").isdigit() else None


def _table(file: Path) -> dict[str, int]:
    rows = (line.partition(" ") for line in (_text(file) or "").splitlines())
    return {name: int(value) for name, _, value in rows if value.isdigit()}
