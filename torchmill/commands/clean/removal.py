"""What `invoke clean` removes: chosen by kind, age, release and size, then removed or only measured.

Each item is removed under its locks: renamed out of sight in one step, then deleted.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torchmill.commands.clean import in_use
from torchmill.commands.clean.stored import (
    KINDS,
    StorageKind,
    StoragePlace,
    StoredItem,
    find_leftovers,
    items_of_kinds,
    no_hindrance,
)
from torchmill.config.matrix import base_package, find_release, releases_of
from torchmill.config.model import Facts
from torchmill.core.errors import BusyError, ConfigError, TorchmillError
from torchmill.core.files import delete_paths, hold_locks, move_out_of_sight
from torchmill.core.units import parse_bytes, parse_duration
from torchmill.host.disk_usage import DiskBytes, add_up, measure_paths

KIND_NAMES = tuple(kind.name for kind in KINDS if kind.removed != "never")
_PROCESSES_SECONDS = 1.0  # for which a list of the processes is fresh

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CleanCriteria:
    """What to remove; filters are combined with AND."""

    kinds: tuple[StorageKind, ...]
    idle: float | None = None  # seconds since it was last needed
    tags: frozenset[str] | None = None
    free: int | None = None  # bytes that are enough


def parse_criteria(facts: Facts, names: Sequence[str], age: str, release: str, free: str) -> CleanCriteria:
    """Read the filters of `invoke clean`; without any it would remove everything, and is refused.

    Raises ConfigError for a filter that cannot be read, UnknownReleaseError for a tag that no release has.
    """
    if not (names or age or release or free):
        raise ConfigError(
            "invoke clean needs a filter: --kind KIND, --age 30d, --release TAG or --free SIZE; "
            "`invoke status` lists what is stored, and --dry-run removes nothing",
            code="clean-without-filter",
        )
    for name in names:
        if name not in KIND_NAMES:
            raise ConfigError(f"unknown --kind {name}: choose from {', '.join(KIND_NAMES)}", code="unknown-kind")
    return CleanCriteria(
        tuple(kind for kind in KINDS if (kind.name in names if names else kind.removed == "selected")),
        _parse_option("age", age, parse_duration),
        _release_tags(facts, release) if release else None,
        _parse_option("free", free, parse_bytes),
    )


def _parse_option(option: str, text: str, parse: Callable[[str], Value]) -> Value | None:
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise ConfigError(f"invoke clean: --{option}: {error}", code=f"invalid-{option}") from None


def _release_tags(facts: Facts, tag: str) -> frozenset[str]:
    """Return the tags of a release and its partners; for a partner's tag only that."""
    base = base_package(facts).name
    partners = {one.tag for name, releases in facts.releases.items() if name != base for one in releases}
    if tag in partners and all(tag != one.tag for one in facts.releases[base]):
        return frozenset({tag})
    return frozenset(one.tag for one in releases_of(facts, find_release(facts, base, tag)))


def items_to_remove(items: Iterable[StoredItem], criteria: CleanCriteria, now: float) -> list[StoredItem]:
    """Return the items that may go by age and release, least recently needed first.

    A time in the future, which a clock that was set back leaves behind, is no age.
    """
    idle, tags = criteria.idle, criteria.tags
    chosen = (
        item for item in items if (idle is None or now - item.used >= idle) and (tags is None or item.tag in tags)
    )
    return sorted(chosen, key=lambda item: (item.used, item.kind, item.name))


@dataclass(slots=True)
class CleanOutcome:
    """What a clean removed, or would remove."""

    removed: list[tuple[StoredItem, DiskBytes]] = field(default_factory=list)
    kept: list[tuple[StoredItem, str]] = field(default_factory=list)  # and why, as a clause
    total: DiskBytes = field(default_factory=DiskBytes)


def clean_items(place: StoragePlace, criteria: CleanCriteria, dry_run: bool = False) -> CleanOutcome:
    """Remove leftovers, then the items that the criteria choose, until enough bytes are free.

    With `dry_run` they are only measured.
    """
    outcome, processes, listed_at = CleanOutcome(), in_use.RunningProcesses(), float("-inf")
    for path in () if dry_run else find_leftovers(place):
        with contextlib.suppress(OSError):  # what cannot be deleted is in nobody's way
            delete_paths([path])
    for item in items_to_remove(items_of_kinds(place, criteria.kinds), criteria, time.time()):
        if criteria.free is not None and outcome.total.freed >= criteria.free:
            break
        if item.hindrance is not no_hindrance and time.monotonic() - listed_at > _PROCESSES_SECONDS:
            processes, listed_at = in_use.list_processes(), time.monotonic()
        why, size = _remove_unless_used(item, processes, dry_run)
        if why:
            outcome.kept.append((item, why))
        elif size.size:  # else another clean was faster
            outcome.removed.append((item, size))
            outcome.total = add_up((outcome.total, size))
    return outcome


def _remove_unless_used(item: StoredItem, processes: in_use.RunningProcesses, dry_run: bool) -> tuple[str, DiskBytes]:
    """Remove an item under its locks; return why it stays, as a clause, and what it took."""
    size = DiskBytes()
    try:
        why = item.hindrance(processes)
        if not why:
            size = _remove(item, dry_run)
    except BusyError as error:
        why = in_use.lock_holder(Path(str(error)))
    except TorchmillError as error:
        why = str(error)
    except OSError as error:
        why = f"cannot be removed ({error.strerror or error})"
    return why, size


def _remove(item: StoredItem, dry_run: bool) -> DiskBytes:
    """Raise BusyError that names a lock somebody holds, OSError for what cannot be removed."""
    if dry_run:
        with hold_locks(lock for lock in item.locks if lock.exists()):
            return measure_paths(item.find())
    with hold_locks(item.locks):
        renamed = move_out_of_sight(item.find())
    size = measure_paths(renamed)
    delete_paths(renamed)
    return size
