"""Read the wheels of an index, each once, and write its folder atomically; what is not ours stays untouched.

Files appear before the pages that name them, pages are changed before files go, and each in one move. What
a run will write is noted before it starts: a run that was stopped is gone on with.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

from torchmill.core import console, locks, stat_cache
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.core.lenient_paths import link_file
from torchmill.core.strict_json import read_json_object
from torchmill.core.system_errors import machine_error
from torchmill.core.units import first_problems, name_few
from torchmill.deliver import agreement, signature
from torchmill.deliver.index import pages
from torchmill.deliver.index.pages import METADATA, IndexEntry
from torchmill.wheel import dist_files, wheel_file

FOLDER = ".torchmill"  # in the index; it also holds the lock, and what is just being written
STATE_FILE = f"{FOLDER}/index.json"
FORMAT = 1
LINK, COPY, STAY = "link", "copy", "stay"  # how wheels get into the index
FRESH = (
    "fresh"  # what is being written, beside the state: what a killed run leaves lies nowhere else
)
FILE, DIRECTORY, OTHER = "file", "folder", "other"  # OTHER: links, pipes, devices


ReadWheel = tuple[IndexEntry, tuple[str, ...]]  # with what is odd about it


@dataclass(frozen=True, slots=True)
class RememberedWheel:
    """A wheel that was read, and how its file looked then ("" where it had just changed)."""

    look: str
    entry: IndexEntry


@dataclass(frozen=True, slots=True)
class IndexState:
    """The memory of an index.

    `written` has, for each file that the index wrote, the digests (sha256) that it may have: two while a run
    writes, for that may be stopped.
    """

    written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wheels: Mapping[str, RememberedWheel] = field(default_factory=dict)  # by the name of the file
    yanked: Mapping[str, str] = field(default_factory=dict)  # "torch==1.13.1+cpu" -> the reason


def load_state(out: Path) -> IndexState | None:
    """Return the state of an index; None where the folder is none of ours.

    Raises DeliveryError where it cannot be read.
    """
    kept = out / STATE_FILE
    for path in (kept.parent, kept, kept.with_name(locks.LOCK_FILE)):
        if path.is_symlink() or (path.exists() and path.is_dir() != (path == kept.parent)):
            raise DeliveryError(
                f"{path} was not written by `invoke index`: remove it, or name another folder with --out",
                code="foreign-folder",
            )
    try:
        data = read_json_object(kept)
        if data["format"] == FORMAT:
            wheels = data["wheels"].items()
            return IndexState(
                written={place: tuple(digests) for place, digests in data["written"].items()},
                wheels={
                    name: RememberedWheel(one["look"], pages.restore_entry(name, one))
                    for name, one in wheels
                },
                yanked=dict(data["yanked"]),
            )
        why = f"its format is {data['format']}, not {FORMAT}"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError, DeliveryError):
        why = "it is damaged"
    raise DeliveryError(
        f"{kept}: cannot be read ({why}): write the index to another folder with --out, or "
        f"remove {out} if you need nothing that is in it",
        code="index-state-damaged",
    )


def save_state(out: Path, state: IndexState) -> None:
    """Write the state, unless it is kept so already. Raises OSError."""
    wheels = {name: {"look": one.look} | one.entry.as_data() for name, one in state.wheels.items()}
    data = {"format": FORMAT, "yanked": state.yanked, "wheels": wheels, "written": state.written}
    kept, text = out / STATE_FILE, json.dumps(data, indent=0, sort_keys=True) + "\n"
    if not kept.exists() or kept.read_text(encoding="utf-8") != text:
        write_atomically(kept, text)


@dataclass(frozen=True, slots=True)
class ScannedWheel:
    """A wheel of dist/ and its entry in the index."""

    path: Path
    look: str
    entry: IndexEntry
    notes: tuple[
        str, ...
    ] = ()  # what is odd about it, and no harm; of wheels that were read in this run

    @property
    def remembered(self) -> RememberedWheel:
        """Return what is remembered: nothing of how it looks, where it changed just now."""
        settled = stat_cache.FileStat(self.look, since=int(self.look.split()[1])).settled
        return RememberedWheel(self.look if settled else "", self.entry)


def scan_wheels(
    dists: Sequence[Path], known: Mapping[str, RememberedWheel], replace: Collection[str]
) -> tuple[ScannedWheel, ...]:
    """Return the wheels of some folders, by name, version and file; show progress unless all are known.

    `known` is what the index remembers by file names, `replace` names versions whose wheels may have changed.
    Raises DeliveryError for whatever is wrong with any of them, all in one message.
    """
    paths = [path for dist in dists for path in wheel_file.list_wheels(dist)]
    beside = {
        path: [one for one in dist_files.companion_paths(path) if one.is_file()] for path in paths
    }
    looks = {path: " ".join(map(stat_wheel, (path, *there))) for path, there in beside.items()}
    fresh = [
        path for path in paths if path.name not in known or known[path.name].look != looks[path]
    ]
    read = _read_all(fresh, known, replace) if fresh else {}
    old = {path: (known[path.name].entry, ()) for path in paths if path not in read}
    return _single([ScannedWheel(path, looks[path], *{**old, **read}[path]) for path in paths])


def _read_all(
    paths: Sequence[Path], known: Mapping[str, RememberedWheel], replace: Collection[str]
) -> dict[Path, ReadWheel]:
    read: dict[Path, ReadWheel] = {}
    problems = []
    with console.show_progress() as progress, contextlib.closing(progress.task("wheels")) as bar:
        for number, path in enumerate(paths, 1):
            bar.update(number, len(paths), path.name)
            try:
                read[path] = _read(path, known.get(path.name), replace)
            except DeliveryError as error:
                problems.append(str(error))
    if problems:
        raise DeliveryError(
            "\n  ".join(["these wheels are not indexed:", *problems]), code="wheels-rejected"
        )
    return read


def stat_wheel(path: Path) -> str:
    """Return how a file looks, which a further name of it does not change. Raises DeliveryError."""
    try:
        seen = path.stat()
    except OSError as error:
        raise DeliveryError(
            f"{path}: cannot be read ({error.strerror or error}): remove it", code="not-readable"
        ) from None
    return f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ino}"


def read_companions(wheel: ScannedWheel, *, manifest: bool) -> dict[str, bytes]:
    """Return the content of each file about a wheel, by its suffix: its statement, its SBOM, its manifest.

    Raises DeliveryError for one that does not name the wheel's sha256; what else it says was examined with the wheel.
    """
    paths = dist_files.companion_paths(wheel.path)[0 if manifest else 1 :]
    found = {path: path.read_bytes() for path in paths if path.is_file()}
    for path, content in found.items():
        said = content
        if path.name.endswith(dist_files.SIGNATURE_SUFFIXES):
            try:
                said = signature.read_payload(content)
            except agreement.DOCUMENT_ERRORS:
                said = b""
        if wheel.entry.sha256.encode() not in said:
            raise DeliveryError(
                f"{path}: describes another wheel: remove it, or fetch it again with its wheel",
                code="foreign-document",
            )
    return {path.name.removeprefix(wheel.path.name): content for path, content in found.items()}


def _read(path: Path, before: RememberedWheel | None, replace: Collection[str]) -> ReadWheel:
    wheel = wheel_file.read_wheel(path)
    known = before.entry if before else None
    same = known is not None and known.sha256 == wheel.sha256
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    found = pages.make_entry(wheel, known.uploaded if known and same else now)
    if (
        known is not None
        and not same
        and not any(pages.is_of_version(one, found) for one in replace)
    ):
        raise DeliveryError(
            f"{path}: is not the file that the index has under this name (sha256 {wheel.sha256[:12]}…, not "
            f"{known.sha256[:12]}…), and whoever pinned that one could not install this one: give it a build "
            f"number or another version, or use --replace {found.name}=={found.version}",
            code="wheel-replaced",
        )
    verdict = agreement.examine_wheel(path, distribution=wheel)
    if wrong := verdict.problems:
        raise DeliveryError(
            f"{path}: {first_problems(wrong)}: build or fetch it again, or leave it out",
            code="wheel-rejected",
        )
    return found, tuple(note for check in verdict.checks for note in check.notes)


def _single(wheels: Sequence[ScannedWheel]) -> tuple[ScannedWheel, ...]:
    """Return each wheel once. Raises DeliveryError where two files claim to be the same and are not."""
    known: dict[object, ScannedWheel] = {}
    for one in wheels:
        name, version, build, tags = wheel_file.parse_file_name(one.path)
        other = known.setdefault((name, version, build, tags), one)
        if other.entry.sha256 != one.entry.sha256:
            raise DeliveryError(
                f"{other.path} and {one.path} are different files for the same wheel: remove one of them",
                code="same-wheel-twice",
            )
    return tuple(
        sorted(known.values(), key=lambda one: (one.entry.name, one.entry.version, one.entry.file))
    )


@dataclass(frozen=True, slots=True)
class IndexContents:
    """What shall lie in the folder."""

    pages: Mapping[str, str]  # in the order in which they may be written
    wheels: tuple[ScannedWheel, ...]  # those that lie in it
    state: IndexState  # but for what is written
    beside: Mapping[str, Mapping[str, bytes]] = field(
        default_factory=dict
    )  # documents by wheel's file and suffix

    @property
    def documents(self) -> dict[str, bytes]:
        """Return the documents that lie beside the wheels, by their places."""
        texts = ((one.entry.place, self.beside.get(one.entry.file, {})) for one in self.wheels)
        return {place + end: text for place, found in texts for end, text in found.items()}

    @property
    def digests(self) -> dict[str, str]:
        """Return the sha256 of each file by its place."""
        wheels = {one.entry.place: one.entry.sha256 for one in self.wheels}
        beside = {one.entry.place + METADATA: one.entry.metadata_sha256 for one in self.wheels}
        pages = {
            place: hashlib.sha256(text.encode()).hexdigest() for place, text in self.pages.items()
        }
        documents = {
            place: hashlib.sha256(data).hexdigest() for place, data in self.documents.items()
        }
        return wheels | beside | documents | pages


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """What a run did."""

    written: tuple[str, ...]  # places
    removed: tuple[str, ...]
    foreign: tuple[str, ...]  # what is not ours, and was left


def require_index_folder(out: Path) -> None:
    """Raise DeliveryError where a folder holds something and was not made by an index; it is only looked at."""
    if load_state(out) is not None:
        return
    if out.is_symlink() and not out.exists():
        raise DeliveryError(
            f"{out} is a broken link: remove it, or name another folder with --out",
            code="broken-link",
        )
    there = sorted(os.listdir(out)) if out.is_dir() else ["no folder"] if out.exists() else []  # noqa: PTH208
    if FOLDER in there and set(os.listdir(out / FOLDER)) <= {locks.LOCK_FILE, FRESH}:  # noqa: PTH208
        there.remove(FOLDER)  # of a run that was stopped early
    if there:
        raise DeliveryError(
            f"{out}: {'holds ' if out.is_dir() else 'is '}{name_few(there)}, which no index wrote: name an "
            "empty folder with --out, or remove what is in the way",
            code="foreign-folder",
        )


def write_folder(out: Path, wanted: IndexContents, before: IndexState, how: str) -> IndexOutcome:
    """Make the folder what is wanted; what is as it shall be is not touched.

    `how` is LINK (a further name of the same file, else a copy) or COPY. Raises DeliveryError where somebody
    else wrote what we would, HostError where the disk refuses.
    """
    digests = wanted.digests
    sources = {one.entry.place: one for one in wanted.wheels}
    try:
        there = dict(_lying(out, ""))
        strange = {
            place for place, kind in there.items() if kind == FILE and place not in before.written
        }
        foreign = strange | {place for place, kind in there.items() if kind == OTHER}
        _require_room(out, there, foreign, digests)
        ours = {*before.written, *digests} & {
            place for place, kind in there.items() if kind == FILE
        }
        found = {place: _sha256(out, place, sources.get(place)) for place in ours}
        _require_untouched(out, found, before, digests)
        changed = [place for place, digest in digests.items() if found.get(place) != digest]
        stale = sorted(ours - digests.keys(), key=lambda place: place.endswith((".whl", METADATA)))
        if changed or stale:
            both = dict(before.written)
            for place, digest in digests.items():
                both[place] = tuple(dict.fromkeys((*both.get(place, ()), digest)))
            save_state(out, replace(before, written=both))
        _fill(out, wanted, set(changed), how)
        _remove(out, stale)
        save_state(
            out, replace(wanted.state, written={place: (sha,) for place, sha in digests.items()})
        )
    except OSError as error:
        raise machine_error(error, out) from None
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
            elif place != FOLDER:
                yield place, DIRECTORY
                yield from _lying(Path(entry.path), f"{place}/")


def _require_room(
    out: Path, there: Mapping[str, str], foreign: Collection[str], wanted: Iterable[str]
) -> None:
    """Refuse to write where something lies that is not ours, or through a link."""
    for place in wanted:
        blocked = sorted({place, *map(str, PurePosixPath(place).parents)}.intersection(foreign))
        if blocked or there.get(place) == DIRECTORY:
            raise DeliveryError(
                f"{out / (blocked or [place])[0]}: the index did not write this, and {place} has to go "
                "there: remove it, or name another folder with --out",
                code="foreign-file",
            )


def _require_untouched(
    out: Path, found: Mapping[str, str], before: IndexState, digests: Mapping[str, str]
) -> None:
    """Refuse to go over files of ours that somebody changed."""
    changed = [
        place
        for place, sha256 in sorted(found.items())
        if sha256 not in before.written.get(place, ()) and sha256 != digests.get(place)
    ]
    if changed:
        raise DeliveryError(
            f"{out}: {name_few(changed)} changed since `invoke index` wrote it: remove it to have it written "
            "again, or name another folder with --out",
            code="changed-by-hand",
        )


def _sha256(out: Path, place: str, source: ScannedWheel | None) -> str:
    """Return the digest of what lies in a place; a wheel that looks as the one in dist/ is not read."""
    if source and stat_wheel(out / place).split()[:2] == source.look.split()[:2]:
        return source.entry.sha256
    return hash_file(out / place)


def _fill(out: Path, wanted: IndexContents, changed: Collection[str], how: str) -> None:
    """Write what is not there, or not so: the files first, then the pages that name them."""
    for one in wanted.wheels:
        place = one.entry.place
        if place in changed:
            _appear(out, place, partial(_bring, one, how))
        if place + METADATA in changed:
            _appear(
                out,
                place + METADATA,
                partial(Path.write_bytes, data=wheel_file.read_metadata(one.path)),
            )
    pages = {place: text.encode() for place, text in wanted.pages.items()}
    for place, data in (*wanted.documents.items(), *pages.items()):
        if place in changed:
            _appear(out, place, partial(Path.write_bytes, data=data))


def _appear(out: Path, place: str, make: Callable[[Path], object]) -> None:
    """Let a file be made where nobody looks, and come to its place in one move."""
    fresh, target = out / FOLDER / FRESH, out / place
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        fresh.unlink(missing_ok=True)  # of a run that was killed
        make(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _bring(wheel: ScannedWheel, how: str, fresh: Path) -> None:
    """Bring a wheel; it is what was read."""
    if how == LINK and link_file(wheel.path, fresh):
        same = stat_wheel(fresh).split() == wheel.look.split()[:3]
    else:
        shutil.copy2(wheel.path, fresh)
        same = hash_file(fresh) == wheel.entry.sha256
    if not same:
        raise DeliveryError(
            f"{wheel.path} changed while it was read: run the command again",
            code="changed-meanwhile",
        )


def _remove(out: Path, places: Sequence[str]) -> None:
    """Remove files, and the folders that have become empty."""
    for place in places:
        (out / place).unlink(missing_ok=True)
        for folder in PurePosixPath(place).parents[:-1]:
            with contextlib.suppress(OSError):
                (out / folder).rmdir()
