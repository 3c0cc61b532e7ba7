"""Read the wheels of dist/ for an index, each only if it has changed since the last run.

Whether it has changed is told by stamps: sizes, times and inodes of the wheel's file and of the
files beside it. The state of the index remembers them with the entry of each wheel.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from millpress import wheel_file
from millpress.errors import WheelError
from packaging.version import Version

from torchmill.core import console, stat_cache
from torchmill.core.errors import DeliveryError
from torchmill.core.units import first_problems
from torchmill.deliver import agreement, signature
from torchmill.deliver.index import entries, yanks
from torchmill.deliver.index.entries import IndexEntry
from torchmill.deliver.index.state import RememberedWheel
from torchmill.wheel import dist_files, finished_wheel, variant_metadata


class ReadWheel(NamedTuple):
    """The result of reading a wheel."""

    entry: IndexEntry
    notes: tuple[str, ...]  # oddities in it


class FileStamp(NamedTuple):
    """Numbers of a file that change when the file does, and not if it gets another name."""

    size: int  # bytes
    changed_ns: int  # the date of its content (st_mtime), which a copy may keep
    inode: int

    def __str__(self) -> str:
        """Return the numbers, separated by spaces."""
        return " ".join(map(str, self))

    def has_size_and_time_of(self, other: "FileStamp") -> bool:
        """Tell whether this file may be a copy of another: a copy has a number of its own."""
        return self[:2] == other[:2]


@dataclass(frozen=True, slots=True)
class ScannedWheel:
    """A wheel of dist/ and its entry in the index."""

    path: Path
    stamp: str  # the stamps of its file and of the files beside it, separated by spaces
    entry: IndexEntry
    notes: tuple[str, ...] = ()  # odd, but harmless; only of a wheel that this run read

    @property
    def file_stamp(self) -> FileStamp:
        """Return the stamp of the wheel's own file, which is the first in `stamp`."""
        size, changed_ns, inode, *_ = map(int, self.stamp.split())
        return FileStamp(size, changed_ns, inode)

    @property
    def remembered(self) -> RememberedWheel:
        """Return what the index remembers of the wheel: no stamp if one of its files just changed.

        A file that has just changed may change again and keep its stamp, because the clocks of file
        systems are coarse. The next run reads it again.
        """
        # The stamps of all files, three numbers each: the time of change is the second one.
        newest_ns = max(map(int, self.stamp.split()[1::3]))
        stat = stat_cache.FileStat(self.stamp, changed_ns=newest_ns)
        return RememberedWheel(self.stamp if stat.is_settled else "", self.entry)


def scan_wheels(
    dists: Sequence[Path],
    remembered: Mapping[str, RememberedWheel],
    replaceable: Collection[str],
    left_out: Collection[str] = (),
    proved: Collection[Path] = (),
) -> tuple[ScannedWheel, ...]:
    """Return the wheels of some folders, sorted by name, version and file.

    `remembered` are the wheels that the index has read before, by their files' names. `replaceable`
    are the versions, such as "torch==1.13.1+cpu", whose wheels may have other bytes than before.
    The files whose names are in `left_out` are not read. Those in `proved` were written by this
    run, and are not examined again. Progress is shown if a wheel has to be read. Raises
    DeliveryError for all problems with all wheels in one message.
    """
    paths = []
    for dist in dists:
        paths += [path for path in wheel_file.list_wheels(dist) if path.name not in left_out]
    # The stamps are taken before anything is read: if a file changes while it is read, it has
    # another stamp in the next run, and is read again.
    stamps = {path: _stamp_wheel(path) for path in paths}
    changed = []
    unchanged = {}
    for path in paths:
        earlier = remembered.get(path.name)
        if earlier is not None and earlier.stamp == stamps[path]:
            unchanged[path] = earlier.entry
        else:
            changed.append(path)
    read = _read_all(changed, remembered, replaceable, proved) if changed else {}
    wheels = []
    for path in paths:
        if path in read:
            wheels.append(ScannedWheel(path, stamps[path], read[path].entry, read[path].notes))
        else:
            wheels.append(ScannedWheel(path, stamps[path], unchanged[path]))
    return _without_duplicates(wheels)


def stamp_file(path: Path) -> FileStamp:
    """Return the stamp of a file. Raises DeliveryError if the file cannot be read."""
    try:
        status = path.stat()
    except OSError as error:
        raise DeliveryError(
            f"{path}: cannot be read ({error.strerror or error}): remove it", code="not-readable"
        ) from None
    return FileStamp(status.st_size, status.st_mtime_ns, status.st_ino)


def _stamp_wheel(path: Path) -> str:
    """Return the stamps of a wheel and the files beside it, separated by spaces."""
    companions = [file for file in dist_files.companion_paths(path) if file.is_file()]
    return " ".join(str(stamp_file(file)) for file in (path, *companions))


def _read_all(
    paths: Sequence[Path],
    remembered: Mapping[str, RememberedWheel],
    replaceable: Collection[str],
    proved: Collection[Path],
) -> dict[Path, ReadWheel]:
    """Return the entries of some wheels. Raises DeliveryError for all problems together."""
    read: dict[Path, ReadWheel] = {}
    problems = []
    with (
        console.show_progress() as progress,
        contextlib.closing(progress.start_bar("wheels")) as bar,
    ):
        for number, path in enumerate(paths, 1):
            bar.update(number, len(paths), path.name)
            try:
                read[path] = _read_wheel(
                    path, remembered.get(path.name), replaceable, examined=path in proved
                )
            except (DeliveryError, WheelError) as error:
                problems.append(str(error))
    if problems:
        raise DeliveryError(
            "\n  ".join(["these wheels are not indexed:", *problems]), code="wheels-rejected"
        )
    return read


def _read_wheel(
    path: Path,
    remembered: RememberedWheel | None,
    replaceable: Collection[str],
    *,
    examined: bool,
) -> ReadWheel:
    """Read a wheel, and return its entry with the oddities in it; it may be `examined` already.

    Raises DeliveryError for an unsound wheel, and for one that replaces another without permission.
    """
    wheel = finished_wheel.read_wheel(path)
    uploaded = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if remembered and remembered.entry.sha256 == wheel.sha256:
        uploaded = remembered.entry.uploaded
    variant = variant_metadata.read_variant(path)
    entry = entries.make_entry(wheel, uploaded, variant)
    if remembered:
        _require_replaceable(path, entry, remembered.entry, replaceable)
    if examined:
        return ReadWheel(entry, ())
    # Pages link to the documents beside a wheel, so that all of them are examined.
    verdict = agreement.examine_wheel(path, wheel=wheel)
    if verdict.problems:
        raise DeliveryError(
            f"{path}: {first_problems(verdict.problems)}: build or fetch it again, or leave it out",
            code="wheel-rejected",
        )
    notes: list[str] = []
    for check in verdict.checks:
        notes += check.notes
    return ReadWheel(entry, tuple(notes))


def _require_replaceable(
    path: Path, entry: IndexEntry, previous: IndexEntry, replaceable: Collection[str]
) -> None:
    """Raise DeliveryError for a wheel with other bytes than before, unless the user allows that."""
    if entry.sha256 == previous.sha256 or any(
        yanks.is_of_version(pin, entry) for pin in replaceable
    ):
        return
    raise DeliveryError(
        f"{path}: is not the file that the index has under this name (sha256 "
        f"{entry.sha256[:12]}…, not {previous.sha256[:12]}…), and whoever pinned that one could "
        "not install this one: give it a build number or another version, or use --replace "
        f"{entry.name}=={entry.version}",
        code="wheel-replaced",
    )


def _without_duplicates(wheels: Sequence[ScannedWheel]) -> tuple[ScannedWheel, ...]:
    """Return each wheel once, sorted; several folders may have the same one.

    Raises DeliveryError if two different files are for the same wheel.
    """
    unique: dict[object, ScannedWheel] = {}
    for wheel in wheels:
        identity = wheel_file.parse_file_name(wheel.path)
        first = unique.setdefault(identity, wheel)
        if first.entry.sha256 != wheel.entry.sha256:
            raise DeliveryError(
                f"{first.path} and {wheel.path} are different files for the same wheel: remove one "
                "of them",
                code="same-wheel-twice",
            )
    return tuple(sorted(unique.values(), key=_sort_key))


def _sort_key(wheel: ScannedWheel) -> tuple[str, Version, str]:
    return (wheel.entry.name, wheel.entry.version, wheel.entry.file)


def read_companions(wheel: ScannedWheel, *, manifest: bool) -> dict[str, bytes]:
    """Return the content of each file beside a wheel by its suffix; the manifest only if asked for.

    Raises DeliveryError for a file that does not name the wheel's sha256. Everything else in these
    files was examined when the wheel was read.
    """
    paths = dist_files.companion_paths(wheel.path)
    if not manifest:
        paths = paths[1:]  # without the manifest, which is the first
    companions = {}
    for path in paths:
        if not path.is_file():
            continue
        content = path.read_bytes()
        if wheel.entry.sha256.encode() not in _plain_content(path, content):
            raise DeliveryError(
                f"{path}: describes another wheel: remove it, or fetch it again with its wheel",
                code="foreign-document",
            )
        companions[path.name.removeprefix(wheel.path.name)] = content
    return companions


def _plain_content(path: Path, content: bytes) -> bytes:
    """Return the text of a document, without the base64 that a signed one is wrapped in.

    It is b"" if a signed document cannot be understood.
    """
    if not path.name.endswith(dist_files.SIGNATURE_SUFFIXES):
        return content
    try:
        return signature.read_payload(content)
    except agreement.DOCUMENT_ERRORS:
        return b""
