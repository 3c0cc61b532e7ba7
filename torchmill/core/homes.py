"""Tell whether what lies in a home (the folder of `.torchmill/`, `dist/` and so on) is the user's.

The command `torchmill` works in the folder that it is called in, and that folder may be a clone of somebody's
repository. What torchmill keeps there is deleted, written to, and trusted; so it must not have come with the clone.
Nothing inside the folder can prove that alone: a repository holds whatever its author put there. Hence a mark: a
random number in the state folder that the user's cache has recorded for this path.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import ConfigError
from torchmill.core.git_index import TrackedFile, find_work_tree, list_tracked
from torchmill.core.lenient_paths import read_text
from torchmill.core.paths import HOMES, Layout
from torchmill.core.strict_json import load_object

STATE = ".torchmill"
MARK = "mark"  # in the state folder: the number of its home
ENVIRONMENTS = ".nox"
FACTS = "build_configs"
# Whoever writes to one of these in a home would write elsewhere if it were a link.
PLACES = (
    STATE,
    "dist",
    "dist/conda",
    "index",
    "channel",
    ENVIRONMENTS,
    ".devcontainer",
    FACTS,
    f"{FACTS}/packages",
    f"{FACTS}/releases",
    f"{FACTS}/patches",
)
_STATE_OF_GIT = (STATE, ENVIRONMENTS)  # of these, git tracks nothing
_OUR_ENVIRONMENT = re.compile(
    r"\w+-\d+-\d+t?-\w+"
)  # nox's name for that of a build: "wheel-3-12-cpu"
_MENTIONED = re.compile("|".join(re.escape(place) for place in PLACES).encode(), re.IGNORECASE)


class HomeRecord(NamedTuple):
    """What the user's cache holds of a home: its number, and the links that the user said are his."""

    number: str
    links: Mapping[str, str]  # "dist" -> what the link says


def require_untracked_state(root: Path) -> None:
    """Raise ConfigError if git tracks something in a home that torchmill would delete, run or write through."""
    tracked = list_tracked(root, _MENTIONED) or ()
    for entry in tracked:
        place = _place_of(root, entry)
        if place in _STATE_OF_GIT:
            raise ConfigError(
                f"{root / entry.path} came with the repository: git tracks it, and only torchmill may make what lies "
                f"in {place}/: remove it (`git rm -r {place}`), or let TORCHMILL_HOME name another folder",
                code="tracked-state",
            )
        if place and entry.link:
            raise ConfigError(
                f"{root / entry.path} is a link that came with the repository (git tracks it), and torchmill would "
                f"follow it to {(root / entry.path).readlink()}: remove it (`git rm {entry.path}`), or let "
                "TORCHMILL_HOME name another folder",
                code="foreign-link",
            )


def _place_of(root: Path, entry: TrackedFile) -> str:
    """Return the place of a home that a tracked file is, or lies in; "" for any other file.

    Of places other than the state only links at the place itself count, and of facts all links.
    """
    for place in PLACES:
        path = entry.path[: len(place)]
        below = entry.path[len(place) : len(place) + 1] == "/"
        if path.lower() != place or not (below or entry.path[len(place) :] == ""):
            continue
        if below and place not in (*_STATE_OF_GIT, FACTS):
            continue
        # On some disks `.Torchmill` is another folder, on others the same one.
        if path == place or _is_same(root / path, root / place):
            return place
    return ""


def _is_same(path: Path, other: Path) -> bool:
    try:
        return os.path.samestat(path.lstat(), other.lstat())
    except OSError:
        return False


def require_own_home(layout: Layout) -> None:
    """Raise ConfigError if a home that the user did not name holds state or links that may not be his.

    It is only looked at. A home without any state is nobody's, and may become ours.
    """
    require_untracked_state(layout.root)
    record = _read_record(layout)
    state = _first_state(layout.root)
    if state is not None and not _is_marked(layout.root, record):
        raise ConfigError(
            f"{state} was not made here by you, as far as your cache records: it may have come "
            "with what you cloned or unpacked, and torchmill would delete and trust what lies in it: delete it, or, "
            "if it is yours (you moved the folder, or emptied your cache), run `torchmill trust`",
            code="foreign-state",
        )
    for name in _list_links(layout.root):
        if not _is_own_link(layout.root, name, record):
            raise ConfigError(
                f"{layout.root / name} is a link to {(layout.root / name).readlink()}, and nothing says that you made "
                "it: it may have come with what you unpacked; remove it, or, if it is yours, run `torchmill trust`",
                code="foreign-link",
            )


def mark_home(layout: Layout) -> None:
    """Mark the state folder of a home as made by this user; make it if it is missing.

    What cannot be written is left to whoever writes there next, and says so.
    """
    if layout.container_arch or _is_marked(layout.root, record := _read_record(layout)):
        return
    state = layout.root / STATE
    with contextlib.suppress(OSError):
        number = record.number if record else _record_home(layout, {}).number
        state.mkdir(parents=True, exist_ok=True)
        # Users may share a home: each has a line.
        lines = [*_read_mark(layout.root), number]
        write_atomically(state / MARK, "".join(f"{line}\n" for line in lines))


def trust_home(layout: Layout) -> list[str]:
    """Record that all state and all links in a home are the user's; return a line for each.

    Raises ConfigError for what git tracks, OSError if the record cannot be written.
    """
    require_untracked_state(layout.root)
    links = {name: str((layout.root / name).readlink()) for name in _list_links(layout.root)}
    _record_home(layout, links)
    mark_home(layout)
    if not _is_marked(layout.root, _read_record(layout)):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(layout.root / STATE / MARK))
    return [
        f"{layout.root / STATE}: yours",
        *(f"{layout.root / name}: your link to {to}" for name, to in links.items()),
    ]


def _first_state(root: Path) -> Path | None:
    """Return what torchmill would trust in a home: a state folder that holds anything, or an environment of a build."""
    state = root / STATE
    with contextlib.suppress(OSError):
        if state.is_symlink() or state.is_file() or os.listdir(state):  # noqa: PTH208 - the names alone
            return state
    with contextlib.suppress(OSError):
        for path in sorted((root / ENVIRONMENTS).iterdir()):
            if _OUR_ENVIRONMENT.fullmatch(path.name):
                return path
    return None


def _list_links(root: Path) -> Iterator[str]:
    """Yield the names of links at the places of a home, and of those in its state folder."""
    yield from (place for place in PLACES if (root / place).is_symlink())
    with contextlib.suppress(OSError):
        yield from (
            f"{STATE}/{path.name}" for path in sorted((root / STATE).iterdir()) if path.is_symlink()
        )


def _is_own_link(root: Path, name: str, record: HomeRecord | None) -> bool:
    """Tell whether the user made a link: he said so, or it lies in a work tree of git, which does not track it.

    The files of an archive are tracked by nobody: of these, nothing can be told.
    """
    if record and record.links.get(name) == str((root / name).readlink()):
        return True
    return find_work_tree(root) is not None and list_tracked(root, _MENTIONED) is not None


def _record_file(layout: Layout) -> Path:
    digest = hashlib.sha256(os.fsencode(layout.root)).hexdigest()
    return layout.cache / HOMES / f"{digest[:32]}.json"


def _read_record(layout: Layout) -> HomeRecord | None:
    data = load_object(_record_file(layout))
    number, links = data.get("number"), data.get("links")
    if not isinstance(number, str) or not number or not isinstance(links, dict):
        return None
    return HomeRecord(number, links)


def _record_home(layout: Layout, links: Mapping[str, str]) -> HomeRecord:
    """Record a home in the user's cache, and return the record; one that is there keeps its number."""
    from filelock import FileLock

    file = _record_file(layout)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):  # two commands may begin at a time
        before = _read_record(layout)
        record = HomeRecord(before.number if before else secrets.token_hex(16), {**links})
        data = {"home": str(layout.root), "number": record.number, "links": record.links}
        write_atomically(file, json.dumps(data, indent=1) + "\n", 0o600)
    return record


def _read_mark(root: Path) -> list[str]:
    mark = root / STATE / MARK
    return read_text(mark).split() if mark.is_file() and not mark.is_symlink() else []


def _is_marked(root: Path, record: HomeRecord | None) -> bool:
    return record is not None and record.number in _read_mark(root)
