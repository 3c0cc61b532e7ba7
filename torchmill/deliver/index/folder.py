"""Write the folder of an index; files that the index did not write stay untouched.

The *place* of a file is its path in the folder: "cpu/torch-….whl". The *state* of an index lists
the files that earlier runs wrote, by place, with their sha256. Anything else in the folder is
*foreign*.

Files appear before the pages that name them, and pages change before files are removed; each file
appears by rename. Before a run writes, it notes in the state what it will write, so that a run that
was stopped can be continued.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

from millpress import wheel_file

from torchmill.core import locks
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.core.lenient_paths import link_file
from torchmill.core.system_errors import machine_error
from torchmill.core.units import name_few
from torchmill.deliver.index.pages import METADATA, PAGE_NAMES
from torchmill.deliver.index.scan import ScannedWheel, stamp_file
from torchmill.deliver.index.state import (
    STATE_FILE,
    STATE_FOLDER,
    IndexState,
    load_state,
    save_state,
)

# The ways in which wheels get into an index.
LINK = "link"  # as a second name (hard link) of the file in dist/
COPY = "copy"
STAY = "stay"  # not at all: the pages link to the wheels in dist/, or to the URL of another place

# The name of the file that is being written, in STATE_FOLDER. So a run that was killed leaves no
# half-written file anywhere else.
FRESH = "fresh"

# The kinds of paths in a folder. OTHER are links, pipes and devices.
FILE = "file"
DIRECTORY = "folder"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class IndexContents:
    """The contents that the folder of an index will have."""

    pages: Mapping[str, str]  # by place, in the order of writing
    wheels: tuple[ScannedWheel, ...]  # those that are in the folder
    state: IndexState  # without `written`
    # The documents beside each wheel, by the wheel's file and by suffix.
    companions: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)

    @property
    def documents(self) -> dict[str, bytes]:
        """Return the documents beside the wheels, by their places."""
        documents = {}
        for wheel in self.wheels:
            companions = self.companions.get(wheel.entry.file, {})
            for suffix, content in companions.items():
                documents[wheel.entry.place + suffix] = content
        return documents

    @property
    def digests(self) -> dict[str, str]:
        """Return the sha256 of each file by its place: wheels, their METADATA, documents, pages."""
        digests = {}
        for wheel in self.wheels:
            digests[wheel.entry.place] = wheel.entry.sha256
        for wheel in self.wheels:
            digests[wheel.entry.place + METADATA] = wheel.entry.metadata_sha256
        for place, content in self.documents.items():
            digests[place] = hashlib.sha256(content).hexdigest()
        for place, text in self.pages.items():
            digests[place] = hashlib.sha256(text.encode()).hexdigest()
        return digests


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """The places that a run wrote, removed, and left alone because they are not the index's."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    foreign: tuple[str, ...]


def require_index_folder(out: Path) -> None:
    """Raise DeliveryError for a folder that is neither empty nor an index; nothing is changed."""
    if load_state(out) is not None:
        return
    if out.is_symlink() and not out.exists():
        raise DeliveryError(
            f"{out} is a broken link: remove it, or name another folder with --out",
            code="broken-link",
        )
    if not out.exists():
        return
    if not out.is_dir():
        raise DeliveryError(
            f"{out} is a file, and the index needs a folder there: name another place with --out, "
            "or remove the file",
            code="foreign-folder",
        )
    names = sorted(path.name for path in out.iterdir())
    if STATE_FOLDER in names and _is_of_stopped_run(out / STATE_FOLDER):
        names.remove(STATE_FOLDER)
    if names:
        raise DeliveryError(
            f"{out}: holds {name_few(names)}, which no index wrote: name an empty folder with "
            "--out, or remove what is in the way",
            code="foreign-folder",
        )


def _is_of_stopped_run(folder: Path) -> bool:
    """Tell if a folder without a state has nothing but what a stopped run leaves there.

    The run may have been killed before its first state appeared by rename: then the hidden file
    with the state is left, too (`write_atomically`).
    """
    unfinished_state = f".{PurePosixPath(STATE_FILE).name}."
    for path in folder.iterdir():
        is_unfinished = path.name in {locks.LOCK_FILE, FRESH}
        if not is_unfinished and not path.name.startswith(unfinished_state):
            return False
    return True


def write_folder(
    out: Path, contents: IndexContents, previous: IndexState, placement: str
) -> IndexOutcome:
    """Write the contents of a folder; files that have the right bytes already are not touched.

    `placement` is LINK (another name of the same file, or a copy if the disk has no links) or COPY.
    Raises DeliveryError if somebody else wrote or changed a file that the index has to write or
    remove, or if a wheel in dist/ has changed since it was scanned; HostError if the disk refuses.
    """
    digests = contents.digests
    wheels = {wheel.entry.place: wheel for wheel in contents.wheels}
    try:
        kinds = dict(_list_places(out, ""))
        foreign = {place for place, kind in kinds.items() if _is_foreign(place, kind, previous)}
        _require_free(out, kinds, foreign, digests)
        present = {}
        for place in {*previous.written, *digests}:
            if kinds.get(place) == FILE:
                present[place] = _digest_place(out, place, wheels.get(place))
        _require_untouched(out, present, previous, digests)
        changed = [place for place, digest in digests.items() if present.get(place) != digest]
        stale = sorted(present.keys() - digests.keys(), key=_removal_order)
        # Until the run ends, a file may have its previous digest or the new one.
        if changed or stale:
            save_state(out, replace(previous, written=_possible_digests(previous, digests)))
        _write_files(out, contents, set(changed), placement)
        _remove_files(out, stale)
        written = {place: (digest,) for place, digest in digests.items()}
        save_state(out, replace(contents.state, written=written))
    except OSError as error:
        raise machine_error(error, out) from None
    return IndexOutcome(tuple(changed), tuple(stale), tuple(sorted(foreign)))


def _is_foreign(place: str, kind: str, previous: IndexState) -> bool:
    """Tell if something in the folder was not written by the index; `kind` is one of its kinds."""
    return kind == OTHER or (kind == FILE and place not in previous.written)


def _removal_order(place: str) -> tuple[bool, str]:
    """Return the key that sorts pages first, then whatever they name.

    So no page names a file that is missing.
    """
    return (PurePosixPath(place).name not in PAGE_NAMES, place)


def _possible_digests(
    previous: IndexState, digests: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the sha256 that each file may have until the run ends: previous and new values."""
    possible = dict(previous.written)
    for place, digest in digests.items():
        earlier = possible.get(place, ())
        if digest not in earlier:
            possible[place] = (*earlier, digest)
    return possible


def _list_places(folder: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the kind of everything below a folder, except what is in STATE_FOLDER.

    `prefix` begins the places: "" for the folder of the index, "cpu/" for its folder "cpu".
    """
    if not folder.exists():
        return
    with os.scandir(folder) as scan:
        for entry in scan:
            place = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if place != STATE_FOLDER:
                    yield place, DIRECTORY
                    yield from _list_places(Path(entry.path), f"{place}/")
            elif entry.is_file(follow_symlinks=False):
                yield place, FILE
            else:
                yield place, OTHER


def _require_free(
    out: Path, kinds: Mapping[str, str], foreign: Collection[str], places: Iterable[str]
) -> None:
    """Raise DeliveryError if something foreign is where the index has to write, or above it.

    A file of the index itself is never above a place: its files have suffixes that neither a
    variant nor a project can have (`_refuse_colliding_labels` in pages.py).
    """
    for place in places:
        parents = [str(parent) for parent in PurePosixPath(place).parents]
        blocking = sorted({place, *parents}.intersection(foreign))
        if not blocking and kinds.get(place) == DIRECTORY:
            blocking = [place]
        if blocking:
            raise DeliveryError(
                f"{out / blocking[0]}: the index did not write this, and {place} has to go there: "
                "remove it, or name another folder with --out",
                code="foreign-file",
            )


def _require_untouched(
    out: Path, present: Mapping[str, str], previous: IndexState, digests: Mapping[str, str]
) -> None:
    """Raise DeliveryError for files of the index that somebody changed.

    A file may have the digest that an earlier run noted, or the one of the new contents.
    """
    changed = []
    for place, sha256 in sorted(present.items()):
        if sha256 not in previous.written.get(place, ()) and sha256 != digests.get(place):
            changed.append(place)
    if changed:
        raise DeliveryError(
            f"{out}: {name_few(changed)} changed since `invoke index` wrote it: remove it (the "
            "index writes it again if it still needs it), or name another folder with --out",
            code="changed-by-hand",
        )


def _digest_place(out: Path, place: str, wheel: ScannedWheel | None) -> str:
    """Return the sha256 of a file in the index.

    A wheel with the size and time of the wheel in dist/ is not read: a copy has both, too.
    """
    if wheel and stamp_file(out / place).has_size_and_time_of(wheel.file_stamp):
        return wheel.entry.sha256
    return hash_file(out / place)


def _write_files(
    out: Path, contents: IndexContents, changed: Collection[str], placement: str
) -> None:
    """Write the files that have changed: first the wheels and documents, then the pages."""
    for wheel in contents.wheels:
        place = wheel.entry.place
        if place in changed:
            _write_file(out, place, partial(_bring_wheel, wheel, placement))
        if place + METADATA in changed:
            metadata = wheel_file.read_metadata(wheel.path)
            _write_file(out, place + METADATA, partial(Path.write_bytes, data=metadata))
    for place, content in contents.documents.items():
        if place in changed:
            _write_file(out, place, partial(Path.write_bytes, data=content))
    for place, text in contents.pages.items():
        if place in changed:
            _write_file(out, place, partial(Path.write_bytes, data=text.encode()))


def _write_file(out: Path, place: str, write: Callable[[Path], object]) -> None:
    """Make a file appear in its place by rename; `write` writes it to the path that it is given."""
    fresh = out / STATE_FOLDER / FRESH
    target = out / place
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        fresh.unlink(missing_ok=True)  # left by a run that was killed
        write(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _bring_wheel(wheel: ScannedWheel, placement: str, target: Path) -> None:
    """Link or copy a wheel. Raises DeliveryError if it is not the file that was scanned."""
    if placement == LINK and link_file(wheel.path, target):
        is_same = stamp_file(target) == wheel.file_stamp
    else:
        shutil.copy2(wheel.path, target)
        is_same = hash_file(target) == wheel.entry.sha256
    if not is_same:
        raise DeliveryError(
            f"{wheel.path} changed while it was read: run the command again",
            code="changed-meanwhile",
        )


def _remove_files(out: Path, places: Sequence[str]) -> None:
    """Remove files, and the folders that become empty."""
    for place in places:
        (out / place).unlink(missing_ok=True)
        for folder in PurePosixPath(place).parents[:-1]:
            with contextlib.suppress(OSError):  # it is not empty
                (out / folder).rmdir()
