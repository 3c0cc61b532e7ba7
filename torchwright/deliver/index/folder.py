"""The folder of an index, written so that nobody meets half of it; what is not ours in it stays as it is.

Files appear before the pages that name them, pages are changed before files go, and each in one move. What a
run will write is noted before it starts: a run that was stopped is gone on with.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from torchwright import atomic, digests
from torchwright.deliver import distributions
from torchwright.deliver.index import gathering, state
from torchwright.deliver.index.gathering import Found
from torchwright.deliver.index.site import METADATA
from torchwright.deliver.index.state import State
from torchwright.errors import DeliveryError, HostError

LINK, COPY, STAY = "link", "copy", "stay"  # how wheels get into the index
MOST = 5  # foreign files that are named
HALF = re.compile(r"\.(?P<name>.+)\.\d+")  # what a killed run leaves of a file


@dataclass(frozen=True, slots=True)
class Wanted:
    """What shall lie in the folder."""

    pages: Mapping[str, str]  # in the order in which they may be written
    wheels: tuple[Found, ...]  # those that lie in it
    state: State  # but for what is written

    @property
    def digests(self) -> dict[str, str]:
        """Return the sha256 of each file by its place."""
        wheels = {one.entry.place: one.entry.sha256 for one in self.wheels}
        beside = {one.entry.place + METADATA: one.entry.metadata_sha256 for one in self.wheels}
        pages = {place: hashlib.sha256(text.encode()).hexdigest() for place, text in self.pages.items()}
        return wheels | beside | pages


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did."""

    written: tuple[str, ...]  # places
    removed: tuple[str, ...]
    foreign: tuple[str, ...]  # what is not ours, and was left


def require_ours(out: Path) -> State | None:
    """Return the state of the folder, None where there is none yet; it is only looked at.

    Raises DeliveryError where it holds something and was not made by an index.
    """
    before = state.load(out)
    if before is None and out.exists():
        there = sorted(os.listdir(out)) if out.is_dir() else ["no folder"]  # noqa: PTH208 - names are enough
        if foreign := [name for name in there if name != state.FOLDER]:
            raise DeliveryError(
                f"{out}: {'holds ' if out.is_dir() else 'is '}{_few(foreign)}, which no index wrote: name an "
                "empty folder with --out, or remove what is in the way"
            )
    return before


def write(out: Path, wanted: Wanted, before: State, how: str) -> Outcome:
    """Make the folder what is wanted; what is as it shall be is not touched.

    `how` is LINK (a further name of the same file, else a copy) or COPY. Raises DeliveryError where somebody
    else wrote what we would, HostError where the disk refuses.
    """
    digests = wanted.digests
    sources = {one.entry.place: one for one in wanted.wheels}
    try:
        there = dict(_files(out, ""))
        foreign = [place for place in there if _is_foreign(place, there, before, digests)]
        _require_room(out, foreign, digests)
        ours = {*before.written, *digests} & there.keys() - set(foreign)
        found = {place: _sha256(out, place, sources.get(place)) for place in ours}
        _require_untouched(out, found, before, digests)
        changed = [place for place, digest in digests.items() if found.get(place) != digest]
        stale = sorted(ours - digests.keys(), key=_pages_first)
        if changed or stale:
            state.save(out, replace(before, written=_both(before.written, digests)))
        _fill(out, wanted, set(changed), how)
        _remove(out, [*stale, *(place for place in there if _half(place) and place not in foreign)])
        state.save(out, replace(wanted.state, written={place: (sha,) for place, sha in digests.items()}))
    except OSError as error:
        raise HostError(
            f"{error.filename or out}: cannot be written ({error.strerror or error}): see whose it is and "
            "how much room there is, or name another folder with --out"
        ) from None
    return Outcome(tuple(changed), tuple(stale), tuple(sorted(foreign)))


def _files(folder: Path, inside: str) -> Iterator[tuple[str, bool]]:
    """Yield the place of everything that is no folder, and whether it is a link."""
    if not folder.exists():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            place = f"{inside}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                yield place, entry.is_symlink()
            elif place != state.FOLDER:
                yield from _files(Path(entry.path), f"{place}/")


def _half(place: str) -> str:
    """Return the place of which a killed run left a half; "" for any other file."""
    folder, slash, name = place.rpartition("/")
    match = HALF.fullmatch(name)
    return f"{folder}{slash}{match['name']}" if match else ""


def _is_foreign(place: str, links: Mapping[str, bool], before: State, digests: Collection[str]) -> bool:
    ours = {*before.written, *digests} if _half(place) else before.written
    return links[place] or (_half(place) or place) not in ours


def _require_room(out: Path, foreign: Collection[str], wanted: Iterable[str]) -> None:
    """Refuse to write where something lies that is not ours, or through a link."""
    for place in wanted:
        ways = {place, *map(str, PurePosixPath(place).parents)}
        if blocked := sorted(ways.intersection(foreign)):
            raise DeliveryError(
                f"{out / blocked[0]}: the index did not write this, and {place} has to go there: remove "
                "it, or name another folder with --out"
            )


def _require_untouched(
    out: Path, found: Mapping[str, str], before: State, digests: Mapping[str, str]
) -> None:
    """Refuse to go over files of ours that somebody changed."""
    changed = [
        place
        for place, sha256 in sorted(found.items())
        if sha256 not in before.written.get(place, ()) and sha256 != digests.get(place)
    ]
    if changed:
        raise DeliveryError(
            f"{out}: somebody else changed {_few(changed)}: remove what shall be written anew, or name "
            "another folder with --out"
        )


def _sha256(out: Path, place: str, source: Found | None) -> str:
    """Return the digest of what lies in a place; a wheel that looks as the one in dist/ is not read."""
    if source and gathering.look(out / place).split()[:2] == source.look.split()[:2]:
        return source.entry.sha256
    return digests.sha256(out / place)


def _both(before: Mapping[str, tuple[str, ...]], digests: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    fresh = {place: (sha256,) for place, sha256 in digests.items()}
    places = before.keys() | fresh.keys()
    return {place: tuple(dict.fromkeys((*before.get(place, ()), *fresh.get(place, ())))) for place in places}


def _fill(out: Path, wanted: Wanted, changed: Collection[str], how: str) -> None:
    """Write what is not there, or not so: the files first, then the pages that name them."""
    for one in wanted.wheels:
        place = one.entry.place
        if place in changed:
            (out / place).parent.mkdir(parents=True, exist_ok=True)
            _bring(one, out / place, how)
        if place + METADATA in changed:
            atomic.write(out / (place + METADATA), distributions.read_metadata(one.path))
    for place, text in wanted.pages.items():
        if place in changed:
            atomic.write(out / place, text)


def _bring(wheel: Found, target: Path, how: str) -> None:
    """Put a wheel into the index; it appears whole, and is what was read."""
    source = wheel.path.resolve()  # a link would be linked as a link
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if how == COPY or not _linked(source, fresh):
            shutil.copy2(source, fresh)
            same = digests.sha256(fresh) == wheel.entry.sha256
        else:
            same = gathering.look(fresh) == wheel.look
        if not same:
            raise DeliveryError(f"{wheel.path}: was changed while it was read: run the command again")
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _linked(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except OSError:  # another disk, or one that has no links: a full one refuses the copy, too
        return False
    return True


def _pages_first(place: str) -> bool:
    return place.endswith((".whl", METADATA))


def _remove(out: Path, places: Sequence[str]) -> None:
    """Remove files, and the folders that have become empty."""
    for place in places:
        (out / place).unlink(missing_ok=True)
        for folder in PurePosixPath(place).parents[:-1]:
            with contextlib.suppress(OSError):
                (out / folder).rmdir()


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more
