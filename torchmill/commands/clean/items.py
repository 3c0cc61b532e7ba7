"""The things that are stored, as `status` and `clean` see them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torchmill.commands.clean.in_use import RunningProcesses
from torchmill.config.model import Facts
from torchmill.core.paths import Layout

Hindrance = Callable[[RunningProcesses], str]
Finder = Callable[[], Iterable[Path]]


def no_hindrance(_: RunningProcesses) -> str:
    """Return that nothing but its locks keeps an item."""
    return ""


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """Where everything is: what was made here and what the user's caches hold, and the facts about it."""

    layout: Layout
    environments: Path
    facts: Facts


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One thing that is kept, and can be made again."""

    kind: str
    name: str  # within its kind: "v1.13.1/wheel-3.10-cpu"
    find: Finder  # the files and folders that it consists of now: before its locks are held they may change
    used: float  # when it was needed last, in seconds since the epoch
    tag: str = ""  # the release that it is of; "" where it is of none
    locks: tuple[Path, ...] = ()  # that everybody holds who uses it
    hindrance: Hindrance = no_hindrance  # why it must stay for now, as a clause; "" where nothing says so
    whole: bool = True  # else a program of its own takes from it what is old enough, or too much


def fixed_paths(*paths: Path) -> Finder:
    """Return a finder of what always consists of the same."""
    return lambda: paths
