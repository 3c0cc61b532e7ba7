"""What is stored and what a clean removed, as text and as JSON."""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmill.commands.clean.items import StoredItem
from torchmill.commands.clean.removal import CleanOutcome
from torchmill.commands.clean.selection import KINDS
from torchmill.core import console
from torchmill.core.errors import HostError
from torchmill.core.units import format_bytes, format_duration
from torchmill.host import disk_usage
from torchmill.host.disk_usage import DiskBytes

_LONGEST = 60  # characters of a name
_NAMED = 8  # of a kind, the largest; the others are counted


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """An item, what it takes, and who uses it."""

    item: StoredItem
    usage: DiskBytes
    busy: str = ""  # as a clause


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """A disk on which something is kept."""

    folder: Path  # by which the user knows it
    total: int  # bytes
    free: int


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """What is stored where and how big."""

    stored: Sequence[StoredUsage]
    disks: Sequence[DiskUsage]
    leftovers: int  # bytes that an interrupted clean left
    now: float

    def as_text(self) -> str:
        """Return a table for each kind of which there is something, and the room on each disk."""
        total = disk_usage.add_up(one.usage for one in self.stored).size
        lines = [_table(self.stored, self.now)] if self.stored else []
        lines += [
            f"{format_bytes(total)} in all; a file with several names counts wherever it is, and once here"
        ]
        if self.leftovers:
            lines.append(
                f"{format_bytes(self.leftovers)} left by a clean that was interrupted: any clean removes it"
            )
        lines += [
            f"{one.folder}: {format_bytes(one.free)} of {format_bytes(one.total)} free on its disk"
            for one in self.disks
        ]
        return "\n".join(lines)

    def as_data(self) -> dict[str, Any]:
        """Return the same as JSON-ready data."""
        return {
            "stored": [_data(one) for one in self.stored],
            "size": disk_usage.add_up(one.usage for one in self.stored).size,
            "leftovers": self.leftovers,
            "disks": [
                {"folder": str(one.folder), "total": one.total, "free": one.free} for one in self.disks
            ],
        }


def _table(stored: Sequence[StoredUsage], now: float) -> str:
    rows: list[tuple[str, ...]] = []
    for kind in KINDS:
        mine = [one for one in stored if one.item.kind == kind.name]
        if mine:
            size = format_bytes(disk_usage.add_up(one.usage for one in mine).size)
            rows += [(kind.name, size, "", f"gone: {kind.cost}"), *_rows(mine, now), ("",)]
    padded = ((*row, *[""] * (4 - len(row))) for row in rows)
    return console.format_table(("kept", "size", "needed last", ""), padded)


def _rows(stored: Sequence[StoredUsage], now: float) -> Iterator[tuple[str, ...]]:
    ordered = sorted(stored, key=lambda one: -one.usage.size)
    shown = ordered if len(ordered) <= _NAMED + 1 else ordered[:_NAMED]
    for one in shown:
        yield f"  {_short(one.item.name)}", format_bytes(one.usage.size), _ago(one.item.used, now), one.busy
    rest = ordered[len(shown) :]
    if rest:
        size = disk_usage.add_up(one.usage for one in rest).size
        used = max(one.item.used for one in rest)
        yield f"  and {len(rest)} more", format_bytes(size), _ago(used, now), ""


def _short(name: str) -> str:
    """Return a name that leaves room beside it; what lies in caches is named by long digests."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"


def _ago(used: float, now: float) -> str:
    return f"{format_duration(max(now - used, 0))} ago" if used else "not known"


def _data(one: StoredUsage) -> dict[str, Any]:
    return {
        "kind": one.item.kind,
        "name": one.item.name,
        "paths": [str(path) for path in one.item.find()],
        "tag": one.item.tag,
        "size": one.usage.size,
        "files": one.usage.files,
        "used": round(one.item.used),
        "busy": one.busy,
    }


@dataclass(frozen=True, slots=True)
class CleanReport:
    """What a clean did, or would do."""

    outcome: CleanOutcome
    verb: str  # "removed", "would be removed"
    place: Path
    free: int | None  # bytes that should come free

    def require(self) -> None:
        """Raise HostError unless as much came free as was wanted, or would."""
        if self.free is not None and self.outcome.total.freed < self.free:
            raise HostError(
                f"only {format_bytes(self.outcome.total.freed)} of {format_bytes(self.free)} can come free: "
                "name more with --kind (compilers, history and wheels go only where named), or wait until "
                "what is in use is not"
            )

    def as_text(self) -> str:
        """Return what went and what stays, and the room that there is now."""
        now = time.time()
        stored = [StoredUsage(item, taken) for item, taken in self.outcome.removed]
        lines = []
        for kind in KINDS:
            mine = [one for one in stored if one.item.kind == kind.name]
            lines += [(f"{self.verb}: {kind.name}",), *_rows(mine, now)] if mine else []
        padded = ((*row[:3], *[""] * (3 - len(row[:3]))) for row in lines)
        table = [console.format_table(("", "size", "needed last"), padded)] if lines else []
        kept = [f"kept: {item.kind} {item.name}: {why}" for item, why in self.outcome.kept]
        return "\n".join([*table, *kept, self._summary()])

    def _summary(self) -> str:
        room = format_bytes(shutil.disk_usage(disk_usage.nearest_existing(self.place)).free)
        freed = format_bytes(self.outcome.total.freed)
        if self.verb == "removed":
            return f"{freed} freed; {room} are free on the disk of {self.place}"
        return f"{freed} would come free; {room} are free on the disk of {self.place}"

    def as_data(self) -> dict[str, Any]:
        """Return the same as JSON-ready data."""
        return {
            self.verb.replace(" ", "_"): [
                _data(StoredUsage(item, taken)) for item, taken in self.outcome.removed
            ],
            "kept": [{"kind": item.kind, "name": item.name, "why": why} for item, why in self.outcome.kept],
            "freed": self.outcome.total.freed,
        }
