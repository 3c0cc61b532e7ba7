"""`invoke status` lists stored items with their sizes; `invoke clean` removes some of them."""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

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
from torchmill.core.locks import hold_lock_files
from torchmill.core.paths import Layout, nox_environments_folder
from torchmill.core.system_errors import nearest_existing
from torchmill.core.units import format_bytes, format_duration, parse_bytes, parse_duration
from torchmill.host.disk_usage import DiskBytes, add_up, measure_paths

KIND_NAMES = tuple(kind.name for kind in KINDS if kind.removed != "never")
_THREADS = 8  # that measure items: a disk answers several at a time
_NAME_CHARACTERS = 60  # the longest name in a table
_SHOWN_ITEMS = 8  # the largest of a kind; the others are counted
_LIST_SECONDS = 1.0  # a list of processes is reused for this long


@dataclass(frozen=True, slots=True)
class CleanCriteria:
    """The filters of items to remove, and a limit.

    An item has to pass each filter; a filter that is None lets every item pass.
    """

    kinds: tuple[StorageKind, ...]
    idle: float | None = None  # the least seconds since the item was last needed
    tags: frozenset[str] | None = None  # of releases
    free: int | None = None  # the limit: once so many bytes are freed, no more items are removed


def parse_criteria(
    facts: Facts, names: Sequence[str], age: str, release: str, free: str
) -> CleanCriteria:
    """Return the filters of `invoke clean`; `names` are kinds.

    Without names, the kinds are those that are removed without being named (`StorageKind.removed`).
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
    bytes_to_free = None
    if free:
        bytes_to_free = parse_option("invoke clean: --free", free, parse_bytes, "invalid-free")
    if names:
        kinds = tuple(kind for kind in KINDS if kind.name in names)
    else:
        kinds = tuple(kind for kind in KINDS if kind.removed == "selected")
    tags = _release_tags(facts, release) if release else None
    return CleanCriteria(kinds, idle, tags, bytes_to_free)


def _release_tags(facts: Facts, tag: str) -> frozenset[str]:
    """Return the tags of the releases that go with a tag.

    For a tag of torch: the release's tag and those of its partners, which are the packages built
    for that release, such as torchvision. For a tag of a partner only: just that tag. A tag that
    both have is taken for torch's. Extensions that go with several releases of torch (which have
    `editions`) are left out: their items may be those of another torch.
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


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """What an item takes on the disk, and its user."""

    item: StoredItem
    size: DiskBytes
    paths: tuple[Path, ...] = ()  # before the item is removed: afterwards it may find none
    busy: str = ""  # who uses the item, as a clause; "" for nobody

    def as_data(self) -> dict[str, Any]:
        """Return JSON-ready data; sizes are in bytes, `used` is in seconds since the epoch."""
        item = self.item
        return {
            "kind": item.kind,
            "name": item.name,
            "paths": [str(path) for path in self.paths],
            "tag": item.tag,
            "size": self.size.size,
            "files": self.size.files,
            "used": round(item.used),
            "busy": self.busy,
        }


@dataclass(slots=True)
class CleanOutcome:
    """The items that a clean removed, or would remove."""

    removed: list[StoredUsage] = field(default_factory=list)
    # Items that stay although the criteria choose them, each with the reason as a clause.
    kept: list[tuple[StoredItem, str]] = field(default_factory=list)
    total: DiskBytes = field(default_factory=DiskBytes)


def clean_items(
    place: StoragePlace, criteria: CleanCriteria, *, dry_run: bool = False
) -> CleanOutcome:
    """Remove leftovers of interrupted cleans, then the items of some criteria.

    The items that were not needed for the longest time go first, until `criteria.free` bytes are
    freed; items whose last use is unknown go before them. With `dry_run`, nothing is removed, and
    items are only measured.
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
        reason, usage = _remove_unless_used(item, processes, dry_run=dry_run)
        if reason:
            outcome.kept.append((item, reason))
        elif usage.size.size:  # 0: another clean has removed the item in the meantime
            outcome.removed.append(usage)
            outcome.total = add_up((outcome.total, usage.size))
    return outcome


def _chosen_items(place: StoragePlace, criteria: CleanCriteria) -> list[StoredItem]:
    """Return the items of some criteria, the longest unused first."""
    now = time.time()
    chosen = []
    for kind in criteria.kinds:
        for item in kind.find(place):
            fits_tag = criteria.tags is None or item.tag in criteria.tags
            # A time in the future, as after a clock was set back, and an unknown time, 0, give no
            # age: such an item fits no --age.
            is_old = item.used > 0 and now - item.used >= (criteria.idle or 0)
            fits_age = criteria.idle is None or is_old
            if fits_tag and fits_age:
                chosen.append(item)
    return sorted(chosen, key=lambda item: (item.used, item.kind, item.name))


def _remove_unless_used(
    item: StoredItem, processes: in_use.RunningProcesses, *, dry_run: bool
) -> tuple[str, StoredUsage]:
    """Remove an item under its locks; with `dry_run`, only measure it.

    Returns why the item stays, as a clause, "" if it is removed; and what it takes on the disk.
    """
    nothing = StoredUsage(item, DiskBytes())
    try:
        reason = item.find_hindrance(processes)
        if reason:
            return reason, nothing
        if dry_run:
            with hold_lock_files(lock for lock in item.locks if lock.exists()):
                paths = tuple(item.find())
                return "", StoredUsage(item, measure_paths(paths), paths)
        # Under the locks, the item is only renamed. To delete it may take minutes, for which a
        # build would wait.
        with hold_lock_files(item.locks):
            paths = tuple(item.find())
            renamed = move_out_of_sight(paths)
    except BusyError as error:  # its message is the path of the lock
        return in_use.lock_holder(Path(str(error))), nothing
    except OSError as error:
        return f"cannot be removed ({error.strerror or error})", nothing
    usage = StoredUsage(item, measure_paths(renamed), paths)
    try:
        delete_paths(renamed)
    except OSError as error:
        # The item is out of its place. The rest counts as a leftover.
        reason = f"cannot be deleted entirely ({error.strerror or error}); any clean tries again"
        return reason, nothing
    return "", usage


def show_status(facts: Facts, layout: Layout) -> CommandOutput:
    """Return all stored items with their sizes and users, and the free room."""
    place = StoragePlace(layout, nox_environments_folder(), facts)
    usages = _measure_usages(place)
    size = add_up(usage.size for usage in usages).size
    leftovers = measure_paths(stored.find_leftovers(place)).size
    rooms = {str(folder): shutil.disk_usage(folder) for folder in _disk_folders(place)}
    data = {
        "stored": [usage.as_data() for usage in usages],
        "size": size,
        "leftovers": leftovers,
        "selected": selection.selected_tag(layout),
        "disks": [
            {"folder": name, "total": room.total, "free": room.free} for name, room in rooms.items()
        ],
    }
    lines = []
    if usages:
        lines.append(format_table(("stored", "size", "last needed", ""), _status_rows(usages)))
    lines.append(
        f"{format_bytes(size)} in total; a file with several names counts in each item, but only "
        "once here"
    )
    if leftovers:
        lines.append(
            f"{format_bytes(leftovers)} left by an interrupted clean: any clean removes it"
        )
    for name, room in rooms.items():
        free = f"{format_bytes(room.free)} of {format_bytes(room.total)}"
        lines.append(f"{name}: {free} free on its disk")
    lines.append(selection.describe_state(layout))
    return CommandOutput("\n".join(lines), data)


def _disk_folders(place: StoragePlace) -> list[Path]:
    """Return a folder on each disk that stores items; if several are on it, the last of them."""
    layout = place.layout
    folders = {}
    for folder in (layout.cache, place.environments, layout.dist, layout.state):
        if folder.is_dir():
            folders[folder.stat().st_dev] = folder
    return list(folders.values())


def _status_rows(usages: Sequence[StoredUsage]) -> list[Sequence[str]]:
    """Return a row for each kind of items, and rows for its items."""
    rows: list[Sequence[str]] = []
    for kind in KINDS:
        members = [usage for usage in usages if usage.item.kind == kind.name]
        if members:
            total = add_up(member.size for member in members).size
            rows.append((kind.name, format_bytes(total), "", f"if removed: {kind.cost}"))
            rows += _item_rows(members)
            rows.append(("", "", "", ""))
    return rows


def _measure_usages(place: StoragePlace) -> list[StoredUsage]:
    """Return all items with their sizes and users."""
    items: list[StoredItem] = []
    for kind in KINDS:
        items += kind.find(place)
    processes = in_use.list_processes()
    paths_of_items = [tuple(item.find()) for item in items]
    with ThreadPoolExecutor(_THREADS) as threads:
        sizes = list(threads.map(measure_paths, paths_of_items))
    usages = []
    # Not in threads: two items may have a lock in common, and one would seem to use the other.
    for item, size, paths in zip(items, sizes, paths_of_items, strict=True):
        busy = in_use.find_occupant(item.locks) or item.find_hindrance(processes)
        usages.append(StoredUsage(item, size, paths, busy))
    return usages


def _item_rows(usages: Sequence[StoredUsage]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each of the largest items of a kind, and one row for all others.

    If all items have the same user, it is named once, in a row of its own.
    """
    users = {usage.busy for usage in usages}
    user_of_all = usages[0].busy if len(usages) > 1 and len(users) == 1 else ""
    if user_of_all:
        yield "  all of it", "", "", user_of_all
    ordered = sorted(usages, key=lambda usage: -usage.size.size)
    count = _SHOWN_ITEMS
    if len(ordered) == _SHOWN_ITEMS + 1:
        count += 1  # the row "and 1 more" would take as much room as the item
    half = _NAME_CHARACTERS // 2
    for usage in ordered[:count]:
        name = usage.item.name
        if len(name) > _NAME_CHARACTERS:
            # The files of caches have long digests as names.
            name = f"{name[:half]}…{name[-half:]}"
        user = "" if user_of_all else usage.busy
        yield f"  {name}", format_bytes(usage.size.size), _ago(usage.item.used), user
    rest = ordered[count:]
    if rest:
        size_of_rest = add_up(usage.size for usage in rest).size
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

    The command fails, after its output is shown, if fewer bytes were freed than --free asks for.
    """
    criteria = parse_criteria(facts, kind or (), age, release, free)
    place = StoragePlace(layout, nox_environments_folder(), facts)
    outcome = clean_items(place, criteria, dry_run=dry_run)
    usages = outcome.removed
    freed = outcome.total.freed
    data = {
        "would_be_removed" if dry_run else "removed": [usage.as_data() for usage in usages],
        "kept": [
            {"kind": item.kind, "name": item.name, "why": reason} for item, reason in outcome.kept
        ],
        "freed": freed,
    }
    removed = "would be removed" if dry_run else "removed"
    freed_clause = "would be freed" if dry_run else "freed"
    rows: list[Sequence[str]] = []
    for storage_kind in KINDS:
        members = [usage for usage in usages if usage.item.kind == storage_kind.name]
        if members:
            rows.append((f"{removed}: {storage_kind.name}", "", ""))
            rows += [row[:3] for row in _item_rows(members)]
    lines = []
    if rows:
        lines.append(format_table(("", "size", "last needed"), rows))
    lines += [f"kept: {item.kind} {item.name}: {reason}" for item, reason in outcome.kept]
    free_now = shutil.disk_usage(nearest_existing(layout.root)).free
    room = f"{format_bytes(free_now)} free on the disk of {layout.root}"
    lines.append(f"{format_bytes(freed)} {freed_clause}; {room}")
    return CommandOutput(
        "\n".join(lines), data, require=partial(_require_freed, freed, criteria.free)
    )


def _require_freed(freed: int, requested: int | None) -> None:
    """Raise HostError if fewer bytes were freed than `requested`, the value of --free."""
    if requested is not None and freed < requested:
        raise HostError(
            f"only {format_bytes(freed)} of {format_bytes(requested)} can be freed: add kinds with "
            "--kind (some are removed only if named: `invoke clean --help`), or try again when "
            "less is in use",
            code="not-enough-to-free",
        )
