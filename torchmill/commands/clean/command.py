"""`invoke status` lists stored items with their sizes; `invoke clean` removes some of them."""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torchmill.commands.clean import in_use, stored
from torchmill.commands.clean.items import StoragePlace, StoredItem
from torchmill.commands.clean.stored import KINDS, StorageKind
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

KIND_NAMES = tuple(kind.name for kind in KINDS if kind.removed != "never")
_THREADS = 8  # that measure items: a disk answers several at a time
_NAME_CHARACTERS = 60  # the longest name in a table
_SHOWN_ITEMS = 8  # the largest of a kind; the others are counted
_LIST_SECONDS = 1.0  # for so long a list of the processes is used again


@dataclass(frozen=True, slots=True)
class CleanCriteria:
    """The filters of items to remove: an item has to pass each of them. None passes all items."""

    kinds: tuple[StorageKind, ...]
    idle: float | None = None  # the least seconds since the item was last needed
    tags: frozenset[str] | None = None  # of releases
    free: int | None = None  # once so many bytes are freed, no more items are removed


def parse_criteria(
    facts: Facts, names: Sequence[str], age: str, release: str, free: str
) -> CleanCriteria:
    """Return the filters of `invoke clean`; `names` are kinds.

    Raises ConfigError for a filter that cannot be read, and if there is none, which would remove
    everything. Raises UnknownReleaseError for a tag that no release has.
    """
    if not (names or age or release or free):
        raise ConfigError(
            "invoke clean needs a filter: --kind KIND, --age 30d, --release TAG or --free SIZE; "
            "`invoke status` lists what is stored, and --dry-run removes nothing",
            code="clean-without-filter",
        )
    for name in names:
        require_choice("--kind", name, KIND_NAMES, "unknown-kind")
    idle = None
    if age:
        idle = parse_option("invoke clean: --age", age, parse_duration, "invalid-age")
    enough = None
    if free:
        enough = parse_option("invoke clean: --free", free, parse_bytes, "invalid-free")
    if names:
        kinds = tuple(kind for kind in KINDS if kind.name in names)
    else:
        kinds = tuple(kind for kind in KINDS if kind.removed == "selected")
    tags = _release_tags(facts, release) if release else None
    return CleanCriteria(kinds, idle, tags, enough)


def _release_tags(facts: Facts, tag: str) -> frozenset[str]:
    """Return the tags of a release of torch and of its partners; of a partner's tag, that alone.

    Extensions that go with several releases of torch (which have `editions`) are left out: their
    items may be those of another torch.
    """
    base = base_package(facts).name
    base_tags = {release.tag for release in facts.releases[base]}
    partner_tags: set[str] = set()
    for name, releases in facts.releases.items():
        if name != base:
            partner_tags.update(release.tag for release in releases)
    if tag in partner_tags - base_tags:
        return frozenset({tag})
    paired = releases_of(facts, find_release(facts, base, tag))
    return frozenset(
        release.tag for release in paired if not facts.packages[release.package].editions
    )


@dataclass(slots=True)
class CleanOutcome:
    """The items that a clean removed, or would remove."""

    removed: list[tuple[StoredItem, DiskBytes]] = field(default_factory=list)
    # Items that stay although the criteria choose them, each with the reason as a clause.
    kept: list[tuple[StoredItem, str]] = field(default_factory=list)
    total: DiskBytes = field(default_factory=DiskBytes)


def clean_items(
    place: StoragePlace, criteria: CleanCriteria, dry_run: bool = False
) -> CleanOutcome:
    """Remove leftovers of interrupted cleans, then the items of some criteria.

    The items that were not needed for the longest time go first, until `criteria.free` bytes are
    freed. With `dry_run`, nothing is removed, and items are only measured.
    """
    if not dry_run:
        for path in stored.find_leftovers(place):
            # A leftover that cannot be deleted now is tried again by the next clean.
            with contextlib.suppress(OSError):
                delete_paths([path])
    outcome = CleanOutcome()
    processes = in_use.RunningProcesses()
    listed_at = float("-inf")
    for item in _chosen_items(place, criteria):
        if criteria.free is not None and outcome.total.freed >= criteria.free:
            break
        if item.hindrance and time.monotonic() - listed_at > _LIST_SECONDS:
            processes = in_use.list_processes()
            listed_at = time.monotonic()
        reason, size = _remove_unless_used(item, processes, dry_run)
        if reason:
            outcome.kept.append((item, reason))
        elif size.size:  # 0: another clean has removed the item meanwhile
            outcome.removed.append((item, size))
            outcome.total = add_up((outcome.total, size))
    return outcome


def _chosen_items(place: StoragePlace, criteria: CleanCriteria) -> list[StoredItem]:
    """Return the items of some criteria, the longest unused first."""
    now = time.time()
    chosen = []
    for kind in criteria.kinds:
        for item in kind.find(place):
            fits_tag = criteria.tags is None or item.tag in criteria.tags
            # A time in the future, as after a clock was set back, gives no age: such an item stays.
            fits_age = criteria.idle is None or now - item.used >= criteria.idle
            if fits_tag and fits_age:
                chosen.append(item)
    return sorted(chosen, key=lambda item: (item.used, item.kind, item.name))


def _remove_unless_used(
    item: StoredItem, processes: in_use.RunningProcesses, dry_run: bool
) -> tuple[str, DiskBytes]:
    """Remove an item under its locks; with `dry_run`, only measure it.

    Returns why the item stays, as a clause, "" if it is removed; and its size.
    """
    size = DiskBytes()
    try:
        reason = item.find_hindrance(processes)
        if reason:
            return reason, size
        if dry_run:
            with hold_locks(lock for lock in item.locks if lock.exists()):
                size = measure_paths(item.find())
        else:
            # Under the locks, the item is only renamed. To delete it may take minutes, for which a
            # build would wait.
            with hold_locks(item.locks):
                renamed = move_out_of_sight(item.find())
            size = measure_paths(renamed)
            delete_paths(renamed)
    except BusyError as error:  # its message is the path of the lock
        return in_use.lock_holder(Path(str(error))), size
    except OSError as error:
        return f"cannot be removed ({error.strerror or error})", size
    return "", size


class StoredUsage(NamedTuple):
    """An item, its size, and its user."""

    item: StoredItem
    usage: DiskBytes
    busy: str = ""  # who uses the item, as a clause; "" for nobody

    def as_data(self) -> dict[str, Any]:
        """Return JSON-ready data; sizes are in bytes, `used` is in seconds since the epoch."""
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
    """Return all stored items with their sizes and users, and the free room."""
    place = StoragePlace(layout, nox_environments_folder(), facts)
    usages = _measure_usages(place)
    size = add_up(usage.usage for usage in usages).size
    leftovers = measure_paths(stored.find_leftovers(place)).size
    # One folder for each disk: the last of those on it.
    disks = {}
    for folder in (layout.cache, place.environments, layout.dist, layout.state):
        if folder.is_dir():
            disks[folder.stat().st_dev] = folder
    disk_usages = {str(folder): shutil.disk_usage(folder) for folder in disks.values()}
    data = {
        "stored": [usage.as_data() for usage in usages],
        "size": size,
        "leftovers": leftovers,
        "selected": selection.selected_tag(layout),
        "disks": [
            {"folder": name, "total": usage.total, "free": usage.free}
            for name, usage in disk_usages.items()
        ],
    }
    rows: list[Sequence[str]] = []
    for kind in KINDS:
        members = [usage for usage in usages if usage.item.kind == kind.name]
        if members:
            total = add_up(member.usage for member in members).size
            rows.append((kind.name, format_bytes(total), "", f"if removed: {kind.cost}"))
            rows += _rows(members)
            rows.append(("", "", "", ""))
    lines = []
    if rows:
        lines.append(format_table(("stored", "size", "last needed", ""), rows))
    lines.append(
        f"{format_bytes(size)} in total; a file with several names counts in each item, but only "
        "once here"
    )
    if leftovers:
        lines.append(
            f"{format_bytes(leftovers)} left by an interrupted clean: any clean removes it"
        )
    for name, usage in disk_usages.items():
        free = f"{format_bytes(usage.free)} of {format_bytes(usage.total)}"
        lines.append(f"{name}: {free} free on its disk")
    lines.append(selection.describe_state(layout))
    return CommandOutput("\n".join(lines), data)


def _measure_usages(place: StoragePlace) -> list[StoredUsage]:
    """Return all items with their sizes and users."""
    items: list[StoredItem] = []
    for kind in KINDS:
        items += kind.find(place)
    processes = in_use.list_processes()
    with ThreadPoolExecutor(_THREADS) as threads:
        sizes = list(threads.map(lambda item: measure_paths(item.find()), items))
    usages = []
    # Not in threads: two items may have a lock in common, and one would seem to use the other.
    for item, size in zip(items, sizes, strict=True):
        busy = in_use.find_occupant(item.locks) or item.find_hindrance(processes)
        usages.append(StoredUsage(item, size, busy))
    return usages


def _rows(usages: Sequence[StoredUsage]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each of the largest items of a kind, and one row for all others.

    If all items have the same user, it is named once, in a row of its own.
    """
    users = {usage.busy for usage in usages}
    user_of_all = usages[0].busy if len(usages) > 1 and len(users) == 1 else ""
    if user_of_all:
        yield "  all of it", "", "", user_of_all
    ordered = sorted(usages, key=lambda usage: -usage.usage.size)
    count = _SHOWN_ITEMS
    if len(ordered) == _SHOWN_ITEMS + 1:
        count += 1  # the row "and 1 more" would take as much room as the item
    half = _NAME_CHARACTERS // 2
    for item, size, busy in ordered[:count]:
        name = item.name
        if len(name) > _NAME_CHARACTERS:
            # The files of caches have long digests as names.
            name = f"{name[:half]}…{name[-half:]}"
        user = "" if user_of_all else busy
        yield f"  {name}", format_bytes(size.size), _ago(item.used), user
    rest = ordered[count:]
    if rest:
        size_of_rest = add_up(usage.usage for usage in rest).size
        last_used = max(usage.item.used for usage in rest)
        yield f"  and {len(rest)} more", format_bytes(size_of_rest), _ago(last_used), ""


def _ago(used: float) -> str:
    """Return how long ago a time was, "3 days ago"; 0 is a time that is not known."""
    if not used:
        return "unknown"
    return f"{format_duration(max(time.time() - used, 0))} ago"


def clean(
    facts: Facts,
    layout: Layout,
    *,
    kind: list[str] | None = None,
    age: str = "",
    release: str = "",
    free: str = "",
    dry_run: bool = False,
) -> CommandOutput:
    """Remove items that can be made again and that nobody uses, and return what was removed.

    The output fails if fewer bytes were freed than --free asks for.
    """
    criteria = parse_criteria(facts, kind or (), age, release, free)
    outcome = clean_items(StoragePlace(layout, nox_environments_folder(), facts), criteria, dry_run)
    usages = [StoredUsage(item, size) for item, size in outcome.removed]
    freed = outcome.total.freed
    data = {
        "would_be_removed" if dry_run else "removed": [usage.as_data() for usage in usages],
        "kept": [
            {"kind": item.kind, "name": item.name, "why": reason} for item, reason in outcome.kept
        ],
        "freed": freed,
    }
    verb = "would be removed" if dry_run else "removed"
    rows: list[Sequence[str]] = []
    for storage_kind in KINDS:
        members = [usage for usage in usages if usage.item.kind == storage_kind.name]
        if members:
            rows.append((f"{verb}: {storage_kind.name}", "", ""))
            rows += [row[:3] for row in _rows(members)]
    lines = []
    if rows:
        lines.append(format_table(("", "size", "last needed"), rows))
    lines += [f"kept: {item.kind} {item.name}: {reason}" for item, reason in outcome.kept]
    free_now = shutil.disk_usage(nearest_existing(layout.root)).free
    verb = "would be freed" if dry_run else "freed"
    lines.append(
        f"{format_bytes(freed)} {verb}; {format_bytes(free_now)} free on the disk of {layout.root}"
    )
    return CommandOutput(
        "\n".join(lines), data, require=partial(_require_freed, freed, criteria.free)
    )


def _require_freed(freed: int, enough: int | None) -> None:
    """Raise HostError if fewer bytes were freed than `enough`, the value of --free."""
    if enough is not None and freed < enough:
        raise HostError(
            f"only {format_bytes(freed)} of {format_bytes(enough)} can be freed: add kinds with "
            "--kind (some are removed only if named: `invoke clean --help`), or try again when "
            "less is in use",
            code="not-enough-to-free",
        )
