"""`invoke status` and `invoke clean`."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from json import dumps

from torchmill.commands.clean import in_use, removal, selection
from torchmill.commands.clean.items import StoragePlace, StoredItem
from torchmill.commands.clean.removal import DryRun, RealRemover, Remover
from torchmill.commands.clean.report import CleanReport, DiskUsage, StorageStatus, StoredUsage
from torchmill.commands.command import CommandOutput, TaskCommand
from torchmill.config.model import Facts
from torchmill.core.paths import Layout, nox_environments_folder
from torchmill.host import disk_usage

_THREADS = 8  # a disk answers several at a time


@dataclass(frozen=True, slots=True)
class CleanOptions:
    """What a user said to `invoke clean`."""

    kinds: tuple[str, ...]
    age: str
    release: str
    free: str
    rehearsal: bool


def measure_storage(facts: Facts, layout: Layout) -> StorageStatus:
    """Measure everything that is stored for this checkout and this user."""
    where = StoragePlace(layout, nox_environments_folder(), facts)
    items = list(selection.items_of_kinds(where, selection.KINDS))
    now = in_use.list_processes()
    with ThreadPoolExecutor(_THREADS) as threads:
        taken = list(threads.map(lambda item: disk_usage.measure_paths(item.find()), items))
    busy = [_busy(item, now) for item in items]  # one after the other: some have a lock in common
    left = disk_usage.measure_paths(removal.find_leftovers(where)).size
    stored = [StoredUsage(*row) for row in zip(items, taken, busy, strict=True)]
    return StorageStatus(stored, _disks(where), left, time.time())


def _busy(item: StoredItem, now: in_use.RunningProcesses) -> str:
    return in_use.find_occupant(item.locks) or item.hindrance(now)


def _disks(where: StoragePlace) -> list[DiskUsage]:
    """Return the disks on which something is kept, each once."""
    found: dict[int, DiskUsage] = {}
    for folder in (where.layout.state, where.layout.dist, where.environments, where.layout.cache):
        if folder.is_dir():
            room = shutil.disk_usage(folder)
            found.setdefault(folder.stat().st_dev, DiskUsage(folder, room.total, room.free))
    return list(found.values())


def clean_storage(said: CleanOptions, facts: Facts, layout: Layout) -> CleanReport:
    """Remove what is meant and what an interrupted clean left, but for what is in use.

    Raises ConfigError and UnknownReleaseError for orders that have no sense.
    """
    meant = selection.parse_criteria(facts, said.kinds, said.age, said.release, said.free)
    hand: Remover = DryRun() if said.rehearsal else RealRemover(shutil.which("ccache"))
    outcome = removal.clean_items(StoragePlace(layout, nox_environments_folder(), facts), meant, hand)
    return CleanReport(outcome, hand.verb, layout.root, meant.free)


def show_status(facts: Facts, layout: Layout, json: bool = False) -> str:
    """Show what is stored where and how big, and who uses it."""
    storage = measure_storage(facts, layout)
    return dumps(storage.as_data(), indent=1) if json else storage.as_text()


def clean(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    kind: list[str] | None = None,
    age: str = "",
    release: str = "",
    free: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> CommandOutput:
    """Remove what can be made again, by kind, age, release or size, and nothing that is in use."""
    report = clean_storage(CleanOptions(tuple(kind or ()), age, release, free, dry_run), facts, layout)
    return CommandOutput(dumps(report.as_data(), indent=1) if json else report.as_text(), report.require)


STATUS = TaskCommand(show_status, {"json": "print JSON"})
CLEAN = TaskCommand(
    clean,
    {
        "kind": f"only this: {', '.join(selection.NAMES)}; may be repeated",
        "age": "only what nobody needed for so long, such as 30d, 2w, 12h",
        "release": "only what is of this release and its partners, such as v1.13.1",
        "free": "no more than it takes to free so much, such as '20 GiB', least recently needed first",
        "dry_run": "remove nothing, and say what would go",
        "json": "print JSON",
    },
    repeated=("kind",),
)
