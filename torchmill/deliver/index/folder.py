"""Write the folder of an index atomically; files that are not ours stay untouched.

Files appear before the pages that name them, pages are changed before files go, and each in one move. What
a run will write is noted before it starts: a run that was stopped is gone on with.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from torchmill.core import files, locks
from torchmill.core.errors import DeliveryError, HostError
from torchmill.deliver.index import scan
from torchmill.deliver.index.pages import METADATA
from torchmill.deliver.index.scan import IndexState, ScannedWheel
from torchmill.wheel import wheel_file

LINK, COPY, STAY = "link", "copy", "stay"  # how wheels get into the index
MOST = 5  # foreign files that are named
FRESH = "fresh"  # what is being written, beside the state: what a killed run leaves lies nowhere else
FILE, DIRECTORY, OTHER = "file", "folder", "other"  # OTHER: links, pipes, devices


@dataclass(frozen=True, slots=True)
class IndexContents:
    """What shall lie in the folder."""

    pages: Mapping[str, str]  # in the order in which they may be written
    wheels: tuple[ScannedWheel, ...]  # those that lie in it
    state: IndexState  # but for what is written

    @property
    def digests(self) -> dict[str, str]:
        """Return the sha256 of each file by its place."""
        wheels = {one.entry.place: one.entry.sha256 for one in self.wheels}
        beside = {one.entry.place + METADATA: one.entry.metadata_sha256 for one in self.wheels}
        pages = {place: hashlib.sha256(text.encode()).hexdigest() for place, text in self.pages.items()}
        return wheels | beside | pages


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """What a run did."""

    written: tuple[str, ...]  # places
    removed: tuple[str, ...]
    foreign: tuple[str, ...]  # what is not ours, and was left


def require_our_index(out: Path) -> IndexState | None:
    """Return the state of the folder, None where there is none yet; it is only looked at.

    Raises DeliveryError where it holds something and was not made by an index.
    """
    before = scan.load_state(out)
    if before is not None:
        return before
    if out.is_symlink() and not out.exists():
        raise DeliveryError(
            f"{out} is a broken link: remove it, or name another folder with --out",
            code="broken-link",
        )
    there = sorted(os.listdir(out)) if out.is_dir() else ["no folder"] if out.exists() else []  # noqa: PTH208
    if scan.FOLDER in there and set(os.listdir(out / scan.FOLDER)) <= {locks.LOCK_FILE, FRESH}:  # noqa: PTH208
        there.remove(scan.FOLDER)  # of a run that was stopped early
    if there:
        raise DeliveryError(
            f"{out}: {'holds ' if out.is_dir() else 'is '}{name_few(there)}, which no index wrote: name an "
            "empty folder with --out, or remove what is in the way",
            code="foreign-folder",
        )
    return None


def write_folder(out: Path, wanted: IndexContents, before: IndexState, how: str) -> IndexOutcome:
    """Make the folder what is wanted; what is as it shall be is not touched.

    `how` is LINK (a further name of the same file, else a copy) or COPY. Raises DeliveryError where somebody
    else wrote what we would, HostError where the disk refuses.
    """
    digests = wanted.digests
    sources = {one.entry.place: one for one in wanted.wheels}
    try:
        there = dict(_lying(out, ""))
        strange = {place for place, kind in there.items() if kind == FILE and place not in before.written}
        foreign = strange | {place for place, kind in there.items() if kind == OTHER}
        _require_room(out, there, foreign, digests)
        ours = {*before.written, *digests} & {place for place, kind in there.items() if kind == FILE}
        found = {place: _sha256(out, place, sources.get(place)) for place in ours}
        _require_untouched(out, found, before, digests)
        changed = [place for place, digest in digests.items() if found.get(place) != digest]
        stale = sorted(ours - digests.keys(), key=lambda place: place.endswith((".whl", METADATA)))
        if changed or stale:
            scan.save_state(out, replace(before, written=_both(before.written, digests)))
        _fill(out, wanted, set(changed), how)
        _remove(out, stale)
        scan.save_state(out, replace(wanted.state, written={place: (sha,) for place, sha in digests.items()}))
    except OSError as error:
        raise HostError(
            f"{error.filename or out}: cannot be read or written ({error.strerror or error}): see whose it "
            "is and how much room there is, or name another folder with --out",
            code="not-accessible",
        ) from None
    return IndexOutcome(tuple(changed), tuple(stale), tuple(sorted(foreign)))


def _lying(folder: Path, inside: str) -> Iterator[tuple[str, str]]:
    """Yield the place of everything in a folder, and of which kind it is."""
    if not folder.exists():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            place = f"{inside}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                yield place, FILE if entry.is_file(follow_symlinks=False) else OTHER
            elif place != scan.FOLDER:
                yield place, DIRECTORY
                yield from _lying(Path(entry.path), f"{place}/")


def _require_room(out: Path, there: Mapping[str, str], foreign: Collection[str], wanted: Iterable[str]) -> None:
    """Refuse to write where something lies that is not ours, or through a link."""
    for place in wanted:
        ways = {place, *map(str, PurePosixPath(place).parents)}
        blocked = sorted(ways.intersection(foreign))
        if blocked or there.get(place) == DIRECTORY:
            raise DeliveryError(
                f"{out / (blocked or [place])[0]}: the index did not write this, and {place} has to go "
                "there: remove it, or name another folder with --out",
                code="foreign-file",
            )


def _require_untouched(out: Path, found: Mapping[str, str], before: IndexState, digests: Mapping[str, str]) -> None:
    """Refuse to go over files of ours that somebody changed."""
    changed = [
        place
        for place, sha256 in sorted(found.items())
        if sha256 not in before.written.get(place, ()) and sha256 != digests.get(place)
    ]
    if changed:
        raise DeliveryError(
            f"{out}: {name_few(changed)} changed since `invoke index` wrote it: remove it to have it "
            f"written again, or name "
            "another folder with --out",
            code="changed-by-hand",
        )


def _sha256(out: Path, place: str, source: ScannedWheel | None) -> str:
    """Return the digest of what lies in a place; a wheel that looks as the one in dist/ is not read."""
    if source and scan.stat_wheel(out / place).split()[:2] == source.look.split()[:2]:
        return source.entry.sha256
    return files.hash_file(out / place)


def _both(before: Mapping[str, tuple[str, ...]], digests: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    fresh = {place: (sha256,) for place, sha256 in digests.items()}
    places = before.keys() | fresh.keys()
    return {place: tuple(dict.fromkeys((*before.get(place, ()), *fresh.get(place, ())))) for place in places}


def _fill(out: Path, wanted: IndexContents, changed: Collection[str], how: str) -> None:
    """Write what is not there, or not so: the files first, then the pages that name them."""
    for one in wanted.wheels:
        place = one.entry.place
        if place in changed:
            _appear(out, place, partial(_bring, one, how))
        if place + METADATA in changed:
            _appear(out, place + METADATA, partial(Path.write_bytes, data=wheel_file.read_metadata(one.path)))
    for place, text in wanted.pages.items():
        if place in changed:
            _appear(out, place, partial(Path.write_bytes, data=text.encode()))


def _appear(out: Path, place: str, make: Callable[[Path], object]) -> None:
    """Let a file be made where nobody looks, and come to its place in one move."""
    fresh, target = out / scan.FOLDER / FRESH, out / place
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        fresh.unlink(missing_ok=True)  # of a run that was killed
        make(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _bring(wheel: ScannedWheel, how: str, fresh: Path) -> None:
    """Bring a wheel; it is what was read."""
    source = wheel.path.resolve()  # a link would be linked as a link
    if how == LINK and files.link_file(source, fresh):
        same = scan.stat_wheel(fresh) == wheel.look
    else:
        shutil.copy2(source, fresh)
        same = files.hash_file(fresh) == wheel.entry.sha256
    if not same:
        raise DeliveryError(f"{wheel.path} changed while it was read: run the command again", code="changed-meanwhile")


def _remove(out: Path, places: Sequence[str]) -> None:
    """Remove files, and the folders that have become empty."""
    for place in places:
        (out / place).unlink(missing_ok=True)
        for folder in PurePosixPath(place).parents[:-1]:
            with contextlib.suppress(OSError):
                (out / folder).rmdir()


def name_few(names: Sequence[str]) -> str:
    """Return the first of many names, and how many more there are."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more
