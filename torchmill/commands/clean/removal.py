"""Remove stored items, or only rehearse it.

Each under its locks, out of sight in one move, then from the disk.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torchmill.commands.clean import in_use, selection
from torchmill.commands.clean.in_use import RunningProcesses
from torchmill.commands.clean.items import StoragePlace, StoredItem, no_hindrance
from torchmill.commands.clean.selection import CleanCriteria, items_to_remove
from torchmill.core import files
from torchmill.core.errors import BusyError, TorchmillError
from torchmill.core.files import DELETED_NAME, delete_paths, hold_locks, move_out_of_sight
from torchmill.core.process import capture
from torchmill.host import disk_usage
from torchmill.host.disk_usage import DiskBytes, list_children

_KILO = 1000  # of ccache's own unit "k"; a limit of none at all means no limit to it


def trim_ccache(program: str | None, folder: Path, said: CleanCriteria, limit: int) -> None:
    """Take from the cache in `folder` what is old enough, all but `limit` bytes, or everything.

    Without a ccache nobody uses it, and it goes as any folder does. Raises CommandError where ccache fails,
    OSError where the folder cannot be removed.
    """
    if program is None:
        files.delete_paths(files.move_out_of_sight(files.list_contents(folder)))
    else:
        capture([program, *ccache_arguments(said, limit)], env=ccache_environment(os.environ, folder, limit))


def ccache_arguments(said: CleanCriteria, limit: int) -> list[str]:
    """Return what ccache is told."""
    if said.idle is not None:
        return ["--evict-older-than", f"{int(said.idle)}s"]
    return ["--cleanup"] if limit >= _KILO else ["--clear"]


def ccache_environment(environ: Mapping[str, str], folder: Path, limit: int) -> dict[str, str]:
    """Return an environment in which ccache works on `folder` alone, whatever the user has set up."""
    own = {name: value for name, value in environ.items() if not name.startswith("CCACHE_")}
    size = {"CCACHE_MAXSIZE": f"{limit // _KILO}k"} if limit >= _KILO else {}
    return {**own, "CCACHE_DIR": str(folder), **size}


class Remover(Protocol):
    """What a clean works with."""

    @property
    def verb(self) -> str:
        """Return what it does to an item."""

    def remove_leftovers(self, paths: Iterable[Path]) -> None:
        """Remove what an interrupted clean left."""

    def remove(self, item: StoredItem) -> DiskBytes:
        """Remove an item, and return what that frees.

        Raises BusyError that names a lock which somebody holds, OSError for what cannot be removed.
        """

    def trim(self, folder: Path, said: CleanCriteria, limit: int) -> DiskBytes:
        """Take from ccache's folder, and return what that frees. Raises SuiteError and OSError."""


@dataclass(frozen=True, slots=True)
class RealRemover:
    """Remove: under locks out of sight, then from the disk."""

    ccache: str | None  # the program
    verb: str = "removed"

    def remove_leftovers(self, paths: Iterable[Path]) -> None:
        """Remove what is out of sight already; what cannot be removed is in nobody's way."""
        for path in paths:
            with contextlib.suppress(OSError):
                delete_paths([path])

    def remove(self, item: StoredItem) -> DiskBytes:
        """Remove an item under its locks; what another clean removes at the same time is that one's."""
        with hold_locks(item.locks):
            away = move_out_of_sight(item.find())
        taken = disk_usage.measure_paths(away)
        delete_paths(away)
        return taken

    def trim(self, folder: Path, said: CleanCriteria, limit: int) -> DiskBytes:
        """Let ccache take from its folder."""
        before = disk_usage.measure_paths([folder])
        trim_ccache(self.ccache, folder, said, limit)
        after = disk_usage.measure_paths([folder])
        return DiskBytes(max(before.size - after.size, 0), max(before.files - after.files, 0))


@dataclass(frozen=True, slots=True)
class DryRun:
    """Remove nothing."""

    verb: str = "would be removed"

    def remove_leftovers(self, paths: Iterable[Path]) -> None:
        """Leave what an interrupted clean left."""

    def remove(self, item: StoredItem) -> DiskBytes:
        """Only see whether somebody holds a lock of it."""
        with hold_locks(lock for lock in item.locks if lock.exists()):
            return disk_usage.measure_paths(item.find())

    def trim(self, folder: Path, said: CleanCriteria, limit: int) -> DiskBytes:
        """Return what ccache would take: it sets the time of a file anew whenever it is used."""
        if said.idle is None:
            return DiskBytes(max(disk_usage.measure_paths([folder]).size - limit, 0), 1)
        before = time.time() - said.idle
        files = (path for path in folder.rglob("*") if path.is_file())
        return disk_usage.measure_paths(path for path in files if path.stat().st_mtime < before)


_FRESH = 1.0  # seconds for which a look at the processes is good


@dataclass(slots=True)
class CleanOutcome:
    """What a clean did, or would do."""

    removed: list[tuple[StoredItem, DiskBytes]] = field(default_factory=list)
    kept: list[tuple[StoredItem, str]] = field(default_factory=list)  # and why, as a clause
    total: DiskBytes = field(default_factory=DiskBytes)

    def add(self, item: StoredItem, taken: DiskBytes) -> None:
        """Note that an item went."""
        if taken.size:  # else another clean was faster
            self.removed.append((item, taken))
            self.total = disk_usage.add_up((self.total, taken))


def clean_items(place: StoragePlace, said: CleanCriteria, hand: Remover) -> CleanOutcome:
    """Remove what the criteria choose, until enough has come free, and what an interrupted clean left."""
    outcome, lookout = CleanOutcome(), _Lookout()
    hand.remove_leftovers(find_leftovers(place))
    for item in items_to_remove(selection.items_of_kinds(place, said.kinds), said, time.time()):
        rest = None if said.free is None else said.free - outcome.total.freed
        if rest is not None and rest <= 0:
            break
        why = item.hindrance(lookout.now()) if item.hindrance is not no_hindrance else ""
        if why := why or _removed(item, said, rest, outcome, hand):
            outcome.kept.append((item, why))
    return outcome


def _removed(
    item: StoredItem, said: CleanCriteria, rest: int | None, outcome: CleanOutcome, hand: Remover
) -> str:
    """Remove an item, or of one that goes in parts what frees the rest; return why it stays, or ""."""
    try:
        if item.whole:
            taken = hand.remove(item)
        else:
            (folder,) = item.find()
            limit = 0 if rest is None else max(disk_usage.measure_paths([folder]).size - rest, 0)
            taken = hand.trim(folder, said, limit)
    except BusyError as error:
        return in_use.lock_holder(Path(str(error)))
    except TorchmillError as error:
        return str(error)
    except OSError as error:
        return f"cannot be removed ({error.strerror or error})"
    outcome.add(item, taken)
    return ""


def find_leftovers(place: StoragePlace) -> Iterator[Path]:
    """Yield what a clean that was interrupted had put out of sight already, not what one deletes just now."""
    layout = place.layout
    homes = [layout.state, layout.logs, layout.dist, layout.cache, place.environments]
    homes += [
        *list_children(layout.sources),
        *(one for tag in list_children(layout.trees) for one in list_children(tag)),
    ]
    homes += [*list_children(layout.cache), layout.images, *_folders(layout.index), *_folders(layout.channel)]
    for home in homes:
        for path in list_children(home):
            if path.name.startswith(DELETED_NAME) and not files.is_being_deleted(path):
                yield path


def _folders(top: Path) -> Iterator[Path]:
    """Yield a folder and all below it."""
    return (Path(folder) for folder, _, _ in os.walk(top))


class _Lookout:
    """Look at the processes now and then, not for each of thousands of files."""

    def __init__(self) -> None:
        self._seen, self._at = RunningProcesses(), 0.0

    def now(self) -> RunningProcesses:
        """Return the processes as they are, or were a moment ago."""
        if time.monotonic() - self._at > _FRESH or not self._at:
            self._seen, self._at = in_use.list_processes(), time.monotonic()
        return self._seen
