"""Read a wheel file: its name, METADATA and digest, and whether its tags and RECORD are true."""

import base64
import csv
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)
from packaging.version import Version

from millpress import record_file, zip_archive
from millpress.errors import WheelError
from millpress.record_file import hash_file

# torch's METADATA has 40 000 bytes, its RECORD a million; a file of gigabytes would be an attack
LARGEST_METADATA_BYTES = 1 << 24
UNHASHED_SUFFIXES = ("", ".jws", ".p7s")  # RECORD itself and its signatures
WHEEL_FILE_NAME = re.compile(r"[A-Za-z0-9_.+!-]+")  # characters of wheel names (PEP 427, 440, 508)

_CASELESS = {"any", "win", "macosx"}  # systems whose file systems usually ignore case
_SCHEMES = {
    "purelib",
    "platlib",
    "headers",
    "scripts",
    "data",
}  # of .data: sysconfig.get_path_names() and PEP 427
_SYSTEM_COMMAND = re.compile(r"(python|pip)w?[\d.]*|activate(\..*)?|env|sh|bash|git")
_PLATFORM_VERSION = re.compile(r"(?<=linux)(1|2010|2014|_\d+_\d+)(?=_)|(?<=macosx)_\d+_\d+")

BuildTag = tuple[int, str] | tuple[()]


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel as its file name and METADATA describe it."""

    path: Path
    name: str  # normalised (PEP 503): "torch-scatter"
    version: Version
    build: BuildTag  # (1, "") of "torch-1.0-1-cp310-…"
    tags: frozenset[Tag]
    size: int  # bytes
    sha256: str
    metadata: bytes = field(repr=False)  # METADATA, unparsed
    requires_python: str | None
    requires: tuple[str, ...]  # Requires-Dist, as written, each in one line

    @property
    def platforms(self) -> frozenset[str]:
        """Return the platforms that it is tagged for: "manylinux_2_17_x86_64"."""
        return frozenset(tag.platform for tag in self.tags)


def read_wheel(wheel: Path) -> Wheel:
    """Return the description of a wheel, with its digest.

    Raises WheelError where the file is not a wheel, has paths that leave it, or METADATA and the file's
    name contradict each other.
    """
    metadata = read_metadata(wheel)
    size, sha256 = wheel.stat().st_size, hash_file(wheel)
    name, version, build, tags = parse_file_name(wheel)
    headers = parse_headers(metadata)
    _require_same_project(wheel, name, version, headers)
    return Wheel(
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
    )


def read_metadata(wheel: Path) -> bytes:
    """Return METADATA of a wheel, unparsed. Raises WheelError as `read_wheel` does."""
    parse_file_name(wheel)
    with open_wheel(wheel) as archive:
        if problem := next(filter(None, map(zip_archive.unsafe_member, archive.infolist())), None):
            raise WheelError(f"{wheel}: {problem}: do not use it", code="unsafe-wheel")
        return archive.read(f"{_dist_info(wheel, archive)}/METADATA")


def list_wheels(dist: Path) -> list[Path]:
    """Return the wheel files in a folder, unread, without the hidden ones, which are still being written."""
    return sorted(path for path in dist.glob("*.whl") if not path.name.startswith("."))


def tag_python(tag: Tag) -> str | None:
    """Return the one Python that a tag is for, "3.10" or "3.13t"; None where it is for several."""
    match = None if tag.abi.startswith("abi3") else re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
    return f"{match[1]}.{match[2]}{'t' * tag.abi.endswith('t')}" if match else None


def parse_file_name(wheel: Path) -> tuple[str, Version, BuildTag, frozenset[Tag]]:
    """Return name, version, build number and tags in a file's name. Raises WheelError."""
    problem = "it has characters that such a name cannot have"
    if WHEEL_FILE_NAME.fullmatch(wheel.name):
        try:
            return parse_wheel_filename(wheel.name)
        except InvalidWheelFilename as error:
            problem = str(error)
    message = f"{wheel.name!r} in {wheel.parent}: not the name of a wheel ({problem}): rename or remove it"
    raise WheelError(message, code="invalid-wheel-name")


def wheel_problems(wheel: Path) -> Iterator[str]:
    """Read a wheel to its end and yield a clause for each contradiction in it.

    RECORD (missing, incomplete, wrong hashes or sizes), paths that leave the wheel, links, and tags or a
    build number in WHEEL that differ from the file's name. Whether its libraries keep the promises of its
    platform tags, `library_checks` judges. Raises WheelError where the file is not a wheel.
    """
    with open_wheel(wheel) as archive:
        yield from filter(None, map(zip_archive.unsafe_member, archive.infolist()))
        if zip_archive.has_stray_bytes(archive):
            yield "it has bytes before, between or after its files, so that programs read it differently"
        info = _dist_info(wheel, archive)
        name, version, build, tags = parse_file_name(wheel)
        metadata = parse_headers(archive.read(f"{info}/METADATA"))
        _require_same_project(wheel, name, version, metadata)
        yield from _metadata_problems(metadata)
        if f"{info}/WHEEL" in archive.namelist():
            headers = parse_headers(archive.read(f"{info}/WHEEL"))
            if (format_version := headers.get("Wheel-Version", "none")).partition(".")[0] != "1":
                yield f"WHEEL says Wheel-Version {format_version}, and installers accept only 1.x"
            yield from _tag_contradictions(headers, tags)
            declared, number = headers.get("Build", "").strip(), "".join(map(str, build))
            if (
                declared and declared != number
            ):  # a wheel without one got its number later, by renaming
                yield f"WHEEL says build {declared}, the file's name {number or 'nothing'}"
        else:
            yield f"{info}/WHEEL is missing"
        yield from record_problems(archive, f"{info}/RECORD")
        if _CASELESS.intersection(_systems(tags)):
            yield from _colliding_names(archive.namelist())


def wheel_oddities(wheel: Path) -> Iterator[str]:
    """Yield a clause for each thing in a sound wheel that a wheel of ours never has, and that installers take.

    Raises WheelError where the file is not a wheel.
    """
    with open_wheel(wheel) as archive:
        info, tags, names = (
            _dist_info(wheel, archive),
            parse_file_name(wheel)[3],
            archive.namelist(),
        )
        if not _CASELESS.intersection(_systems(tags)):
            yield from _colliding_names(names)
        yield from _odd_places(names, info)
        if f"{info}/entry_points.txt" in names and not info.startswith(
            "pip-"
        ):  # whose commands these are
            yield from _shadowing_commands(
                archive.read(f"{info}/entry_points.txt").decode("utf-8", "replace")
            )


def renamed_platform(wheel: Path) -> str:
    """Return how WHEEL names another platform of the same system and machine than the file's name; "" for the same.

    PyTorch's own wheels say linux_x86_64 there and are named manylinux_2_28_x86_64. Installers read the name alone:
    https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
    """
    with open_wheel(wheel) as archive:
        file, tags = f"{_dist_info(wheel, archive)}/WHEEL", parse_file_name(wheel)[3]
        headers = parse_headers(archive.read(file)) if file in archive.namelist() else Message()
    try:
        declared = _declared_tags(headers)
    except ValueError:
        return ""
    told_otherwise = declared == tags or not _is_near(declared, tags)
    return (
        ""
        if told_otherwise
        else f"WHEEL says {format_tags(declared)}, the file's name {format_tags(tags)}"
    )


def _systems(tags: Iterable[Tag]) -> set[str]:
    """Return the systems that tags are for: "any", "win", "macosx", "manylinux"."""
    return {match[0] for tag in tags if (match := re.match(r"[a-z]+", tag.platform))}


def _colliding_names(names: Iterable[str]) -> Iterator[str]:
    """Yield a clause for each two members that are one file where case or Unicode form do not tell names apart."""
    first: dict[str, str] = {}
    for name in dict.fromkeys(names):
        other = first.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            yield f"{other} and {name} are one file on systems that ignore case, where one replaces the other"


def _odd_places(names: Iterable[str], info: str) -> Iterator[str]:
    """Yield a clause for each member that runs code by itself, or goes elsewhere than into the package folder."""
    own = f"{info.removesuffix('.dist-info')}.data"
    for name in (name for name in names if not name.endswith("/")):
        top, _, rest = name.partition("/")
        scheme, _, path = rest.partition("/")
        if "/" not in name and name.endswith(".pth"):
            yield f"{name} can run code whenever Python starts"
        if not top.endswith(".data"):
            continue
        if canonicalize_name(top) != canonicalize_name(own) or scheme not in _SCHEMES:
            yield f"{name} is in a folder that no installer knows"
        elif scheme == "scripts" and _is_system_command(path):
            yield f"{name} replaces the command {path}"
        elif scheme == "data" and path.startswith(("bin/", "Scripts/", "lib/python", "Lib/")):
            yield f"{name} is installed as {path} of the environment"


def _shadowing_commands(entry_points: str) -> Iterator[str]:
    """Yield a clause for each command of entry_points.txt that replaces one of Python or pip."""
    for name in re.findall(r"^[ 	]*([\w.-]+)[ 	]*=", entry_points, re.MULTILINE):
        if _is_system_command(name):
            yield f"entry_points.txt replaces the command {name}"


def _is_system_command(name: str) -> bool:
    return _SYSTEM_COMMAND.fullmatch(name.lower().removesuffix(".exe")) is not None


def _metadata_problems(metadata: Message) -> Iterator[str]:
    """Yield a clause for each header that pip and uv cannot read, so that they would not install the wheel."""
    for key, parse in (("Requires-Python", SpecifierSet), ("Requires-Dist", Requirement)):
        for line in metadata.get_all(key, []):
            try:
                parse(" ".join(line.split()))
            except ValueError:
                yield f"METADATA has '{key}: {line}', which cannot be read"
    for key in ("Name", "Version", "Requires-Python"):
        if len(metadata.get_all(key, [])) > 1:
            yield f"METADATA has {key} several times"


def _tag_contradictions(headers: Message, tags: frozenset[Tag]) -> Iterator[str]:
    """Yield a clause where WHEEL, by its headers, is of another Python, system or machine than the file's name."""
    try:
        declared = _declared_tags(headers)
    except ValueError as error:
        yield f"WHEEL has an invalid tag ({error})"
        return
    if not _is_near(declared, tags):
        yield f"WHEEL says {format_tags(declared) or 'no tag'}, the file's name {format_tags(tags)}"


def _declared_tags(headers: Message) -> set[Tag]:
    return {tag for line in headers.get_all("Tag", []) for tag in parse_tag(line.strip())}


def _is_near(declared: Iterable[Tag], tags: Iterable[Tag]) -> bool:
    """Tell whether tags differ in the version of a platform at most, or the file's name is for fewer platforms."""
    rough = {_rough_tag(tag) for tag in declared}
    named = {_rough_tag(tag) for tag in tags}
    everywhere = {(interpreter, abi, "any") for interpreter, abi, _ in named}
    return rough in (named, everywhere)


def _rough_tag(tag: Tag) -> tuple[str, str, str]:
    """Return Python, ABI, and of the platform only system and machine: "linux x86_64" of manylinux_2_28_x86_64."""
    platform = _PLATFORM_VERSION.sub("", tag.platform)
    return (
        tag.interpreter,
        tag.abi,
        platform.replace("manylinux", "linux").replace("musllinux", "linux"),
    )


def format_tags(tags: Iterable[Tag]) -> str:
    """Return tags in one line, sorted."""
    return ", ".join(sorted(map(str, tags)))


def dist_info_folders(names: Iterable[str]) -> list[str]:
    """Return the .dist-info folders among the members of a wheel: one, if it is sound."""
    return sorted({top for name in names if (top := name.partition("/")[0]).endswith(".dist-info")})


def parse_headers(content: bytes) -> Message:
    """Parse METADATA or WHEEL; what is not UTF-8 is replaced."""
    return HeaderParser().parsestr(content.decode("utf-8", "replace"))


def record_problems(archive: ZipFile, record: str) -> Iterator[str]:
    """Yield a clause for each file for which RECORD (the member's name) is wrong, lacking, or made up."""
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if record not in names:
        yield f"{record} is missing"
        return
    rows = record_file.parse_record(archive.read(record).decode("utf-8"))
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{name} is in the archive {count} times"
    for folder in {
        str(parent) for name in names for parent in PurePosixPath(name).parents
    }.intersection(names):
        yield f"{folder} is both a file and a folder"
    exempt = {record + suffix for suffix in UNHASHED_SUFFIXES}
    for name in sorted(set(names) - exempt):
        if name not in rows:
            yield f"{name} has no entry in RECORD"
        elif (problem := _entry_problem(archive, name, rows[name])) is not None:
            yield problem
    for name in sorted(set(rows) - set(names)):
        yield f"RECORD lists {name if name.isprintable() else repr(name)}, which the wheel does not hold"


def _entry_problem(archive: ZipFile, name: str, row: list[str]) -> str | None:
    """Return how a file differs from its row (path, hash, size) in RECORD, or None."""
    algorithm, _, expected = row[1].partition("=") if len(row) == 3 else ("", "", "")  # noqa: PLR2004
    if algorithm not in hashlib.algorithms_guaranteed or algorithm.startswith(
        ("md5", "sha1", "shake")
    ):
        return f"{name} has no sound hash in RECORD"
    try:
        with archive.open(name) as file:
            digest = hashlib.file_digest(file, algorithm).digest()  # type: ignore[arg-type]
    except zip_archive.ARCHIVE_ERRORS as error:
        return f"{name} is damaged ({error})"
    actual, size = (
        base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
        archive.getinfo(name).file_size,
    )
    # the size may be left out: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    same = actual == expected.rstrip("=") and row[2] in {"", str(size)}
    return None if same else f"{name} differs from its RECORD entry"


@contextmanager
def open_wheel(wheel: Path) -> Iterator[ZipFile]:
    """Open a wheel to read it. Raises WheelError where it is none, also for what is read of it then."""
    try:
        if wheel.exists() and not wheel.is_file():
            raise WheelError(f"{wheel}: not a file: remove it", code="not-a-wheel")
        with ZipFile(wheel) as archive:
            if not {info.compress_type for info in archive.infolist()} <= {
                ZIP_STORED,
                ZIP_DEFLATED,
            }:
                raise BadZipFile("it is compressed in a way not used for wheels")
            yield archive
    except (csv.Error, *zip_archive.ARCHIVE_ERRORS) as error:
        raise WheelError(
            f"{wheel}: not a sound wheel ({error}): build or fetch it again", code="damaged-wheel"
        ) from None
    except OSError as error:
        problem = f"{wheel}: cannot be read ({error.strerror or error})"
        raise WheelError(problem, code="unreadable-wheel") from None


def _dist_info(wheel: Path, archive: ZipFile) -> str:
    """Return the .dist-info folder of a wheel. Raises WheelError where it is not sound."""
    names = archive.namelist()
    folders = dist_info_folders(names)
    info = folders[0] if len(folders) == 1 else ""
    title, _, version = info.removesuffix(".dist-info").partition("-")
    problem = ""
    if not info:
        problem = f"has {len(folders)} .dist-info folders, not one"
    elif not _is_project(title, version, *parse_file_name(wheel)[:2]):
        problem = f"holds {info} of another project"
    elif f"{info}/METADATA" not in names:
        problem = f"has no {info}/METADATA"
    if problem:
        raise WheelError(f"{wheel}: {problem}: build it again", code="invalid-dist-info")
    for member in archive.infolist():  # several of them are read whole
        if member.filename.startswith(f"{info}/") and member.file_size > LARGEST_METADATA_BYTES:
            problem = (
                f"{member.filename} is larger than {LARGEST_METADATA_BYTES} bytes: do not use it"
            )
            raise WheelError(f"{wheel}: {problem}", code="unsafe-wheel")
    return info


def _require_same_project(wheel: Path, name: str, version: Version, headers: Message) -> None:
    """Refuse a wheel whose METADATA names another project or version than its file."""
    declared = headers.get("Name", ""), headers.get("Version", "")
    if not _is_project(*declared, name, version):
        raise WheelError(
            f"{wheel}: METADATA says {' '.join(declared).strip() or 'nothing'}, the file's name {name} "
            f"{version}: it was renamed, or is damaged",
            code="renamed-wheel",
        )


def _is_project(name: str, version: str, expected_name: str, expected_version: Version) -> bool:
    same_version = canonicalize_version(version) == canonicalize_version(expected_version)
    return canonicalize_name(name) == expected_name and same_version
