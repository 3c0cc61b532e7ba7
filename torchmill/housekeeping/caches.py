"""What all checkouts of a user share: members of wheels, downloads, gates, toolkits, the compiler caches."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from torchmill.host.kept import FOLDER as TOOLKITS
from torchmill.host.kept import MAKING, RECORD, WHOLE
from torchmill.housekeeping.items import Hindrance, Item, Place, just, nothing
from torchmill.housekeeping.running import Running
from torchmill.housekeeping.usage import children, newest
from torchmill.locks import LOCK
from torchmill.removal import GONE, contents

MEMBERS, DEBIAN, UPSTREAM, DOWNLOADS = "members", "debian", "upstream", "downloads"
TOOLS = ("gates", "stand-ins", "compilers", "programs")
CCACHE, SCCACHE, HISTORY, RECALL = "ccache", "sccache", "units.sqlite", "recall.json"
CLAIMED = frozenset(
    {MEMBERS, DEBIAN, UPSTREAM, DOWNLOADS, TOOLKITS, *TOOLS, CCACHE, SCCACHE, HISTORY, RECALL}
)


def members(place: Place) -> Iterator[Item]:
    """Yield what was compressed for wheels, a file each."""
    yield from _files("members", place.layout.cache / MEMBERS, nothing)


def downloads(place: Place) -> Iterator[Item]:
    """Yield what was downloaded of sources and for toolkits, and read from the package index."""
    debian, upstream = place.layout.cache / DEBIAN, place.layout.cache / UPSTREAM
    if debian.is_dir() and (inside := contents(debian)):
        yield Item("downloads", DEBIAN, lambda: contents(debian), newest(inside), "", (debian / LOCK,))
    if upstream.is_dir():
        yield Item("downloads", UPSTREAM, just(upstream), newest((upstream,)))
    unfinished = place.layout.cache / DOWNLOADS  # of a toolkit that came to be, nothing is left here
    if unfinished.is_dir() and (inside := [path for one in children(unfinished) for path in children(one)]):
        locks = tuple((place.layout.cache / TOOLKITS).glob(f"{MAKING}*/{LOCK}"))
        yield Item("downloads", DOWNLOADS, just(unfinished), newest(inside), "", locks)


def toolkits(place: Place) -> Iterator[Item]:
    """Yield toolkits, libraries and compilers that were brought, and what is left of those that were not."""
    for folder in children(place.layout.cache / TOOLKITS):
        name = folder.name.removeprefix(MAKING)
        lock = folder.with_name(f"{MAKING}{name}") / LOCK
        whole = folder / WHOLE
        if name == folder.name and not name.startswith(GONE):
            used = max(newest((folder, folder / RECORD)), _last_read(folder))
            yield Item("toolkits", name, just(folder), used, "", (lock,), _unbuilt(place, folder))
        elif whole.is_dir():
            yield Item("toolkits", f"{name} (unfinished)", just(whole), newest((whole,)), "", (lock,))


def tools(place: Place) -> Iterator[Item]:
    """Yield what builds work with: gates, stand-ins, what is known of compilers, programs of the index."""
    for name in TOOLS:
        folder = place.layout.cache / name
        if folder.is_dir():
            used = newest((folder, *children(folder)))
            yield Item("tools", name, just(folder), used, hindrance=_unbuilt(place, folder))


def history(place: Place) -> Iterator[Item]:
    """Yield what builds taught about the memory of single files."""
    files = tuple(path for path in children(place.layout.cache) if path.name.startswith(HISTORY))
    if files:
        yield Item("history", HISTORY, just(*files), newest(files), hindrance=_unbuilt(place, *files))


def recall(place: Place) -> Iterator[Item]:
    """Yield what programs said of themselves and files were found to hold."""
    file = place.layout.cache / RECALL
    if file.is_file():
        yield Item("recall", RECALL, just(file), newest((file,)))


def ccache(place: Place) -> Iterator[Item]:
    """Yield ccache's folder, of which ccache itself takes what shall go."""
    folder = place.layout.cache / CCACHE
    if folder.is_dir():
        yield Item("compilers", CCACHE, just(folder), newest((folder, *children(folder))), whole=False)


def sccache(place: Place) -> Iterator[Item]:
    """Yield what sccache keeps, a file each: it has no command that takes a part of it."""
    yield from _files("compilers", place.layout.cache / SCCACHE, _no_server)


def other(place: Place) -> Iterator[Item]:
    """Yield what nothing here knows, in the user's caches and in the folder of this checkout."""
    state, cache = place.layout.state, place.layout.cache
    ours = {place.layout.trees, place.layout.sources, place.layout.logs, place.layout.demo}
    for path in (*children(state), *children(cache)):
        claimed = path.name in CLAIMED or path.name.startswith((GONE, HISTORY))
        if path not in ours and not claimed and path != place.layout.selection:
            yield Item("other", str(path), just(path), newest((path,)))


def _last_read(folder: Path) -> float:
    """Return when a build last read a program or a header, to the day: so often file systems note it."""
    found = [0.0]
    for path in (*children(folder / "bin"), *children(folder / "include")):
        with contextlib.suppress(OSError):
            if path.is_file():
                found.append(path.stat().st_atime)
    return max(found)


def _files(kind: str, folder: Path, hindrance: Hindrance) -> Iterator[Item]:
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):  # hidden: somebody is writing it
            yield Item(
                kind, str(path.relative_to(folder.parent)), just(path), newest((path,)), hindrance=hindrance
            )


def _unbuilt(place: Place, *paths: Path) -> Hindrance:
    def hindrance(running: Running) -> str:
        if (build := running.build(place.layout.cache)) is not None:
            return f"in use by a build ({build})"
        used = next(filter(None, map(running.within, paths)), None)  # a server that outlives its build
        return f"in use by {used}" if used else ""

    return hindrance


def _no_server(running: Running) -> str:
    found = running.runs("sccache")
    return f"in use by sccache's server ({found}): `sccache --stop-server` ends it" if found else ""
