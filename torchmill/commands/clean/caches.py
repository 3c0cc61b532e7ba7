"""Find what all checkouts of a user share: downloads, toolkits, compiler caches."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from torchmill.commands.clean.in_use import RunningProcesses
from torchmill.commands.clean.items import Hindrance, StoragePlace, StoredItem, fixed_paths, no_hindrance
from torchmill.core.files import DELETED_NAME, list_contents
from torchmill.core.locks import LOCK_FILE
from torchmill.host.disk_usage import list_children, newest_change
from torchmill.host.provisioned import FOLDER as TOOLKITS
from torchmill.host.provisioned import MAKING, RECORD, WHOLE

MEMBERS, DEBIAN, UPSTREAM, DOWNLOADS = "members", "debian", "upstream", "downloads"
TOOLS = ("gates", "stand-ins", "compilers", "programs")
CCACHE, SCCACHE, HISTORY, RECALL = "ccache", "sccache", "units.sqlite", "recall.json"
CLAIMED = frozenset(
    {MEMBERS, DEBIAN, UPSTREAM, DOWNLOADS, TOOLKITS, *TOOLS, CCACHE, SCCACHE, HISTORY, RECALL}
)


def find_members(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what was compressed for wheels, a file each."""
    yield from _files("members", place.layout.cache / MEMBERS, no_hindrance)


def find_downloads(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what was downloaded of sources and for toolkits, and read from the package index."""
    debian, upstream = place.layout.cache / DEBIAN, place.layout.cache / UPSTREAM
    if debian.is_dir() and (inside := list_contents(debian)):
        yield StoredItem(
            "downloads",
            DEBIAN,
            lambda: list_contents(debian),
            newest_change(inside),
            "",
            (debian / LOCK_FILE,),
        )
    if upstream.is_dir():
        yield StoredItem("downloads", UPSTREAM, fixed_paths(upstream), newest_change((upstream,)))
    unfinished = place.layout.cache / DOWNLOADS  # of a toolkit that came to be, nothing is left here
    if unfinished.is_dir() and (
        inside := [path for one in list_children(unfinished) for path in list_children(one)]
    ):
        locks = tuple((place.layout.cache / TOOLKITS).glob(f"{MAKING}*/{LOCK_FILE}"))
        yield StoredItem("downloads", DOWNLOADS, fixed_paths(unfinished), newest_change(inside), "", locks)


def find_toolkits(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield toolkits, libraries and compilers that were brought, and what is left of those that were not."""
    for folder in list_children(place.layout.cache / TOOLKITS):
        name = folder.name.removeprefix(MAKING)
        lock = folder.with_name(f"{MAKING}{name}") / LOCK_FILE
        whole = folder / WHOLE
        if name == folder.name and not name.startswith(DELETED_NAME):
            used = max(newest_change((folder, folder / RECORD)), _last_read(folder))
            yield StoredItem(
                "toolkits", name, fixed_paths(folder), used, "", (lock,), _unbuilt(place, folder)
            )
        elif whole.is_dir():
            yield StoredItem(
                "toolkits", f"{name} (unfinished)", fixed_paths(whole), newest_change((whole,)), "", (lock,)
            )


def find_tools(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what builds work with: gates, stand-ins, what is known of compilers, programs of the index."""
    for name in TOOLS:
        folder = place.layout.cache / name
        if folder.is_dir():
            used = newest_change((folder, *list_children(folder)))
            yield StoredItem("tools", name, fixed_paths(folder), used, hindrance=_unbuilt(place, folder))


def find_history(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what builds taught about the memory of single files."""
    files = tuple(path for path in list_children(place.layout.cache) if path.name.startswith(HISTORY))
    if files:
        yield StoredItem(
            "history", HISTORY, fixed_paths(*files), newest_change(files), hindrance=_unbuilt(place, *files)
        )


def find_stat_cache(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what programs said of themselves and files were found to hold."""
    file = place.layout.cache / RECALL
    if file.is_file():
        yield StoredItem("recall", RECALL, fixed_paths(file), newest_change((file,)))


def find_ccache(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield ccache's folder, of which ccache itself takes what shall go."""
    folder = place.layout.cache / CCACHE
    if folder.is_dir():
        yield StoredItem(
            "compilers",
            CCACHE,
            fixed_paths(folder),
            newest_change((folder, *list_children(folder))),
            whole=False,
        )


def find_sccache(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what sccache keeps, a file each: it has no command that takes a part of it."""
    yield from _files("compilers", place.layout.cache / SCCACHE, _no_server)


def find_unknown(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what nothing here knows, in the user's caches and in the folder of this checkout."""
    state, cache = place.layout.state, place.layout.cache
    ours = {place.layout.trees, place.layout.sources, place.layout.logs, place.layout.demo}
    for path in (*list_children(state), *list_children(cache)):
        claimed = path.name in CLAIMED or path.name.startswith((DELETED_NAME, HISTORY))
        if path not in ours and not claimed and path != place.layout.selection:
            yield StoredItem("other", str(path), fixed_paths(path), newest_change((path,)))


def _last_read(folder: Path) -> float:
    """Return when a build last read a program or a header, to the day: so often file systems note it."""
    found = [0.0]
    for path in (*list_children(folder / "bin"), *list_children(folder / "include")):
        with contextlib.suppress(OSError):
            if path.is_file():
                found.append(path.stat().st_atime)
    return max(found)


def _files(kind: str, folder: Path, hindrance: Hindrance) -> Iterator[StoredItem]:
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):  # hidden: somebody is writing it
            yield StoredItem(
                kind,
                str(path.relative_to(folder.parent)),
                fixed_paths(path),
                newest_change((path,)),
                hindrance=hindrance,
            )


def _unbuilt(place: StoragePlace, *paths: Path) -> Hindrance:
    def hindrance(running: RunningProcesses) -> str:
        if (build := running.build(place.layout.cache)) is not None:
            return f"in use by a build ({build})"
        used = next(filter(None, map(running.within, paths)), None)  # a server that outlives its build
        return f"in use by {used}" if used else ""

    return hindrance


def _no_server(running: RunningProcesses) -> str:
    found = running.runs("sccache")
    return f"in use by sccache's server ({found}): `sccache --stop-server` ends it" if found else ""
