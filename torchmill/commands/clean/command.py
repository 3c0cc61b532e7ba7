"""`invoke status` lists what is stored and how big it is; `invoke clean` removes what its filters choose."""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torchmill.commands.clean import in_use, stored
from torchmill.commands.clean.stored import KINDS, StorageKind, StoragePlace, StoredItem
from torchmill.commands.command import CommandOutput
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package, find_release, releases_of
from torchmill.core.console import format_table
from torchmill.core.deletion import delete_paths, move_out_of_sight
from torchmill.core.errors import BusyError, ConfigError, HostError, parse_option, require_choice
from torchmill.core.locks import hold_locks
from torchmill.core.paths import Layout, nox_environments_folder
from torchmill.core.system_errors import nearest_existing
from torchmill.core.units import format_bytes, format_duration, parse_bytes, parse_duration
from torchmill.host.disk_usage import DiskBytes, add_up, measure_paths

_THREADS = 8  # a disk answers several at a time
_NAME_CHARACTERS = 60  # of a name that a table shows
_SHOWN_ITEMS = 8  # of a kind, the largest; the others are counted
KIND_NAMES = tuple(kind.name for kind in KINDS if kind.removed != "never")
_PROCESSES_SECONDS = 1.0  # for which a list of the processes is fresh


@dataclass(frozen=True, slots=True)
class CleanCriteria:
    """What to remove; filters are combined with AND."""

    kinds: tuple[StorageKind, ...]
    idle: float | None = None  # seconds since it was last needed
    tags: frozenset[str] | None = None
    free: int | None = None  # bytes that are enough


def parse_criteria(
    facts: Facts, names: Sequence[str], age: str, release: str, free: str
) -> CleanCriteria:
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
        require_choice("--kind", name, KIND_NAMES, "unknown-kind")
    idle = parse_option("invoke clean: --age", age, parse_duration, "invalid-age") if age else None
    enough = (
        parse_option("invoke clean: --free", free, parse_bytes, "invalid-free") if free else None
    )
    kinds = tuple(
        kind for kind in KINDS if (kind.name in names if names else kind.removed == "selected")
    )
    return CleanCriteria(kinds, idle, _release_tags(facts, release) if release else None, enough)


def _release_tags(facts: Facts, tag: str) -> frozenset[str]:
    """Return the tags of a release and of the partners that pair with it alone; for a partner's tag only that.

    A release of an extension goes with several releases of torch, and its tag may be that of another torch.
    """
    base = base_package(facts).name
    partners = {
        one.tag for name, releases in facts.releases.items() if name != base for one in releases
    }
    if tag in partners and all(tag != one.tag for one in facts.releases[base]):
        return frozenset({tag})
    paired = releases_of(facts, find_release(facts, base, tag))
    return frozenset(
        release.tag for release in paired if not facts.packages[release.package].editions
    )


@dataclass(slots=True)
class CleanOutcome:
    """What a clean removed, or would remove."""

    removed: list[tuple[StoredItem, DiskBytes]] = field(default_factory=list)
    kept: list[tuple[StoredItem, str]] = field(default_factory=list)  # and why, as a clause
    total: DiskBytes = field(default_factory=DiskBytes)


def clean_items(
    place: StoragePlace, criteria: CleanCriteria, dry_run: bool = False
) -> CleanOutcome:
    """Remove leftovers, then the items that the criteria choose, least recently needed first, until enough is free.

    With `dry_run` they are only measured.
    """
    outcome, processes, listed_at = CleanOutcome(), in_use.RunningProcesses(), float("-inf")
    for path in () if dry_run else stored.find_leftovers(place):
        with contextlib.suppress(OSError):  # what cannot be deleted is in nobody's way
            delete_paths([path])
    # A time in the future, which a clock that was set back leaves behind, is no age.
    idle, tags, now = criteria.idle, criteria.tags, time.time()
    items = (
        one
        for kind in criteria.kinds
        for one in kind.find(place)
        if tags is None or one.tag in tags
    )
    chosen = [item for item in items if idle is None or now - item.used >= idle]
    for item in sorted(chosen, key=lambda item: (item.used, item.kind, item.name)):
        if criteria.free is not None and outcome.total.freed >= criteria.free:
            break
        if item.hindrance and time.monotonic() - listed_at > _PROCESSES_SECONDS:
            processes, listed_at = in_use.list_processes(), time.monotonic()
        why, size = _remove_unless_used(item, processes, dry_run)
        if why:
            outcome.kept.append((item, why))
        elif size.size:  # else another clean was faster
            outcome.removed.append((item, size))
            outcome.total = add_up((outcome.total, size))
    return outcome


def _remove_unless_used(
    item: StoredItem, processes: in_use.RunningProcesses, dry_run: bool
) -> tuple[str, DiskBytes]:
    """Remove an item under its locks, or only measure it; return why it stays, as a clause, and what it took."""
    size = DiskBytes()
    try:
        why = item.find_hindrance(processes)
        if not why and dry_run:
            with hold_locks(lock for lock in item.locks if lock.exists()):
                size = measure_paths(item.find())
        elif not why:
            with hold_locks(item.locks):
                renamed = move_out_of_sight(item.find())
            size = measure_paths(renamed)
            delete_paths(renamed)
    except BusyError as error:
        why = in_use.lock_holder(Path(str(error)))
    except OSError as error:
        why = f"cannot be removed ({error.strerror or error})"
    return why, size


class StoredUsage(NamedTuple):
    """An item, its size, and who uses it."""

    item: StoredItem
    usage: DiskBytes
    busy: str = ""  # as a clause

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON-ready data; sizes in bytes, `used` in seconds since the epoch."""
        item = self.item
        return {
            "kind": item.kind,
            "name": item.name,
            "paths": [str(path) for path in item.find()],
            "tag": item.tag,
            "size": self.usage.size,
            "files": self.usage.files,
            "used": round(item.used),
            "busy": self.busy,
        }


def show_status(facts: Facts, layout: Layout) -> CommandOutput:
    """Show what is stored where, how big it is, and what uses it."""
    place = StoragePlace(layout, nox_environments_folder(), facts)
    items = [one for kind in stored.KINDS for one in kind.find(place)]
    processes = in_use.list_processes()
    with ThreadPoolExecutor(_THREADS) as threads:
        sizes = list(threads.map(lambda item: measure_paths(item.find()), items))
    # One after the other: some items have a lock in common.
    busy = [in_use.find_occupant(item.locks) or item.find_hindrance(processes) for item in items]
    usages = list(map(StoredUsage, items, sizes, busy))
    folders = (layout.state, layout.dist, place.environments, layout.cache)
    by_device = {folder.stat().st_dev: folder for folder in reversed(folders) if folder.is_dir()}
    disks = {str(folder): shutil.disk_usage(folder) for folder in by_device.values()}
    size, leftovers = add_up(sizes).size, measure_paths(stored.find_leftovers(place)).size
    data = {
        "stored": [usage.as_data() for usage in usages],
        "size": size,
        "leftovers": leftovers,
        "selected": selection.selected_tag(layout),
        "disks": [
            {"folder": name, "total": one.total, "free": one.free} for name, one in disks.items()
        ],
    }
    rows: list[Sequence[str]] = []
    for kind in KINDS:
        if members := [usage for usage in usages if usage.item.kind == kind.name]:
            total = format_bytes(add_up(one.usage for one in members).size)
            rows += [(kind.name, total, "", f"if removed: {kind.cost}"), *_rows(members), ("",) * 4]
    lines = [format_table(("stored", "size", "last needed", ""), rows)] if rows else []
    lines.append(
        f"{format_bytes(size)} in total; a file with several names counts in each item, but only once here"
    )
    if leftovers:
        lines.append(
            f"{format_bytes(leftovers)} left by an interrupted clean: any clean removes it"
        )
    lines += [
        f"{name}: {format_bytes(one.free)} of {format_bytes(one.total)} free on its disk"
        for name, one in disks.items()
    ]
    lines.append(selection.describe_state(layout))
    return CommandOutput("\n".join(lines), data)


def _rows(usages: Sequence[StoredUsage]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each of the largest items of a kind, and one for all others; what uses all of them is first."""
    busy_all = usages[0].busy if len(usages) > 1 and len({one.busy for one in usages}) == 1 else ""
    if busy_all:
        yield "  all of it", "", "", busy_all
    ordered = sorted(usages, key=lambda one: -one.usage.size)
    count = len(ordered) if len(ordered) <= _SHOWN_ITEMS + 1 else _SHOWN_ITEMS
    half = _NAME_CHARACTERS // 2
    for item, usage, busy in ordered[:count]:
        name = item.name  # those of caches have long digests as names
        short = name if len(name) <= _NAME_CHARACTERS else f"{name[:half]}…{name[-half:]}"
        yield f"  {short}", format_bytes(usage.size), _ago(item.used), "" if busy_all else busy
    if rest := ordered[count:]:
        size = format_bytes(add_up(one.usage for one in rest).size)
        yield f"  and {len(rest)} more", size, _ago(max(one.item.used for one in rest)), ""


def _ago(used: float) -> str:
    return f"{format_duration(max(time.time() - used, 0))} ago" if used else "unknown"


def clean(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    kind: list[str] | None = None,
    age: str = "",
    release: str = "",
    free: str = "",
    dry_run: bool = False,
) -> CommandOutput:
    """Remove what can be made again; never what is in use."""
    criteria = parse_criteria(facts, kind or (), age, release, free)
    outcome = clean_items(StoragePlace(layout, nox_environments_folder(), facts), criteria, dry_run)

    def require() -> None:
        if criteria.free is not None and outcome.total.freed < criteria.free:
            raise HostError(
                f"only {format_bytes(outcome.total.freed)} of {format_bytes(criteria.free)} can be freed: "
                "add kinds with --kind (some are removed only if named: `invoke clean --help`), "
                "or try again when less is in use",
                code="not-enough-to-free",
            )

    usages = [StoredUsage(item, size) for item, size in outcome.removed]
    data = {
        "would_be_removed" if dry_run else "removed": [usage.as_data() for usage in usages],
        "kept": [{"kind": item.kind, "name": item.name, "why": why} for item, why in outcome.kept],
        "freed": outcome.total.freed,
    }
    would_be = "would be " if dry_run else ""
    rows: list[Sequence[str]] = []
    for one in KINDS:
        if members := [usage for usage in usages if usage.item.kind == one.name]:
            rows += [
                (f"{would_be}removed: {one.name}", "", ""),
                *(row[:3] for row in _rows(members)),
            ]
    lines = [format_table(("", "size", "last needed"), rows)] if rows else []
    lines += [f"kept: {item.kind} {item.name}: {why}" for item, why in outcome.kept]
    freed, left = outcome.total.freed, shutil.disk_usage(nearest_existing(layout.root)).free
    free_now = f"{format_bytes(left)} free on the disk of {layout.root}"
    return CommandOutput(
        "\n".join([*lines, f"{format_bytes(freed)} {would_be}freed; {free_now}"]), data, require
    )
