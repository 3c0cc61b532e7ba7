"""Read a finished wheel file: its METADATA and digest.

A wheel is a zip archive. Its file name states project, version and tags (see `file_names`). The
folder .dist-info in it has METADATA, which repeats project and version and lists requirements.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, canonicalize_version
from packaging.version import Version

from millpress import file_names, zip_archive
from millpress.atomic_files import DISK_FULL
from millpress.errors import WheelError
from millpress.file_names import BuildTag, WheelFileName
from millpress.record_file import hash_file

# torch's METADATA has 40 000 bytes, its RECORD a million; a file of gigabytes would be an attack
LARGEST_METADATA_BYTES = 1 << 24
WHEEL_FILE_NAME = re.compile(r"[A-Za-z0-9_.+!-]+")  # characters of wheel names (PEP 427, 440, 508)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel as its file name and METADATA describe it."""

    path: Path
    name: str  # normalized (PEP 503): "torch-scatter"
    version: Version
    build: BuildTag  # (1, "") of "torch-1.0-1-cp310-…"
    tags: frozenset[Tag]
    variant: str  # the label of a variant wheel, "" of a plain one
    size: int  # bytes
    sha256: str  # hexadecimal
    metadata: bytes = field(repr=False)  # METADATA, unparsed
    requires_python: str | None
    requires: tuple[str, ...]  # Requires-Dist, as written, each in one line

    @property
    def platforms(self) -> frozenset[str]:
        """Return the platforms that it is tagged for: "manylinux_2_17_x86_64"."""
        return frozenset(tag.platform for tag in self.tags)


def read_wheel(wheel: Path) -> Wheel:
    """Return the description of a wheel, with its digest: the file is read to its end.

    Raises WheelError if the file is not a wheel, cannot be read, has paths that leave it, or
    METADATA and the file's name contradict each other.

        wheel = millpress.read_wheel(Path("dist/spam-1.0-py3-none-any.whl"))
        print(wheel.name, wheel.version, wheel.requires)
    """
    metadata = read_metadata(wheel)
    size = wheel.stat().st_size
    sha256 = hash_file(wheel)
    file_name = parse_file_name(wheel)
    headers = parse_headers(metadata)
    require_same_project(wheel, headers)
    # a long requirement may go on in further lines
    requires = [" ".join(line.split()) for line in headers.get_all("Requires-Dist", [])]
    return Wheel(
        path=wheel,
        name=file_name.project,
        version=file_name.version,
        build=file_name.build,
        tags=file_name.tags,
        variant=file_name.variant,
        size=size,
        sha256=sha256,
        metadata=metadata,
        requires_python=" ".join(headers.get("Requires-Python", "").split()) or None,
        requires=tuple(requires),
    )


def read_metadata(wheel: Path) -> bytes:
    """Return METADATA of a wheel, unparsed. Raises WheelError as `read_wheel` does."""
    parse_file_name(wheel)
    with open_wheel(wheel) as archive:
        for member in archive.infolist():
            problem = zip_archive.unsafe_member(member)
            if problem:
                raise WheelError(f"{wheel}: {problem}: do not use it", code="unsafe-wheel")
        return archive.read(f"{find_dist_info(wheel, archive)}/METADATA")


def list_wheels(dist: Path) -> list[Path]:
    """Return the wheel files in a folder, sorted, without hidden ones: these are being written."""
    return sorted(path for path in dist.glob("*.whl") if not path.name.startswith("."))


def tag_python(tag: Tag) -> str | None:
    """Return the Python that a tag is for, "3.10" or "3.13t"; None if it is for several Pythons."""
    if tag.abi.startswith("abi3"):  # the stable ABI, which later Pythons have, too
        return None
    match = re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)
    if match is None:
        return None
    suffix = "t" if tag.abi.endswith("t") else ""
    return f"{match[1]}.{match[2]}{suffix}"


def parse_file_name(wheel: Path) -> WheelFileName:
    """Return the parts of a wheel's file name. Raises WheelError if it is not valid."""
    problem = "it has characters that such a name cannot have"
    if WHEEL_FILE_NAME.fullmatch(wheel.name):
        try:
            return file_names.parse_name(wheel.name)
        except InvalidWheelFilename as error:
            problem = str(error)
    raise WheelError(
        f"{wheel.name!r} in {wheel.parent}: not the name of a wheel ({problem}): "
        "rename or remove it",
        code="invalid-wheel-name",
    )


def parse_headers(content: bytes) -> Message:
    """Parse METADATA or WHEEL; bytes that are not UTF-8 are replaced."""
    # not Parser, which would also parse the description that follows the headers of METADATA
    return HeaderParser().parsestr(content.decode("utf-8", "replace"))


def format_tags(tags: Iterable[Tag]) -> str:
    """Return tags in one line, sorted."""
    return ", ".join(sorted(map(str, tags)))


def dist_info_folders(names: Iterable[str]) -> list[str]:
    """Return the .dist-info folders among the members of a wheel; a sound wheel has one."""
    folders = {name.partition("/")[0] for name in names}
    return sorted(folder for folder in folders if folder.endswith(".dist-info"))


@contextmanager
def open_wheel(wheel: Path) -> Iterator[ZipFile]:
    """Open a wheel to read it.

    Raises WheelError if it cannot be opened, and in place of what the block raises if the archive
    is damaged, or if the system refuses something. Only errors of a full disk, to which the block
    writes, pass unchanged: they say nothing of the wheel.
    """
    try:
        if wheel.exists() and not wheel.is_file():
            raise WheelError(f"{wheel}: not a file: remove it", code="not-a-wheel")
        with ZipFile(wheel) as archive:
            methods = {info.compress_type for info in archive.infolist()}
            if not methods <= {ZIP_STORED, ZIP_DEFLATED}:
                raise BadZipFile("it is compressed in a way not used for wheels")
            yield archive
    except (csv.Error, *zip_archive.ARCHIVE_ERRORS) as error:
        raise WheelError(
            f"{wheel}: not a sound wheel ({error}): build or fetch it again", code="damaged-wheel"
        ) from None
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        problem = f"{wheel}: cannot be read ({error.strerror or error})"
        raise WheelError(problem, code="unreadable-wheel") from None


def find_dist_info(wheel: Path, archive: ZipFile) -> str:
    """Return the name of the .dist-info folder of a wheel.

    Raises WheelError if the wheel does not have exactly one such folder, if the folder is of
    another project or lacks METADATA, or if a file in it is too large to be read into memory.
    """
    names = archive.namelist()
    folders = dist_info_folders(names)
    problem = ""
    if len(folders) != 1:
        problem = f"has {len(folders)} .dist-info folders, not one"
    else:
        name, _, version = folders[0].removesuffix(".dist-info").partition("-")
        if not _is_project(parse_file_name(wheel), name, version):
            problem = f"holds {folders[0]} of another project"
        elif f"{folders[0]}/METADATA" not in names:
            problem = f"has no {folders[0]}/METADATA"
    if problem:
        raise WheelError(f"{wheel}: {problem}: build it again", code="invalid-dist-info")
    dist_info = folders[0]
    for member in archive.infolist():  # METADATA, WHEEL and RECORD are read into memory
        is_metadata = member.filename.startswith(f"{dist_info}/")
        if is_metadata and member.file_size > LARGEST_METADATA_BYTES:
            limit = f"larger than {LARGEST_METADATA_BYTES} bytes"
            raise WheelError(
                f"{wheel}: {member.filename} is {limit}: do not use it", code="unsafe-wheel"
            )
    return dist_info


def require_same_project(wheel: Path, headers: Message) -> None:
    """Raise WheelError if METADATA names another project or version than the file's name does."""
    expected = parse_file_name(wheel)
    name = headers.get("Name", "")
    version = headers.get("Version", "")
    if not _is_project(expected, name, version):
        declared = f"{name} {version}".strip() or "nothing"
        raise WheelError(
            f"{wheel}: METADATA says {declared}, "
            f"the file's name {expected.project} {expected.version}: "
            "it was renamed, or is damaged",
            code="renamed-wheel",
        )


def _is_project(expected: WheelFileName, name: str, version: str) -> bool:
    """Tell whether a name and a version, in any spelling, are those of a wheel's file name."""
    has_version = canonicalize_version(version) == canonicalize_version(expected.version)
    return canonicalize_name(name) == expected.project and has_version
