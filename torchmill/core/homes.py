"""Tell whether the contents of a home (the folder of `.torchmill/`, `dist/`, …) are the user's.

The command `torchmill` works in the current folder, and that folder may be a clone of somebody's
repository. torchmill deletes, overwrites and trusts its files there; so these must not have come
with the clone. Nothing inside the folder can prove that alone: a repository holds whatever its
author put there. Hence a mark: a random number in the state folder that the user's cache has
recorded for this path.
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
# The places of a home that torchmill writes to: if one were a link, it would write elsewhere.
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
_UNTRACKED = (STATE, ENVIRONMENTS)  # places of which git must track nothing
_OUR_ENVIRONMENT = re.compile(r"\w+-\d+-\d+t?-\w+")  # nox's name of it: "wheel-3-12-cpu"
_MENTIONED = re.compile("|".join(re.escape(place) for place in PLACES).encode(), re.IGNORECASE)


class HomeRecord(NamedTuple):
    """The record of a home in the user's cache."""

    number: str
    links: Mapping[str, str]  # those that the user trusts: "dist" -> its target


def require_untracked_state(root: Path) -> None:
    """Raise ConfigError if git tracks a file that torchmill would delete, run or write through.

    A home whose index cannot be read passes: only its mark can then show that its state is the
    user's (`require_own_home`).
    """
    for entry in list_tracked(root, _MENTIONED) or ():
        place = _find_place(root, entry)
        path = root / entry.path
        if place in _UNTRACKED:
            raise ConfigError(
                f"{path} came with the repository: git tracks it, and only torchmill may make "
                f"what lies in {place}/: remove it (`git rm -r {place}`), or let TORCHMILL_HOME "
                "name another folder",
                code="tracked-state",
            )
        if place and entry.is_link:
            raise ConfigError(
                f"{path} is a link that came with the repository (git tracks it), and torchmill "
                f"would follow it to {path.readlink()}: remove it (`git rm {entry.path}`), or let "
                "TORCHMILL_HOME name another folder",
                code="foreign-link",
            )


def _find_place(root: Path, entry: TrackedFile) -> str:
    """Return the place of a home that a tracked file is, or lies in; "" for any other file.

    Files inside a place count for the state, the environments and the facts only.
    """
    for place in PLACES:
        beginning = entry.path[: len(place)]
        rest = entry.path[len(place) :]
        is_inside = rest.startswith("/")
        if beginning.lower() != place or (rest and not is_inside):
            continue
        if is_inside and place not in (*_UNTRACKED, FACTS):
            continue
        # On some disks `.Torchmill` is another folder, on others the same one.
        if beginning == place or _is_same(root / beginning, root / place):
            return place
    return ""


def _is_same(path: Path, other: Path) -> bool:
    """Tell whether two paths are the same file or link; False if one is missing."""
    try:
        return os.path.samestat(path.lstat(), other.lstat())
    except OSError:
        return False


def require_own_home(layout: Layout) -> None:
    """Raise ConfigError if a home has state or links that may not be the user's.

    To be called for a home that the user did not name. A home without any state passes, and is not
    marked yet.
    """
    require_untracked_state(layout.root)
    record = _read_record(layout)
    state = _first_state(layout.root)
    if state is not None and not _is_marked(layout.root, record):
        raise ConfigError(
            f"{state} was not made here by you, as far as your cache records: it may have come "
            "with what you cloned or unpacked, and torchmill would delete and trust what lies in "
            "it: delete it, or, if it is yours (you moved the folder, or emptied your cache), "
            "run `torchmill trust`",
            code="foreign-state",
        )
    for name in _list_links(layout.root):
        if not _is_own_link(layout.root, name, record):
            link = layout.root / name
            raise ConfigError(
                f"{link} is a link to {link.readlink()}, and nothing says that you made it: it may "
                "have come with what you unpacked; remove it, or, if it is yours, "
                "run `torchmill trust`",
                code="foreign-link",
            )


def mark_home(layout: Layout) -> None:
    """Record a home, and mark its state folder as made by this user; make it if it is missing.

    Does nothing in a container, which uses the home of its machine. Errors are ignored: whatever
    writes to the folder next meets the same error, and reports it.
    """
    if layout.container_arch:
        return
    record = _read_record(layout)
    if _is_marked(layout.root, record):
        return
    state = layout.root / STATE
    with contextlib.suppress(OSError):
        if record is None:
            record = _record_home(layout, {})
        state.mkdir(parents=True, exist_ok=True)
        # Users may share a home: each has a line.
        numbers = [*_read_mark(layout.root), record.number]
        write_atomically(state / MARK, "".join(f"{number}\n" for number in numbers))


def trust_home(layout: Layout) -> list[str]:
    """Record that all state and all links in a home are the user's.

    Returns the lines to print about them.

    Raises ConfigError for files that git tracks, OSError if the record cannot be written.
    """
    require_untracked_state(layout.root)
    links = {name: str((layout.root / name).readlink()) for name in _list_links(layout.root)}
    _record_home(layout, links)
    mark_home(layout)
    # mark_home ignores errors, but this command must not report success without a mark.
    if not _is_marked(layout.root, _read_record(layout)):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(layout.root / STATE / MARK))
    lines = [f"{layout.root / STATE}: yours"]
    for name, target in links.items():
        lines.append(f"{layout.root / name}: your link to {target}")
    return lines


def _first_state(root: Path) -> Path | None:
    """Return a path in a home whose content torchmill would trust; None if there is none.

    That is the state folder if it is not empty, or else the environment of a build.
    """
    state = root / STATE
    with contextlib.suppress(OSError):
        if state.is_symlink() or state.is_file() or os.listdir(state):  # noqa: PTH208 - only names
            return state
    with contextlib.suppress(OSError):
        for path in sorted((root / ENVIRONMENTS).iterdir()):
            if _OUR_ENVIRONMENT.fullmatch(path.name):
                return path
    return None


def _list_links(root: Path) -> Iterator[str]:
    """Yield the places of a home that are links, and the links in its state folder."""
    for place in PLACES:
        if (root / place).is_symlink():
            yield place
    with contextlib.suppress(OSError):
        for path in sorted((root / STATE).iterdir()):
            if path.is_symlink():
                yield f"{STATE}/{path.name}"


def _is_own_link(root: Path, name: str, record: HomeRecord | None) -> bool:
    """Tell whether the user made a link, which git does not track (`require_untracked_state`).

    That is so if the record has the link (`trust_home`), or if the link lies in a work tree of git
    whose index can be read. A link outside of any work tree may come from an archive.
    """
    if record is not None and record.links.get(name) == str((root / name).readlink()):
        return True
    # None: git's index cannot be read, so that it may track this link.
    return find_work_tree(root) is not None and list_tracked(root, _MENTIONED) is not None


def _record_file(layout: Layout) -> Path:
    """Return the file in the user's cache that has the record of a home."""
    # A digest, because the path itself has slashes, and may be too long for a file's name.
    digest = hashlib.sha256(os.fsencode(layout.root)).hexdigest()
    return layout.cache / HOMES / f"{digest[:32]}.json"


def _read_record(layout: Layout) -> HomeRecord | None:
    """Return the record of a home; None if it has none, or a damaged one."""
    data = load_object(_record_file(layout))
    number = data.get("number")
    links = data.get("links")
    if not isinstance(number, str) or not number or not isinstance(links, dict):
        return None
    return HomeRecord(number, links)


def _record_home(layout: Layout, links: Mapping[str, str]) -> HomeRecord:
    """Record a home in the user's cache, and return the record.

    A home that is recorded already keeps its number; `links` replace its links.
    """
    from filelock import FileLock

    file = _record_file(layout)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):  # two commands may begin at the same time
        previous = _read_record(layout)
        number = previous.number if previous else secrets.token_hex(16)
        record = HomeRecord(number, dict(links))
        data = {"home": str(layout.root), "number": record.number, "links": record.links}
        # For this user only: whoever knows the number could put it into a repository.
        write_atomically(file, json.dumps(data, indent=1) + "\n", 0o600)
    return record


def _read_mark(root: Path) -> list[str]:
    """Return the numbers in the mark of a home; [] if there is no mark, or if it is a link."""
    mark = root / STATE / MARK
    if not mark.is_file() or mark.is_symlink():
        return []
    return read_text(mark).split()


def _is_marked(root: Path, record: HomeRecord | None) -> bool:
    """Tell whether the mark of a home has the number that the user's cache records for it."""
    return record is not None and record.number in _read_mark(root)
