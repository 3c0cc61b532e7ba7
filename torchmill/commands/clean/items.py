"""The items that `invoke status` lists and `invoke clean` removes, and functions of all finders.

A *finder* (cache_items, checkout_items) yields the items of one kind. An item is not removed while
somebody holds one of its *locks*, or while its *hindrance* has a reason, such as a running build
that may use it.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchmill.commands.clean.in_use import RunningProcesses
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout
from torchmill.host.disk_usage import list_children, newest_change

# Returns why an item must stay for now, as a clause; "" if it may go.
Hindrance = Callable[[RunningProcesses], str]
# Returns the files and folders of an item, as they are now.
Finder = Callable[[], Iterable[Path]]


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """The folders with stored items, and the facts by which items are told apart."""

    layout: Layout
    environments: Path  # nox's folder of environments
    facts: Facts


@dataclass(frozen=True, slots=True)
class StoredItem:
    """Files and folders that `invoke clean` removes or leaves together."""

    kind: str
    name: str  # within its kind: "v1.13.1/wheel-3.10-cpu"
    find: Finder  # called again once the locks are held, because builds may have changed the files
    used: float  # when the item was last needed, in seconds since the epoch
    tag: str = ""  # of its release; "" for none
    locks: tuple[Path, ...] = ()  # that each user of the item holds
    hindrance: Hindrance | None = None  # None: the locks alone show whether it is in use

    def find_hindrance(self, processes: RunningProcesses) -> str:
        """Return why the item must stay, whoever holds its locks, as a clause; "" if it may go."""
        return self.hindrance(processes) if self.hindrance else ""


def stored(
    kind: str,
    name: str,
    *paths: Path,
    touched: Iterable[Path] = (),
    tag: str = "",
    locks: Iterable[Path] = (),
    hindrance: Hindrance | None = None,
) -> StoredItem:
    """Return an item whose paths do not change.

    Its last use is the newest change of `touched`, by default of its own paths.
    """
    return StoredItem(
        kind=kind,
        name=name,
        find=lambda: paths,
        used=newest_change(tuple(touched) or paths),
        tag=tag,
        locks=tuple(locks),
        hindrance=hindrance,
    )


def list_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name. Links are left out: they may lead anywhere."""
    return [path for path in list_children(folder) if path.is_dir() and not path.is_symlink()]


def list_cells(place: StoragePlace) -> Iterator[tuple[str, Path]]:
    """Yield the tag and the folder of each cell, and of each tree that several cells share.

    Folders that are hidden or that this user may not read are left out.
    """
    for tag in list_folders(place.layout.trees):
        for folder in list_folders(tag):
            readable = os.access(folder, os.R_OK | os.X_OK)
            if readable and not folder.name.startswith("."):
                yield tag.name, folder


def build_at_work(place: StoragePlace, *paths: Path) -> Hindrance:
    """Return the hindrance of paths that any build with the same checkout or cache may use."""
    in_cache = all(path.is_relative_to(place.layout.cache) for path in paths)
    folder = place.layout.cache if in_cache else place.layout.root

    def hindrance(processes: RunningProcesses) -> str:
        # A program in these paths may go on after its build, such as a server of a compiler cache.
        return processes.building_with(folder) or processes.using(*paths)

    return hindrance
