"""From folders of wheels to entries: each wheel is read and examined once, and remembered by how it looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torchmill import recall
from torchmill.deliver import distributions
from torchmill.deliver.index import entry, yanking
from torchmill.deliver.index.entry import Entry
from torchmill.deliver.index.state import Kept
from torchmill.errors import DeliveryError

MOST = 3  # problems of one wheel that are told
Note = Callable[[int, int, str], None]  # how many are read, of how many, and which is being read


@dataclass(frozen=True, slots=True)
class Found:
    """A wheel of dist/ and what the index tells of it."""

    path: Path
    look: str
    entry: Entry

    @property
    def kept(self) -> Kept:
        """Return what is remembered: nothing of how it looks, where it changed just now."""
        settled = int(self.look.split()[1]) < (time.time() - recall.SETTLED) * 1e9
        return Kept(self.look if settled else "", self.entry)


def gathered(
    dists: Sequence[Path], known: Mapping[str, Kept], replace: Collection[str], note: Note
) -> tuple[Found, ...]:
    """Return the wheels of some folders, by name, version and file.

    `known` is what the index remembers by file names, `replace` names versions whose wheels may have changed.
    Raises DeliveryError for whatever is wrong with any of them, all in one message.
    """
    paths = [path for dist in dists for path in distributions.files(dist)]
    looks = {path: look(path) for path in paths}
    fresh = [path for path in paths if not _remembered(known.get(path.name), looks[path])]
    read: dict[Path, Entry] = {}
    problems: list[str] = []
    for number, path in enumerate(fresh):
        note(number, len(fresh), path.name)
        try:
            read[path] = _read(path, known.get(path.name), replace)
        except DeliveryError as error:
            problems.append(str(error))
    if problems:
        raise DeliveryError("\n  ".join(["these wheels are not indexed:", *problems]))
    all_ = [
        Found(path, looks[path], read[path] if path in read else known[path.name].entry) for path in paths
    ]
    return _single(all_)


def look(path: Path) -> str:
    """Return how a file looks, which a further name of it does not change. Raises DeliveryError."""
    try:
        seen = path.stat()
    except OSError as error:
        raise DeliveryError(f"{path}: cannot be read ({error.strerror or error}): remove it") from None
    return f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ino}"


def _remembered(kept: Kept | None, look: str) -> bool:
    return kept is not None and kept.look == look


def _read(path: Path, before: Kept | None, replace: Collection[str]) -> Entry:
    wheel = distributions.read(path)
    known = before.entry if before else None
    same = known is not None and known.sha256 == wheel.sha256
    found = entry.of(wheel, known.uploaded if known is not None and same else _now())
    if known is not None and not same and not any(yanking.meant(one, found) for one in replace):
        raise DeliveryError(
            f"{path}: is another file than the index has under this name (sha256 {wheel.sha256[:12]}…, not "
            f"{known.sha256[:12]}…), and who pinned that one would be refused this one: give it a build "
            f"number or another version, or say --replace {found.name}=={found.version}"
        )
    if not same and (wrong := _wrong(path)):
        more = f" (and {len(wrong) - MOST} more)" if len(wrong) > MOST else ""
        raise DeliveryError(
            f"{path}: {'; '.join(wrong[:MOST])}{more}: build or fetch it again, or leave it out"
        )
    return found


def _wrong(path: Path) -> list[str]:
    from torchmill.verify import tagged  # noqa: PLC0415 - policies are slow to load, and few wheels are new

    return [*distributions.examine(path), *tagged.problems(path)]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _single(wheels: Sequence[Found]) -> tuple[Found, ...]:
    """Return each wheel once. Raises DeliveryError where two files claim to be the same and are not."""
    known: dict[object, Found] = {}
    for one in wheels:
        name, version, build, tags = distributions.named(one.path)
        other = known.setdefault((name, version, build, tags), one)
        if other.entry.sha256 != one.entry.sha256:
            raise DeliveryError(
                f"{other.path} and {one.path} are different files for the same wheel: remove one of them"
            )
    return tuple(sorted(known.values(), key=lambda one: (one.entry.name, one.entry.version, one.entry.file)))
