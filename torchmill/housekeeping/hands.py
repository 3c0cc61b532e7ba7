"""What removes, and what only does as if."""

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchmill import removal
from torchmill.housekeeping import ccache, usage
from torchmill.housekeeping.choosing import Criteria
from torchmill.housekeeping.items import Item
from torchmill.housekeeping.usage import Usage


class Hand(Protocol):
    """What a clean works with."""

    @property
    def verb(self) -> str:
        """Return what it does to an item."""

    def tidy(self, paths: Iterable[Path]) -> None:
        """Remove what an interrupted clean left."""

    def take(self, item: Item) -> Usage:
        """Remove an item, and return what that frees.

        Raises BusyError that names a lock which somebody holds, OSError for what cannot be removed.
        """

    def trim(self, folder: Path, said: Criteria, limit: int) -> Usage:
        """Take from ccache's folder, and return what that frees. Raises SuiteError and OSError."""


@dataclass(frozen=True, slots=True)
class Removing:
    """Remove: under locks out of sight, then from the disk."""

    ccache: str | None  # the program
    verb: str = "removed"

    def tidy(self, paths: Iterable[Path]) -> None:
        """Remove what is out of sight already; what cannot be removed is in nobody's way."""
        for path in paths:
            with contextlib.suppress(OSError):
                removal.delete([path])

    def take(self, item: Item) -> Usage:
        """Remove an item under its locks; what another clean removes at the same time is that one's."""
        with removal.holding(item.locks):
            away = removal.put_away(item.find())
        taken = usage.measure(away)
        removal.delete(away)
        return taken

    def trim(self, folder: Path, said: Criteria, limit: int) -> Usage:
        """Let ccache take from its folder."""
        before = usage.measure([folder])
        ccache.take(self.ccache, folder, said, limit)
        after = usage.measure([folder])
        return Usage(max(before.size - after.size, 0), max(before.files - after.files, 0))


@dataclass(frozen=True, slots=True)
class Rehearsing:
    """Remove nothing."""

    verb: str = "would be removed"

    def tidy(self, paths: Iterable[Path]) -> None:
        """Leave what an interrupted clean left."""

    def take(self, item: Item) -> Usage:
        """Only see whether somebody holds a lock of it."""
        with removal.holding(lock for lock in item.locks if lock.exists()):
            return usage.measure(item.find())

    def trim(self, folder: Path, said: Criteria, limit: int) -> Usage:
        """Return what ccache would take: it sets the time of a file anew whenever it is used."""
        if said.idle is None:
            return Usage(max(usage.measure([folder]).size - limit, 0), 1)
        before = time.time() - said.idle
        files = (path for path in folder.rglob("*") if path.is_file())
        return usage.measure(path for path in files if path.stat().st_mtime < before)
