"""The wheels of dist/: what each says of itself, and whether that is so."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchmill.core import files
from torchmill.core.errors import DeliveryError
from torchmill.wheel import dist_files
from torchmill.wheel.pack import zip_reader

LARGEST_METADATA_BYTES = (
    1 << 24
)  # bytes; torch's has 40 000, its RECORD a million; one of gigabytes is an attack
# What zipfile raises of an archive that is damaged, encrypted, or compressed as no wheel is.
WHEEL_ERRORS = (
    BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
    csv.Error,
)

WHEEL_FILE_NAME = re.compile(r"[A-Za-z0-9_.+!-]+")  # of what the names of wheels are made (PEP 427, 440, 508)

BuildTag = tuple[int, str] | tuple[()]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A wheel of dist/, as it says of itself."""

    path: Path
    name: str  # normalised (PEP 503): "torch-scatter"
    version: Version
    build: BuildTag  # (1, "") of "torch-1.0-1-cp310-…"
    tags: frozenset[Tag]
    size: int  # bytes
    sha256: str
    metadata: bytes = field(repr=False)  # METADATA, as it lies in the wheel
    requires_python: str | None
    requires: tuple[str, ...]  # Requires-Dist, as written, each in one line
    manifest: Mapping[str, Any] = field(repr=False, compare=False)  # what torchmill told of it, or nothing

    @property
    def file_name(self) -> str:
        """Return the name of the file."""
        return self.path.name

    @property
    def variant(self) -> str | None:
        """Return the local label: "cpu", "cu118"; None where the version has none."""
        return self.version.local

    @property
    def platforms(self) -> frozenset[str]:
        """Return the platforms that it is tagged for: "manylinux_2_17_x86_64"."""
        return frozenset(tag.platform for tag in self.tags)


def read_wheel(wheel: Path) -> Distribution:
    """Return what a wheel says of itself, its digest and the manifest beside it.

    Raises DeliveryError where the file is no wheel, holds paths that leave it, or METADATA and the file's
    name contradict each other.
    """
    metadata = read_metadata(wheel)
    return wheel_from_metadata(wheel, wheel.stat().st_size, files.hash_file(wheel), metadata)


def read_metadata(wheel: Path) -> bytes:
    """Return METADATA as it lies in a wheel. Raises DeliveryError as `read` does."""
    parse_file_name(wheel)
    with _open_wheel(wheel) as archive:
        if trick := next(unsafe_members(archive), None):
            raise DeliveryError(f"{wheel}: {trick}: do not use it")
        return archive.read(_dist_info_member(wheel, archive, "METADATA"))


def wheel_from_metadata(wheel: Path, size: int, sha256: str, metadata: bytes) -> Distribution:
    """Return the wheel whose size (bytes), digest and METADATA are known already. Raises DeliveryError."""
    name, version, build, tags = parse_file_name(wheel)
    headers = _parse_headers(metadata)
    _require_same_project(wheel, name, version, headers)
    told = dist_files.read_manifest(wheel)
    return Distribution(
        path=wheel,
        name=name,
        version=version,
        build=build,
        tags=tags,
        size=size,
        sha256=sha256,
        metadata=metadata,
        requires_python=" ".join(headers.get("Requires-Python", "").split()) or None,
        requires=tuple(" ".join(line.split()) for line in headers.get_all("Requires-Dist", [])),
        manifest=told if told.get("sha256") == sha256 else {},  # else it tells of another file
    )


def read_wheels(dist: Path) -> tuple[Distribution, ...]:
    """Return the wheels in a folder, by name, version and file name; nothing where there is no folder.

    Raises DeliveryError for the first that is none.
    """
    return sort_wheels(read_wheel(wheel) for wheel in list_wheels(dist))


def list_wheels(dist: Path) -> list[Path]:
    """Return the wheels' files in a folder, unread; those that are being written are hidden, and left out."""
    return sorted(path for path in dist.glob("*.whl") if not path.name.startswith("."))


def sort_wheels(wheels: Iterable[Distribution]) -> tuple[Distribution, ...]:
    """Return wheels by name, version and file name."""
    return tuple(sorted(wheels, key=lambda one: (one.name, one.version, one.file_name)))


def parse_file_name(wheel: Path) -> tuple[str, Version, BuildTag, frozenset[Tag]]:
    """Return name, version, build number and tags that a file's name says. Raises DeliveryError."""
    if not WHEEL_FILE_NAME.fullmatch(wheel.name):
        raise DeliveryError(f"{wheel.name!r} in {wheel.parent}: no wheel is named so: rename or remove it")
    try:
        return parse_wheel_filename(wheel.name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise DeliveryError(f"{wheel}: not the name of a wheel ({error}): rename or remove it") from None


def wheel_problems(wheel: Path) -> Iterator[str]:
    """Yield a clause for everything about a wheel that is not as it says: it is read to its end.

    RECORD (missing, too much, a hash or size that is wrong), paths that leave the wheel, links, and tags or a
    build number that WHEEL says otherwise than the file's name. Whether its libraries keep what the tags
    promise, `verify.tagged` tells. Raises DeliveryError where it is no wheel.
    """
    with _open_wheel(wheel) as archive:
        yield from unsafe_members(archive)
        member = _dist_info_member(wheel, archive, "METADATA")
        _require_same_project(wheel, *parse_file_name(wheel)[:2], _parse_headers(archive.read(member)))
        info = member.rpartition("/")[0]
        yield from _tag_problems(wheel, archive, f"{info}/WHEEL")
        yield from record_problems(archive, f"{info}/RECORD")


def unsafe_members(archive: ZipFile) -> Iterator[str]:
    """Yield a clause for each member that would not stay where the wheel is unpacked, or hides its name."""
    yield from filter(None, map(zip_reader.unsafe_member, archive.infolist()))


@contextmanager
def _open_wheel(wheel: Path) -> Iterator[ZipFile]:
    try:
        if not stat.S_ISREG(wheel.stat().st_mode):
            raise DeliveryError(f"{wheel}: not a file: remove it")
        with ZipFile(wheel) as archive:
            yield archive
    except WHEEL_ERRORS as error:
        raise DeliveryError(f"{wheel}: not a sound wheel ({error}): build or fetch it again") from None
    except OSError as error:
        raise DeliveryError(f"{wheel}: cannot be read ({error.strerror or error})") from None


def _dist_info_member(wheel: Path, archive: ZipFile, file: str) -> str:
    """Return the name of a member of .dist-info, of which there must be one."""
    names = archive.namelist()
    infos = {name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info")}
    if len(infos) != 1:
        raise DeliveryError(f"{wheel}: has {len(infos)} .dist-info folders, not one: build it again")
    info = infos.pop()
    title, _, version = info.removesuffix(".dist-info").partition("-")
    if not _is_project(title, version, *parse_file_name(wheel)[:2]):
        raise DeliveryError(f"{wheel}: holds {info}, which is another's: build it again")
    name = f"{info}/{file}"
    if name not in names:
        raise DeliveryError(f"{wheel}: has no {name}: build it again")
    for one in ("METADATA", "WHEEL", "RECORD"):  # which are read whole
        if f"{info}/{one}" in names and archive.getinfo(f"{info}/{one}").file_size > LARGEST_METADATA_BYTES:
            raise DeliveryError(
                f"{wheel}: {info}/{one} is larger than {LARGEST_METADATA_BYTES} bytes: do not use it"
            )
    return name


def _parse_headers(content: bytes) -> Message:
    return HeaderParser().parsestr(content.decode("utf-8", "replace"))


def _require_same_project(wheel: Path, name: str, version: Version, headers: Message) -> None:
    """Refuse a wheel that calls itself otherwise than its file."""
    said = headers.get("Name", ""), headers.get("Version", "")
    if not _is_project(*said, name, version):
        words = " ".join(said).strip() or "nothing"
        raise DeliveryError(
            f"{wheel}: METADATA says {words}, the file's name {name} {version}: it was renamed, or is damaged"
        )


def _is_project(name: str, version: str, expected_name: str, expected_version: Version) -> bool:
    try:
        return (canonicalize_name(name), Version(version)) == (expected_name, expected_version)
    except InvalidVersion:
        return False


def _tag_problems(wheel: Path, archive: ZipFile, member: str) -> Iterator[str]:
    if member not in archive.namelist():
        yield f"{member} is missing"
        return
    headers = _parse_headers(archive.read(member))
    _, _, build, tags = parse_file_name(wheel)
    try:
        told = {tag for line in headers.get_all("Tag", []) for tag in parse_tag(line.strip())}
    except ValueError as error:
        yield f"WHEEL has a tag that is none ({error})"
        return
    if told != tags:
        yield f"WHEEL says {_format_tags(told) or 'no tag'}, the file's name {_format_tags(tags)}"
    said, number = headers.get("Build", "").strip(), "".join(map(str, build))
    if said and said != number:  # one that says nothing was given its number later
        yield f"WHEEL says build {said}, the file's name {number or 'nothing'}"


def _format_tags(tags: Iterable[Tag]) -> str:
    return ", ".join(sorted(map(str, tags)))


CHUNK_BYTES = 1 << 20
UNHASHED_SUFFIXES = ("", ".jws", ".p7s")  # RECORD itself and its signatures


def record_problems(archive: ZipFile, record: str) -> Iterator[str]:
    """Yield a clause for each file that RECORD (the member's name) has wrong, lacks, or makes up."""
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if record not in names:
        yield f"{record} is missing"
        return
    rows = {row[0]: row for row in csv.reader(io.StringIO(archive.read(record).decode("utf-8"))) if row}
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{name} is in the archive {count} times"
    exempt = {record + suffix for suffix in UNHASHED_SUFFIXES}
    for name in sorted(set(names) - exempt):
        if name not in rows:
            yield f"{name} has no entry in RECORD"
        elif (wrong := _entry_problem(archive, name, rows[name])) is not None:
            yield wrong
    for name in sorted(set(rows) - set(names)):
        yield f"RECORD lists {name if name.isprintable() else repr(name)}, which the wheel does not hold"


def _entry_problem(archive: ZipFile, name: str, row: list[str]) -> str | None:
    """Return what is wrong with the file, None for nothing."""
    algorithm, _, wanted = (
        row[1].partition("=") if len(row) == len(("path", "hash", "size")) else ("", "", "")
    )
    if algorithm not in hashlib.algorithms_guaranteed or algorithm in {"md5", "sha1"}:
        return f"{name} has no sound hash in RECORD"
    digest, size = hashlib.new(algorithm), 0
    try:
        with archive.open(name) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except BadZipFile as error:
        return f"{name} is damaged ({error})"
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode("ascii")
    if found != wanted or str(size) != row[2]:
        return f"{name} is not what RECORD says of it"
    return None
