"""The items in the user's cache, which all checkouts share: downloads, toolkits, caches."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from torchmill.commands.clean.in_use import RunningProcesses
from torchmill.commands.clean.items import (
    Hindrance,
    StoragePlace,
    StoredItem,
    build_at_work,
    stored,
)
from torchmill.core.deletion import DELETED_NAME
from torchmill.core.locks import LOCK_FILE, list_contents
from torchmill.core.paths import CONFIGS, EMPTY_ENVIRONMENTS, FACTS_MEMORY
from torchmill.host import provisioned
from torchmill.host.disk_usage import list_children, newest_change

# Folders of the cache with what builds need beside sources and toolkits: gates (the guard's
# programs that start compilers), stand-ins (scripts that builds take for a compiler, and that start
# it by a gate), programs, merged facts, and environments with nothing but pip.
TOOLS = ("gates", "stand-ins", "compilers", "programs", CONFIGS, EMPTY_ENVIRONMENTS)
HISTORY = "units.sqlite"  # of the guard, by unit (a file that is compiled)


def find_downloads(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield downloads for sources and toolkits, and answers of the package index."""
    cache = place.layout.cache
    # Installations of toolkits hold locks of their own while they download, also from Debian. All
    # others hold a lock beside the file that they download.
    installing = list((cache / provisioned.FOLDER).glob(f"{provisioned.MAKING}*/{LOCK_FILE}"))
    downloading = (cache / "downloads").rglob("*.lock")
    locks = {
        "debian": (cache / "debian" / LOCK_FILE, *installing),
        "upstream": (),
        "downloads": (*installing, *downloading),
    }
    for name, folder_locks in locks.items():
        folder = cache / name
        paths = list(folder.rglob("*"))
        if any(path.is_file() for path in paths if path.name != LOCK_FILE):
            find = partial(list_contents, folder)
            yield StoredItem("downloads", name, find, newest_change(paths), "", folder_locks)


def find_toolkits(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield installed toolkits, libraries and compilers, and unfinished installations."""
    for folder in list_children(place.layout.cache / provisioned.FOLDER):
        name = folder.name.removeprefix(provisioned.MAKING)
        locks = (folder.with_name(f"{provisioned.MAKING}{name}") / LOCK_FILE,)
        part = folder / provisioned.WHOLE  # of an installation: the files so far
        if name == folder.name and not name.startswith(DELETED_NAME):
            hindrance = build_at_work(place, folder)
            item = stored("toolkits", name, folder, locks=locks, hindrance=hindrance)
            changed = newest_change((folder, folder / provisioned.RECORD))
            yield replace(item, used=max(changed, _last_read(folder)))
        elif part.is_dir():
            yield stored("toolkits", f"{name} (unfinished)", part, locks=locks)


def _last_read(folder: Path) -> float:
    """Return when a build last read a program or a header, in seconds since the epoch.

    Linux updates a file's time of access once a day (`relatime` in mount(8)).
    """
    times = [0.0]
    for path in (*list_children(folder / "bin"), *list_children(folder / "include")):
        with contextlib.suppress(OSError):
            if path.is_file():
                times.append(path.stat().st_atime)
    return max(times)


def find_tools(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the tools of builds: gates, stand-ins, programs, and templates of environments."""
    for name in TOOLS:
        folder = place.layout.cache / name
        if folder.is_dir():
            touched = (folder, *list_children(folder))
            hindrance = build_at_work(place, folder)
            yield stored("tools", name, folder, touched=touched, hindrance=hindrance)


def find_history(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the guard's history: the memory that each file took to compile."""
    # SQLite has its journal beside the database: "units.sqlite-wal".
    files = [path for path in list_children(place.layout.cache) if path.name.startswith(HISTORY)]
    if files:
        yield stored("history", HISTORY, *files, hindrance=build_at_work(place, *files))


def find_stat_cache(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the caches of digests, of programs' answers, of facts, and of sessions."""
    for file in (place.layout.stat_cache, place.layout.cache / FACTS_MEMORY):
        if file.exists():
            yield stored("stat-caches", file.name, file)


def find_compiler_caches(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the files of ccache and sccache, which set the time of a file when they use it."""
    # ccache has its files in folders of one digit, and statistics beside them. These stay: they are
    # corrected by `ccache -c`.
    yield from find_cached(place, "compilers", "ccache", "[0-9a-f]/**/*")
    server = partial(_sccache_server, place.layout.cache / "sccache")
    yield from find_cached(place, "compilers", "sccache", hindrance=server)


def _sccache_server(folder: Path, processes: RunningProcesses) -> str:
    """Return the server that has its cache in a folder, and how to end it; "" without one."""
    server = processes.serving_sccache(folder)
    return f"{server}: `sccache --stop-server` ends it" if server else ""


def find_cached(
    place: StoragePlace,
    kind: str,
    folder: str,
    pattern: str = "**/*",
    hindrance: Hindrance | None = None,
) -> Iterator[StoredItem]:
    """Yield each file in a folder of the cache that matches a glob.

    Left out are hidden files, which are being written, and statistics and marks of the caches.
    """
    for path in (place.layout.cache / folder).glob(pattern):
        # Hidden files are being written.
        if path.is_file() and not path.name.startswith((".", "stats", "CACHEDIR")):
            name = str(path.relative_to(place.layout.cache))
            yield stored(kind, name, path, hindrance=hindrance)
