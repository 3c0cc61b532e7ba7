"""Find contradictions in a finished wheel: in RECORD, names, tags and metadata.

RECORD lists each file with its digest; WHEEL and the file's name state the tags; METADATA and the
name state the project and version. A problem is a contradiction between them. An oddity is
something that installers accept and that hardly any build makes on purpose.
"""

import base64
import configparser
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name

from millpress import file_names, record_file, zip_archive
from millpress.file_names import WheelFileName
from millpress.processors import usable_processors
from millpress.wheel_file import (
    find_dist_info,
    format_tags,
    open_wheel,
    parse_file_name,
    parse_headers,
    require_same_project,
)

UNHASHED_SUFFIXES = ("", *record_file.SIGNATURE_SUFFIXES)  # RECORD itself and its signatures
ROW_FIELDS = 3  # of RECORD: path, digest, size
# PEP 427 demands sha256 or better; digests of shake have no fixed length.
_UNSOUND_ALGORITHMS = ("md5", "sha1", "sha224", "shake")

# First words of tags for systems whose file systems usually ignore case.
_CASELESS = {"any", "win", "macosx"}
# Folders in .data that installers know: sysconfig.get_path_names() and PEP 427.
_SCHEMES = {"purelib", "platlib", "headers", "scripts", "data"}
# Commands that users expect to be the system's own.
_SYSTEM_COMMAND = re.compile(r"(python|pip)w?[\d.]*|activate(\..*)?|env|sh|bash|git")
# Sections of entry_points.txt for which installers write commands; others are for plugins:
# https://packaging.python.org/en/latest/specifications/entry-points/
_COMMAND_SECTIONS = ("console_scripts", "gui_scripts")
# Modules that Python's `site` imports whenever Python starts.
_STARTUP_MODULES = ("sitecustomize.py", "usercustomize.py")
_PLATFORM_VERSION = re.compile(r"(?<=linux)(1|2010|2014|_\d+_\d+)(?=_)|(?<=macosx)_\d+_\d+")


def wheel_problems(wheel: Path) -> Iterator[str]:
    """Read a wheel to its end and yield a clause for each contradiction in it.

    These are a RECORD that is missing, incomplete or wrong about a file, paths that leave the
    wheel, links, bytes outside of all files, tags or a build number in WHEEL that differ from the
    file's name, headers of METADATA that installers refuse, a variant without its metadata, and
    names that are one file on the systems of the wheel. `library_checks` judges whether the
    libraries keep the promises of the platform tags. Raises WheelError if the file is not a wheel.
    """
    with open_wheel(wheel) as archive:
        for member in archive.infolist():
            problem = zip_archive.unsafe_member(member)
            if problem:
                yield problem
        if zip_archive.has_stray_bytes(archive):
            yield (
                "it has bytes before, between or after its files, "
                "so that programs read it differently"
            )
        dist_info = find_dist_info(wheel, archive)
        file_name = parse_file_name(wheel)
        metadata = parse_headers(archive.read(f"{dist_info}/METADATA"))
        require_same_project(wheel, metadata)
        yield from _metadata_problems(metadata)
        if f"{dist_info}/WHEEL" in archive.namelist():
            headers = parse_headers(archive.read(f"{dist_info}/WHEEL"))
            yield from _header_problems(headers, file_name)
        else:
            yield f"{dist_info}/WHEEL is missing"
        yield from _variant_problems(archive, dist_info, file_name)
        yield from record_problems(archive, f"{dist_info}/RECORD")
        # a problem on the systems that the wheel is for; `wheel_oddities` has it for all others
        if not _CASELESS.isdisjoint(_systems(file_name.tags)):
            yield from _colliding_names(archive.namelist())


def wheel_oddities(wheel: Path) -> Iterator[str]:
    """Yield a clause for each oddity in a sound wheel.

    These are code that runs whenever Python starts, commands that replace those of the system, and
    names that collide on other systems. Raises WheelError if the file is not a wheel.
    """
    with open_wheel(wheel) as archive:
        dist_info = find_dist_info(wheel, archive)
        tags = parse_file_name(wheel).tags
        names = archive.namelist()
        if _CASELESS.isdisjoint(_systems(tags)):
            yield from _colliding_names(names)
        yield from _odd_places(names, dist_info)
        entry_points = f"{dist_info}/entry_points.txt"
        # only pip itself is to install the command pip
        if entry_points in names and not dist_info.startswith("pip-"):
            text = archive.read(entry_points).decode("utf-8", "replace")
            yield from _shadowing_commands(text)


def renamed_platform(wheel: Path) -> str:
    """Return a clause if the tags in WHEEL and in the file's name agree but are not equal, else "".

    They agree if they differ in the platform's version only, or if WHEEL says "any". PyTorch's own
    wheels say linux_x86_64 there and are named manylinux_2_28_x86_64. Installers read the name
    alone:
    https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/

    Raises WheelError if the file is not a wheel.
    """
    with open_wheel(wheel) as archive:
        file = f"{find_dist_info(wheel, archive)}/WHEEL"
        tags = parse_file_name(wheel).tags
        headers = Message()
        if file in archive.namelist():
            headers = parse_headers(archive.read(file))
    try:
        declared = _declared_tags(headers)
    except ValueError:  # `wheel_problems` reports it
        return ""
    if declared == tags or not _tags_agree(declared, tags):
        return ""
    return f"WHEEL says {format_tags(declared)}, the file's name {format_tags(tags)}"


def _systems(tags: Iterable[Tag]) -> set[str]:
    """Return the first words of tags' platforms: "any", "win", "macosx", "manylinux"."""
    matches = [re.match(r"[a-z]+", tag.platform) for tag in tags]
    return {match[0] for match in matches if match is not None}


def _colliding_names(names: Iterable[str]) -> Iterator[str]:
    """Yield a clause for each pair of members whose names differ in case or Unicode form only."""
    first_names: dict[str, str] = {}
    for name in dict.fromkeys(names):
        folded = unicodedata.normalize("NFC", name).casefold()
        first = first_names.setdefault(folded, name)
        if first != name:
            yield (
                f"{first} and {name} are one file on systems that ignore case, "
                "where one replaces the other"
            )


def _odd_places(names: Iterable[str], dist_info: str) -> Iterator[str]:
    """Yield a clause for each member that runs code by itself, or is installed in an odd place.

    Odd places are those outside of site-packages that other programs use. Members in a folder with
    the suffix .data are installed there, each by the scheme that its next folder names.
    """
    data_folder = f"{dist_info.removesuffix('.dist-info')}.data"
    for name in names:
        if name.endswith("/"):
            continue
        top, slash, rest = name.partition("/")
        if not (slash and top.endswith(".data")):
            if _runs_at_startup(name):
                yield f"{name} can run code whenever Python starts"
            continue
        scheme, _, path = rest.partition("/")
        # Both schemes are installed into site-packages, as the members outside .data are.
        if scheme in {"purelib", "platlib"} and _runs_at_startup(path):
            yield f"{name} can run code whenever Python starts"
        if canonicalize_name(top) != canonicalize_name(data_folder) or scheme not in _SCHEMES:
            yield f"{name} is in a folder that no installer knows"
        elif scheme == "scripts" and _is_system_command(path):
            yield f"{name} replaces the command {path}"
        elif scheme == "data" and path.startswith(("bin/", "Scripts/", "lib/python", "Lib/")):
            yield f"{name} is installed as {path} in the environment"


def _runs_at_startup(path: str) -> bool:
    """Tell whether Python runs a file when it starts; `path` is relative to site-packages."""
    return "/" not in path and (path.endswith(".pth") or path in _STARTUP_MODULES)


def _shadowing_commands(entry_points: str) -> Iterator[str]:
    """Yield a clause for each command of entry_points.txt that replaces one of the system."""
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
    parser.optionxform = str  # type: ignore[assignment] # names of commands keep their case
    try:
        parser.read_string(entry_points)
    except configparser.Error as error:
        reason = " ".join(str(error).split())
        yield f"entry_points.txt cannot be read ({reason})"
        return
    for section in filter(parser.has_section, _COMMAND_SECTIONS):
        for name in filter(_is_system_command, parser.options(section)):
            yield f"entry_points.txt replaces the command {name}"


def _is_system_command(name: str) -> bool:
    """Tell whether `name`, with or without .exe, is a command of the system."""
    return _SYSTEM_COMMAND.fullmatch(name.lower().removesuffix(".exe")) is not None


def _metadata_problems(metadata: Message) -> Iterator[str]:
    """Yield a clause for each header that pip and uv refuse."""
    for key, parse in (("Requires-Python", SpecifierSet), ("Requires-Dist", Requirement)):
        for line in metadata.get_all(key, []):
            try:
                parse(" ".join(line.split()))  # a header may go on in the next line
            except ValueError:
                yield f"METADATA has '{key}: {line}', which cannot be read"
    for key in ("Name", "Version", "Requires-Python"):
        if len(metadata.get_all(key, [])) > 1:
            yield f"METADATA has {key} several times"


def _header_problems(headers: Message, file_name: WheelFileName) -> Iterator[str]:
    """Yield a clause for each contradiction between the headers of WHEEL and the file's name."""
    format_version = headers.get("Wheel-Version", "none")
    if format_version.partition(".")[0] != "1":
        yield f"WHEEL says Wheel-Version {format_version}, and installers accept only 1.x"
    yield from _tag_contradictions(headers, file_name.tags)
    declared = headers.get("Build", "").strip()
    number = "".join(map(str, file_name.build))  # "1a" for (1, "a"), "" for ()
    # packaging reads the "01" of a name as 1
    declared_number = re.sub(r"^0+(?=\d)", "", declared)
    # a wheel that was built without a number may have got one later, by renaming
    if declared and declared_number != number:
        yield f"WHEEL says build {declared}, the file's name {number or 'nothing'}"


def _variant_problems(archive: ZipFile, dist_info: str, file_name: WheelFileName) -> Iterator[str]:
    """Yield a clause if only one of the file's name and its metadata is that of a variant wheel."""
    member = f"{dist_info}/{file_names.VARIANT_FILE}"
    has_metadata = member in archive.namelist()
    if file_name.variant and not has_metadata:
        yield f"the file's name says variant {file_name.variant}, and {member} is missing"
    elif has_metadata and not file_name.variant:
        yield f"it has {member}, and the file's name has no variant"


def _tag_contradictions(headers: Message, tags: frozenset[Tag]) -> Iterator[str]:
    """Yield a clause if WHEEL is for another Python, system or machine than the file's name."""
    try:
        declared = _declared_tags(headers)
    except ValueError as error:
        yield f"WHEEL has an invalid tag ({error})"
        return
    if not _tags_agree(declared, tags):
        yield f"WHEEL says {format_tags(declared) or 'no tag'}, the file's name {format_tags(tags)}"


def _declared_tags(headers: Message) -> set[Tag]:
    """Return the tags in WHEEL. Raises ValueError if one is invalid."""
    tags = set[Tag]()
    for line in headers.get_all("Tag", []):
        tags |= parse_tag(line.strip())
    for tag in tags:
        # packaging itself refuses such a tag since 26.3.
        if not (tag.interpreter and tag.abi and tag.platform):
            raise ValueError(f"Tag '{tag}' has an empty component: ''")
    return tags


def _tags_agree(declared: Iterable[Tag], tags: Iterable[Tag]) -> bool:
    """Tell whether the tags in WHEEL, `declared`, agree with those of the file's name, `tags`.

    They agree if they differ in the platform's version at most, or if WHEEL says that the wheel is
    for any platform. Wheels on PyPI are renamed in both ways after they are built: torchvision's,
    and those of playwright 1.20.0.
    """
    declared_kinds = {_without_version(tag) for tag in declared}
    kinds = {_without_version(tag) for tag in tags}
    any_platform = {(interpreter, abi, "any") for interpreter, abi, _ in kinds}
    return declared_kinds in (kinds, any_platform)


def _without_version(tag: Tag) -> tuple[str, str, str]:
    """Return a tag's interpreter, ABI and platform, the last without the version of its system.

    The platform is "linux_x86_64" for manylinux_2_28_x86_64.
    """
    platform = _PLATFORM_VERSION.sub("", tag.platform)
    platform = platform.replace("manylinux", "linux").replace("musllinux", "linux")
    return tag.interpreter, tag.abi, platform


def record_problems(archive: ZipFile, record: str) -> Iterator[str]:
    """Yield a clause for each file that the member `record` lacks, or is wrong about.

    Raises UnicodeDecodeError or csv.Error if `record` cannot be read; in a block of `open_wheel`
    both become a WheelError.
    """
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if record not in names:
        yield f"{record} is missing"
        return
    rows = record_file.parse_record(archive.read(record).decode("utf-8"))
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{name} is in the archive {count} times"
    folders = set()
    for name in names:
        folders |= {str(parent) for parent in PurePosixPath(name).parents}
    for folder in sorted(folders.intersection(names)):
        yield f"{folder} is both a file and a folder"
    exempt = {record + suffix for suffix in UNHASHED_SUFFIXES}
    yield from _entry_problems(archive, sorted(set(names) - exempt), rows)
    for name in sorted(set(rows) - set(names)):
        shown_name = name if name.isprintable() else repr(name)
        yield f"RECORD lists {shown_name}, which the wheel does not hold"


def _entry_problems(
    archive: ZipFile, names: Sequence[str], rows: Mapping[str, list[str]]
) -> Iterator[str]:
    """Yield a clause for each of some files that has no row in RECORD, or differs from it.

    Large files are read by threads of their own, which wait for nothing while they inflate and
    digest them.
    """
    large = []
    for name in names:
        if name in rows and archive.getinfo(name).file_size > zip_archive.CHUNK_BYTES:
            large.append(name)
    large.sort(key=lambda name: -archive.getinfo(name).file_size)
    threads = min(usable_processors(), zip_archive.READING_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        checks = {name: pool.submit(_entry_problem, archive, name, rows[name]) for name in large}
        for name in names:
            if name not in rows:
                yield f"{name} has no entry in RECORD"
                continue
            if name in checks:
                problem = checks[name].result()
            else:
                problem = _entry_problem(archive, name, rows[name])
            if problem is not None:
                yield problem


def _entry_problem(archive: ZipFile, name: str, row: list[str]) -> str | None:
    """Return how a file differs from its row (path, hash, size) in RECORD, or None."""
    no_hash = f"{name} has no sound hash in RECORD"
    if len(row) != ROW_FIELDS:
        return no_hash
    _path, digest_field, recorded_size = row
    algorithm, _, expected = digest_field.partition("=")
    is_known = algorithm in hashlib.algorithms_guaranteed
    if not is_known or algorithm.startswith(_UNSOUND_ALGORITHMS):
        return no_hash
    try:
        with archive.open(name) as file:
            digest = hashlib.file_digest(file, algorithm).digest()  # type: ignore[arg-type]
    except zip_archive.ARCHIVE_ERRORS as error:
        return f"{name} is damaged ({error})"
    actual = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    size = str(archive.getinfo(name).file_size)
    # the size may be left out:
    # https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    if actual == expected.rstrip("=") and recorded_size in {"", size}:
        return None
    return f"{name} differs from its RECORD entry"
