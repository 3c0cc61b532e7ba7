"""Answer `invoke status` and `invoke clean`."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from torchmill.housekeeping import choosing, cleaning, kinds, running, usage
from torchmill.housekeeping.hands import Hand, Rehearsing, Removing
from torchmill.housekeeping.items import Item, Place
from torchmill.housekeeping.told import Disk, Report, Status, Stored
from torchmill.layout import Layout, environments
from torchmill.model import Facts

STATUS_HELP = {"json": "print JSON"}
CLEAN_HELP = {
    "kind": f"only this: {', '.join(kinds.NAMES)}; may be repeated",
    "age": "only what nobody needed for so long, such as 30d, 2w, 12h",
    "release": "only what is of this release and its partners, such as v1.13.1",
    "free": "no more than it takes to free so much, such as '20 GiB', least recently needed first",
    "dry_run": "remove nothing, and say what would go",
    "json": "print JSON",
}
_THREADS = 8  # a disk answers several at a time


@dataclass(frozen=True, slots=True)
class Orders:
    """What a user said to `invoke clean`."""

    kinds: tuple[str, ...]
    age: str
    release: str
    free: str
    rehearsal: bool


def status(facts: Facts, layout: Layout) -> Status:
    """Measure everything that is stored for this checkout and this user."""
    where = Place(layout, environments(), facts)
    items = list(kinds.of_all(where, kinds.KINDS))
    now = running.now()
    with ThreadPoolExecutor(_THREADS) as threads:
        taken = list(threads.map(lambda item: usage.measure(item.find()), items))
    busy = [_busy(item, now) for item in items]  # one after the other: some have a lock in common
    left = usage.measure(cleaning.leftovers(where)).size
    stored = [Stored(*row) for row in zip(items, taken, busy, strict=True)]
    return Status(stored, _disks(where), left, time.time())


def _busy(item: Item, now: running.Running) -> str:
    return running.occupant(item.locks) or item.hindrance(now)


def _disks(where: Place) -> list[Disk]:
    """Return the disks on which something is kept, each once."""
    found: dict[int, Disk] = {}
    for folder in (where.layout.state, where.layout.dist, where.environments, where.layout.cache):
        if folder.is_dir():
            room = shutil.disk_usage(folder)
            found.setdefault(folder.stat().st_dev, Disk(folder, room.total, room.free))
    return list(found.values())


def clean(said: Orders, facts: Facts, layout: Layout) -> Report:
    """Remove what is meant and what an interrupted clean left, but for what is in use.

    Raises ConfigError and UnknownReleaseError for orders that have no sense.
    """
    meant = choosing.criteria(facts, said.kinds, said.age, said.release, said.free)
    hand: Hand = Rehearsing() if said.rehearsal else Removing(shutil.which("ccache"))
    outcome = cleaning.clean(Place(layout, environments(), facts), meant, hand)
    return Report(outcome, hand.verb, layout.root, meant.free)
