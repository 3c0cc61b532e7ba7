"""The items that `invoke status` lists and `invoke clean` removes; parts of all finders."""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchmill.commands.clean.in_use import RunningProcesses
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout
from torchmill.host.disk_usage import list_children, newest_change

Hindrance = Callable[[RunningProcesses], str]
Finder = Callable[[], Iterable[Path]]


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """Where to look: the folders of a checkout and its user, nox's environments, and the facts."""

    layout: Layout
    environments: Path
    facts: Facts


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One thing that `invoke clean` removes or leaves as a whole."""

    kind: str
    name: str  # within its kind: "v1.13.1/wheel-3.10-cpu"
    find: Finder  # its files and folders now; they may change until its locks are held
    used: float  # when it was last needed, in seconds since the epoch
    tag: str = ""  # of its release; "" for none
    locks: tuple[Path, ...] = ()  # held by whoever uses it
    # Why it must stay for now, as a clause, "" if it may go. None: nothing but its locks says so.
    hindrance: Hindrance | None = None

    def find_hindrance(self, processes: RunningProcesses) -> str:
        """Return why it must stay although nobody holds its locks, as a clause; "" if it may go."""
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
    """Return an item of fixed paths.

    It was last needed when the newest of `touched` changed, by default of its own paths.
    """
    return StoredItem(
        kind,
        name,
        lambda: paths,
        newest_change(tuple(touched) or paths),
        tag,
        tuple(locks),
        hindrance,
    )


def list_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name, without links: their targets are not ours."""
    return [path for path in list_children(folder) if path.is_dir() and not path.is_symlink()]


def list_cells(place: StoragePlace) -> Iterator[tuple[str, Path]]:
    """Yield the tag and the folder of all trees and cells."""
    for tag in list_folders(place.layout.trees):
        for folder in list_folders(tag):
            readable = os.access(folder, os.R_OK | os.X_OK)
            if readable and not folder.name.startswith("."):
                yield tag.name, folder


def build_at_work(place: StoragePlace, *paths: Path) -> Hindrance:
    """Return the hindrance of paths that a build may use, of the checkout or the user's cache."""
    in_cache = all(path.is_relative_to(place.layout.cache) for path in paths)
    folder = place.layout.cache if in_cache else place.layout.root

    def hindrance(processes: RunningProcesses) -> str:
        # A program may outlive its build, such as a server of a compiler cache.
        return processes.build(folder) or processes.within(*paths)

    return hindrance
