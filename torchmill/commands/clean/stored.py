"""The kinds of stored items of a checkout and a user, with the cost of removing each."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from torchmill.commands.clean import cache_items, checkout_items
from torchmill.commands.clean.cache_items import HISTORY, TOOLS
from torchmill.commands.clean.items import (
    StoragePlace,
    StoredItem,
    list_cells,
    list_folders,
    stored,
)
from torchmill.core.deletion import DELETED_NAME, is_being_deleted
from torchmill.core.homes import MARK
from torchmill.core.paths import FACTS_MEMORY, HOMES, PROOFS_CACHE, STAT_CACHE
from torchmill.host import provisioned
from torchmill.host.disk_usage import list_children

_CACHES = ("members", "debian", "upstream", "downloads", "ccache", "sccache", PROOFS_CACHE)
CACHE_NAMES = frozenset(
    {*_CACHES, *TOOLS, STAT_CACHE, FACTS_MEMORY, HISTORY, HOMES, provisioned.FOLDER}
)
_STATE_NAMES = frozenset(
    {
        "trees",
        "sources",
        "logs",
        "demo",
        "bisect",
        "rebuild",
        "images",
        "cluster",
        "new-torch",
        "channel",
        MARK,
    }
)


def find_containers(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the trees, environments, logs and caches of builds in containers, by architecture."""
    if place.layout.container_arch:
        return  # this is a container itself
    from torchmill.cell.containers.cross import container_layout

    for arch in place.facts.arches:
        inner = container_layout(place.layout, arch)
        if inner.state.is_dir():
            yield stored("containers", arch, inner.state, inner.cache)


def find_unknown(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield files in the user's cache and in the state of this checkout that no kind covers."""
    layout = place.layout
    state_names = {*_STATE_NAMES, layout.selection.name, *place.facts.arches}
    for path in list_children(layout.state):
        if path.name not in state_names and not _is_cache_name(path.name):
            yield stored("other", str(path), path)
    for path in list_children(layout.cache):
        if not _is_cache_name(path.name):
            yield stored("other", str(path), path)


def _is_cache_name(name: str) -> bool:
    return name in CACHE_NAMES or name.startswith((DELETED_NAME, HISTORY))


def find_leftovers(place: StoragePlace) -> Iterator[Path]:
    """Yield the paths that an interrupted clean renamed but did not delete.

    Those that another clean is deleting right now are not among them.
    """
    layout = place.layout
    homes = [layout.state, layout.logs, layout.dist, layout.cache, place.environments]
    homes += list_folders(layout.sources)
    homes += list_folders(layout.cache)
    homes += [cell for _, cell in list_cells(place)]
    for home in homes:
        for path in list_children(home):
            if path.name.startswith(DELETED_NAME) and not is_being_deleted(path):
                yield path


# When items are removed: "selected" by --age, --release or --free alone; "named" only with --kind.
Removal = Literal["selected", "named", "never"]


@dataclass(frozen=True, slots=True)
class StorageKind:
    """A kind of items, which are listed together and removed by the same option."""

    name: str
    cost: str  # what it costs later to have removed its items, as a clause
    find: Callable[[StoragePlace], Iterable[StoredItem]]
    removed: Removal = "selected"


KINDS = (
    StorageKind(
        "trees",
        "the next build recompiles what is not in the compiler cache",
        checkout_items.find_trees,
    ),
    StorageKind(
        "outputs",
        "a wheel that is remade is packed and verified again",
        checkout_items.find_outputs,
    ),
    StorageKind("sources", "fetched again", checkout_items.find_sources),
    StorageKind(
        "environments",
        "installed again, and what includes their headers recompiled",
        checkout_items.find_environments,
    ),
    StorageKind(
        "logs", "`invoke report` cannot draw those builds any more", checkout_items.find_logs
    ),
    StorageKind(
        "members",
        "compressed again",
        partial(cache_items.find_cached, kind="members", folder="members"),
    ),
    StorageKind("downloads", "downloaded again", cache_items.find_downloads),
    StorageKind("tools", "made or downloaded again, in seconds", cache_items.find_tools),
    StorageKind(
        "stat-caches",
        "digests and programs' versions are read again, in a second",
        cache_items.find_stat_cache,
    ),
    StorageKind(
        "proofs",
        "upstream's tests are run again",
        partial(cache_items.find_cached, kind="proofs", folder=PROOFS_CACHE),
    ),
    StorageKind(
        "demo",
        "`nox -s demo` takes a minute again",
        partial(checkout_items.find_home, kind="demo"),
    ),
    StorageKind(
        "bisect",
        "the search of `invoke bisect` begins anew",
        partial(checkout_items.find_home, kind="bisect"),
    ),
    StorageKind(
        "rebuild",
        "`invoke rebuild` builds the wheel again",
        partial(checkout_items.find_home, kind="rebuild"),
    ),
    StorageKind(
        "cluster",
        "shares are compiled again",
        partial(checkout_items.find_home, kind="cluster"),
        "named",
    ),
    StorageKind(
        "new-torch",
        "`invoke build --new-torch` tries again what it has tried",
        partial(checkout_items.find_home, kind="new-torch"),
        "named",
    ),
    StorageKind(
        "compilers",
        "every file is recompiled once",
        cache_items.find_compiler_caches,
        "named",
    ),
    StorageKind(
        "toolkits",
        "downloaded again, gigabytes for a toolkit",
        cache_items.find_toolkits,
        "named",
    ),
    StorageKind(
        "history",
        "the guard learns the memory of each file again",
        cache_items.find_history,
        "named",
    ),
    StorageKind("wheels", "built again", checkout_items.find_wheels, "named"),
    StorageKind(
        "packages",
        "made from their wheels again, in minutes",
        checkout_items.find_packages,
        "named",
    ),
    StorageKind(
        "index",
        "written again from `dist/`; yanks are lost",
        partial(checkout_items.find_published, kind="index"),
        "never",
    ),
    StorageKind(
        "channel",
        "indexed again from `dist/conda/`",
        partial(checkout_items.find_published, kind="channel"),
        "never",
    ),
    StorageKind(
        "images",
        "their folders are written again",
        partial(checkout_items.find_published, kind="images"),
        "never",
    ),
    StorageKind(
        "containers",
        "compiled again; TORCHMILL_CONTAINER_ARCH=NAME shows what is in one",
        find_containers,
        "never",
    ),
    StorageKind("other", "unknown", find_unknown, "never"),
)
