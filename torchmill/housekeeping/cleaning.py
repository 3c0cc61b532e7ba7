"""Remove what shall go, item by item: each under its locks out of sight in one move, then from the disk."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchmill import removal
from torchmill.errors import BusyError, SuiteError
from torchmill.housekeeping import kinds, running, usage
from torchmill.housekeeping.choosing import Criteria, due
from torchmill.housekeeping.hands import Hand
from torchmill.housekeeping.items import Item, Place, nothing
from torchmill.housekeeping.running import Running
from torchmill.housekeeping.usage import Usage, children
from torchmill.removal import GONE

_FRESH = 1.0  # seconds for which a look at the processes is good


@dataclass(slots=True)
class Outcome:
    """What a clean did, or would do."""

    removed: list[tuple[Item, Usage]] = field(default_factory=list)
    kept: list[tuple[Item, str]] = field(default_factory=list)  # and why, as a clause
    total: Usage = field(default_factory=Usage)

    def enter(self, item: Item, taken: Usage) -> None:
        """Note that an item went."""
        if taken.size:  # else another clean was faster
            self.removed.append((item, taken))
            self.total = usage.together((self.total, taken))


def clean(place: Place, said: Criteria, hand: Hand) -> Outcome:
    """Remove what the criteria choose, until enough has come free, and what an interrupted clean left."""
    outcome, lookout = Outcome(), _Lookout()
    hand.tidy(leftovers(place))
    for item in due(kinds.of_all(place, said.kinds), said, time.time()):
        rest = None if said.free is None else said.free - outcome.total.freed
        if rest is not None and rest <= 0:
            break
        why = item.hindrance(lookout.now()) if item.hindrance is not nothing else ""
        if why := why or _removed(item, said, rest, outcome, hand):
            outcome.kept.append((item, why))
    return outcome


def _removed(item: Item, said: Criteria, rest: int | None, outcome: Outcome, hand: Hand) -> str:
    """Remove an item, or of one that goes in parts what frees the rest; return why it stays, or ""."""
    try:
        if item.whole:
            taken = hand.take(item)
        else:
            (folder,) = item.find()
            limit = 0 if rest is None else max(usage.measure([folder]).size - rest, 0)
            taken = hand.trim(folder, said, limit)
    except BusyError as error:
        return running.held(Path(str(error)))
    except SuiteError as error:
        return str(error)
    except OSError as error:
        return f"cannot be removed ({error.strerror or error})"
    outcome.enter(item, taken)
    return ""


def leftovers(place: Place) -> Iterator[Path]:
    """Yield what a clean that was interrupted had put out of sight already, not what one deletes just now."""
    layout = place.layout
    homes = [layout.state, layout.logs, layout.dist, layout.cache, place.environments]
    homes += [*children(layout.sources), *(one for tag in children(layout.trees) for one in children(tag))]
    homes += [*children(layout.cache), layout.images, *_folders(layout.index), *_folders(layout.channel)]
    for home in homes:
        for path in children(home):
            if path.name.startswith(GONE) and not removal.is_being_deleted(path):
                yield path


def _folders(top: Path) -> Iterator[Path]:
    """Yield a folder and all below it."""
    return (Path(folder) for folder, _, _ in os.walk(top))


class _Lookout:
    """Look at the processes now and then, not for each of thousands of files."""

    def __init__(self) -> None:
        self._seen, self._at = Running(), 0.0

    def now(self) -> Running:
        """Return the processes as they are, or were a moment ago."""
        if time.monotonic() - self._at > _FRESH or not self._at:
            self._seen, self._at = running.now(), time.monotonic()
        return self._seen
