"""Read members of wheels on an index without downloading the wheels.

A wheel is a ZIP archive, whose directory is at its end. An index that answers HTTP range requests
gives the directory and single members.
"""

import hashlib
import json
import re
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import TypeVar

import requests
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from remotezip import RemoteZip, RemoteZipError

from torchmill.config.field_types import no_entries
from torchmill.core import retries
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import ProgressBar
from torchmill.core.errors import NetworkError
from torchmill.core.silence import silence_limit
from torchmill.fetch.http_failures import judge_remote_zip
from torchmill.fetch.package_index import IndexFile

T = TypeVar("T")

READERS = 12  # connections at a time
# Bytes at the end of a wheel that are requested first: the directory of 13,000 members fits.
_TAIL = 1 << 20
_LIBRARY = re.compile(r"[^/]+/lib/[^/]+\.(so|dylib|dll)$")
# Files that may have device code.
_CODE = re.compile(r"\.(dll|pyd|dylib)$|\.so(\.[\w.]+)?$|\.(fatbin|cubin)$")
_LOCAL_HEADER = 30  # bytes of a member's own header in a ZIP file, without name and extra fields
_LONGEST_EXTRA = 1 << 10  # bytes of extra fields; no wheel has more
# Lines of torch/version.py.
_COMMIT = re.compile(r"^git_version\b[^=]*=\s*'([0-9a-f]{40})'", re.MULTILINE)
_CUDA = re.compile(r"^cuda\b[^=]*=\s*'(\d+\.\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RemoteWheel:
    """A wheel on the index, with its metadata."""

    name: str  # of the file
    version: str
    build: int  # the number of a rebuild, or 0
    interpreter: str  # "cp39", "py2.py3"
    abi: str  # "cp39", "cp313t", "none"
    platform: str  # "manylinux1_x86_64"
    uploaded: str | None
    yanked: bool
    requires_python: str | None
    requires: tuple[str, ...]  # Requires-Dist
    commit: str | None
    cuda: str | None  # "11.7"
    libraries: Mapping[str, int]  # "libtorch_cpu.so" -> bytes, unpacked
    members: Mapping[str, int] = no_entries()  # path of every library in the wheel -> bytes
    capabilities: tuple[str, ...] = ()  # "8.6", of its GPU code, if they were read

    @property
    def python(self) -> str | None:
        """Return the CPython that it is for ("3.9", "3.13t"); None: for several."""
        match = re.fullmatch(r"cp(\d)(\d+)", self.interpreter)
        if match is None:
            return None
        free_threaded = "t" if self.abi.endswith("t") else ""
        return f"{match[1]}.{match[2]}{free_threaded}"


@dataclass(frozen=True, slots=True)
class _Members:
    """Everything that is read of a wheel, and cached."""

    metadata: str  # content of METADATA
    version: str  # content of version.py
    libraries: Mapping[str, int]  # as in `RemoteWheel`
    members: Mapping[str, int]  # the same


@dataclass(frozen=True, slots=True)
class WheelMember:
    """An entry of a wheel's directory."""

    name: str  # its path in the wheel
    size: int  # bytes, unpacked
    packed: int  # bytes
    checksum: int  # CRC-32 of its content
    offset: int  # of its local header
    method: int  # of compression, as ZIP files number them

    @property
    def is_library(self) -> bool:
        """Tell whether it is a library that may have device code."""
        return bool(_CODE.search(self.name))

    @property
    def header_limit(self) -> int:
        """Return how many bytes its local header takes at most."""
        return _LOCAL_HEADER + len(self.name.encode()) + _LONGEST_EXTRA


def read_remote_wheels(
    files: Iterable[IndexFile],
    cache: Path,
    bar: ProgressBar,
    make_session: Callable[[], requests.Session] = requests.Session,
) -> tuple[RemoteWheel, ...]:
    """Return the metadata of every wheel among the files of an index; several are read at a time.

    Results stay in the folder `cache`. Raises NetworkError.
    """
    wheel_files = [file for file in files if file.name.endswith(".whl")]
    local = threading.local()  # a session must not be shared by threads

    def read(file: IndexFile) -> RemoteWheel | None:
        if not hasattr(local, "session"):
            local.session = make_session()
        return _read_wheel(file, cache, local.session)

    wheels: list[RemoteWheel] = []
    with ThreadPoolExecutor(READERS) as pool:
        for done, wheel in enumerate(pool.map(read, wheel_files), start=1):
            bar.update(done, len(wheel_files), "wheels")
            if wheel is not None:
                wheels.append(wheel)
    return tuple(wheels)


def _read_wheel(file: IndexFile, cache: Path, session: requests.Session) -> RemoteWheel | None:
    """Read one wheel; None if its file name is not that of a wheel."""
    try:
        _, version, build, _ = parse_wheel_filename(file.name)
    except InvalidWheelFilename:
        return None
    members = _load_members(file, cache, session)
    interpreter, abi, platform = file.name.removesuffix(".whl").split("-")[-3:]
    metadata = HeaderParser().parsestr(members.metadata)
    commit = _COMMIT.search(members.version)
    cuda = _CUDA.search(members.version)
    return RemoteWheel(
        name=file.name,
        version=str(version),
        build=build[0] if build else 0,
        interpreter=interpreter,
        abi=abi,
        platform=platform,
        uploaded=file.uploaded,
        yanked=file.yanked,
        requires_python=file.requires_python or metadata["Requires-Python"],
        requires=tuple(metadata.get_all("Requires-Dist") or ()),
        commit=commit[1] if commit else None,
        cuda=cuda[1] if cuda else None,
        libraries=members.libraries,
        members=members.members,
    )


def cached_file(cache: Path, file: IndexFile, suffix: str) -> Path:
    """Return the path for results about a file of an index; a file of another URL has another one."""
    digest = hashlib.sha256(file.url.encode()).hexdigest()[:12]
    return cache / f"{file.name}-{digest}.{suffix}"


def _load_members(file: IndexFile, cache: Path, session: requests.Session) -> _Members:
    """Return the members of a wheel from the cache, or else from the index."""
    path = cached_file(cache, file, "members.json")
    if path.exists():
        return _Members(**json.loads(path.read_text(encoding="utf-8")))
    project = file.name.partition("-")[0]
    members = _read_parts(file, session, lambda archive: _read_members(archive, project))
    write_atomically(path, json.dumps(asdict(members)))
    return members


def read_requirements(file: IndexFile, cache: Path, session: requests.Session) -> tuple[str, ...]:
    """Return the requirements of a wheel (Requires-Dist). Raises NetworkError."""
    metadata = HeaderParser().parsestr(_load_members(file, cache, session).metadata)
    return tuple(metadata.get_all("Requires-Dist") or ())


def list_members(file: IndexFile, session: requests.Session) -> list[WheelMember]:
    """Return the directory of a wheel. Raises NetworkError."""

    def read(archive: zipfile.ZipFile) -> list[WheelMember]:
        members = []
        for info in archive.infolist():
            member = WheelMember(
                name=info.filename,
                size=info.file_size,
                packed=info.compress_size,
                checksum=info.CRC,
                offset=info.header_offset,
                method=info.compress_type,
            )
            members.append(member)
        return members

    return _read_parts(file, session, read)


def read_member(file: IndexFile, name: str, session: requests.Session) -> bytes:
    """Return one member of a wheel. Raises NetworkError."""
    return _read_parts(file, session, lambda archive: archive.read(name))


def _read_parts(
    file: IndexFile, session: requests.Session, read: Callable[[zipfile.ZipFile], T]
) -> T:
    """Return what `read` returns for a wheel of which only the parts that it reads are downloaded.

    `read` is repeated if the connection breaks. Raises NetworkError.
    """

    def read_once() -> T:
        with RemoteZip(
            file.url, session=session, initial_buffer_size=_TAIL, timeout=silence_limit()
        ) as archive:
            return read(archive)

    try:
        return retries.repeat(read_once, judge_remote_zip, file.name)
    except (RemoteZipError, requests.RequestException, zipfile.BadZipFile) as error:
        raise NetworkError(
            f"cannot read parts of {file.url} ({error}): run the command again to resume, or set "
            "PIP_INDEX_URL to an index whose files answer HTTP range requests",
            code="wheel-unreadable",
        ) from None


def _read_members(archive: zipfile.ZipFile, package: str) -> _Members:
    """Read the members that matter; a missing METADATA or version.py is ""."""
    sizes = {info.filename: info.file_size for info in archive.infolist()}
    metadata = next((name for name in sizes if name.endswith(".dist-info/METADATA")), None)
    version = f"{package}/version.py"
    return _Members(
        metadata=archive.read(metadata).decode() if metadata else "",
        version=archive.read(version).decode() if version in sizes else "",
        libraries={
            name.rpartition("/")[2]: size for name, size in sizes.items() if _LIBRARY.match(name)
        },
        members={name: size for name, size in sizes.items() if _CODE.search(name)},
    )
