"""CUDA toolkits and libraries from NVIDIA's wheels on the package index."""

import contextlib
import hashlib
import io
import platform
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import partial
from pathlib import Path, PurePosixPath

import requests
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from torchmill.config.toolkit import ProviderPackage, ToolkitSource
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import NetworkError
from torchmill.core.urls import hide_password
from torchmill.fetch.download import describe_http_error, http_session, read_body
from torchmill.fetch.package_index import READ_ERRORS, IndexFile, configured_index, project_files
from torchmill.fetch.source.archive import refuse_damage
from torchmill.fetch.toolkit import provision, store
from torchmill.fetch.toolkit.request import (
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
    version_begins,
)
from torchmill.fetch.toolkit.store import fetch_piece
from torchmill.host.provisioned import TOOLKIT
from torchmill.wheel.pack import bundling, zip_archive

PROVIDER = "pypi"

Glibc = tuple[int, int]  # (2, 17)
_HEADS = frozenset({"bin", "include", "lib", "nvvm"})
_DEEPEST = 2  # folders before one of these: nvidia/cu13, nvidia/cublas, cusparselt
_PYTHON = frozenset({"__init__.py", "__pycache__"})
_INFO = ".dist-info"
_EXECUTABLE = 0o111


class AbsentFromIndexError(Exception):
    """The index lacks what is requested: the message is a clause, `has` the versions that it does have."""

    def __init__(self, message: str, has: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.has = has


@dataclass(frozen=True, slots=True)
class UsableWheel:
    """One wheel that a machine can use."""

    project: str
    version: Version
    build: int  # 0, or the number of a rebuild
    file: IndexFile

    @property
    def sha256(self) -> str:
        """Return the digest in the index. Raises AbsentFromIndexError if it has none."""
        if self.file.sha256 is None:
            raise AbsentFromIndexError(
                f"its index lists no sha256 of {self.file.name}, which could not be checked"
            )
        return self.file.sha256

    def piece(self) -> ProviderPackage:
        """Return the package to download. Raises AbsentFromIndexError if it could not be checked."""
        file, version = self.file, str(self.version)
        return ProviderPackage(
            PROVIDER, self.project, version, file.name, file.url, self.sha256, file.size or 0
        )


def usable_wheels(
    project: str, files: Iterable[IndexFile], arch: str, glibc: Glibc
) -> tuple[UsableWheel, ...]:
    """Return the wheels of a project that a machine of this kind and C library can use, the best one last."""
    found = []
    for file in files:
        with contextlib.suppress(InvalidWheelFilename):
            _, version, build, tags = parse_wheel_filename(file.name)
            runs = any(platform_runs(tag.platform, arch, glibc) for tag in tags)
            if runs and not file.yanked and not version.is_prerelease:
                found.append(UsableWheel(project, version, build[0] if build else 0, file))
    return tuple(sorted(found, key=lambda wheel: (wheel.version, wheel.build, wheel.file.name)))


def platform_runs(platform: str, arch: str, glibc: Glibc) -> bool:
    """Tell whether a platform tag is one of a machine: "manylinux_2_17_x86_64"."""
    # not by packaging.tags: that lists the tags of the interpreter that runs, not of a machine that is described
    if platform in {"any", f"{bundling.PLAIN_LINUX_PREFIX}{arch}"}:
        return True
    match = bundling.match_libc_tag(platform)
    if match is None or (match["libc"], match["arch"]) != ("manylinux", arch):
        return False
    return (int(match["major"]), int(match["minor"])) <= glibc


def wheel_requirements_of(wheel: UsableWheel, session: requests.Session) -> tuple[Requirement, ...]:
    """Return what a wheel that only requires others asks for.

    Raises NetworkError; AbsentFromIndexError for a file that is not the listed one.
    """
    file = wheel.file
    try:
        _, content = read_body(session, file.url, {})
    except READ_ERRORS as error:
        shown = f"{hide_password(file.url)} ({describe_http_error(error)})"
        raise NetworkError(f"cannot read {shown}", code="index-unreadable") from None
    if hashlib.sha256(content).hexdigest() != wheel.sha256:
        raise AbsentFromIndexError(f"its {file.name} is not the file that the index lists")
    name = "-".join(file.name.split("-")[:2])
    with refuse_damage(Path(file.name)), zipfile.ZipFile(io.BytesIO(content)) as archive:
        metadata = HeaderParser().parsestr(archive.read(f"{name}.dist-info/METADATA").decode())
        return tuple(Requirement(line) for line in metadata.get_all("Requires-Dist", ()))


def place_wheel_member(member: str, libraries: str) -> str | None:
    """Return the path of a wheel's member below the folder that is filled; None: it is not for there.

    `libraries` is the folder that libraries go to: "lib64" of a toolkit, "lib" of all else. Licences are
    kept, apart for each package.
    """
    parts = PurePosixPath(
        member.replace("/extras/CUPTI/", "/")
    ).parts  # as in the packages of CUDA 11.7
    if member.endswith("/") or zip_archive.leaves_folder(member) or _PYTHON & set(parts):
        return None
    for depth, part in enumerate(parts[: _DEEPEST + 1]):
        if part in _HEADS and 0 < depth < len(parts) - 1:
            return "/".join((libraries if part == "lib" else part, *parts[depth + 1 :]))
    if len(parts) > 1 and parts[-1].lower().startswith("license"):
        package = parts[0].removesuffix(_INFO) if parts[0].endswith(_INFO) else parts[-2]
        return f"licenses/{package}/{parts[-1]}"
    return None


def offer(
    request: ToolkitRequest,
    sources: Sequence[ToolkitSource],
    cache: Path,
    progress: ProgressDisplay,
) -> ProviderOffer | ProviderRefusal:
    """Return the wheels that make up a request, from the index that pip uses."""
    with contextlib.closing(progress.task(f"{request} on the package index")) as bar:
        try:
            with http_session() as session:
                index = _Index(session, configured_index(), request.arch, _glibc(), bar)
                select = _toolkit if request.kind == TOOLKIT else _library
                exact, wheels = select(request, sources[0].packages, index)
            pieces = tuple(wheel.piece() for wheel in wheels)
        except NetworkError as error:
            return ProviderRefusal(PROVIDER, str(error))
        except AbsentFromIndexError as error:
            return ProviderRefusal(PROVIDER, str(error), error.has)
    full = request.version if request.completes else str(wheels[0].version)
    return ProviderOffer(
        exact, PROVIDER, full, pieces, partial(_fill, exact, pieces, cache, progress)
    )


def _fill(
    request: ToolkitRequest,
    pieces: Sequence[ProviderPackage],
    cache: Path,
    progress: ProgressDisplay,
    folder: Path,
) -> None:
    """Download, check and unpack the wheels, and add the links and stubs that wheels leave out."""
    if request.completes:
        provision.place_inherited(Path(request.completes), folder, request.arch)
    libraries = "lib64" if request.kind == TOOLKIT else "lib"
    for piece in pieces:
        with contextlib.closing(progress.task(f"{piece.name} {piece.version}")) as bar:
            unpack_wheel(fetch_piece(piece, cache, bar), folder, libraries)
    if request.kind == TOOLKIT:
        store.add_links(folder, request.arch)
        store.add_driver_stub(folder)
    else:
        store.add_unversioned_names(folder / libraries)


def _glibc() -> Glibc:
    """Return the version of this machine's C library; (0, 0) if it is not glibc."""
    name, version = platform.libc_ver()
    numbers = version.split(".")
    return (int(numbers[0]), int(numbers[1])) if name == "glibc" and len(numbers) > 1 else (0, 0)


@dataclass(frozen=True, slots=True)
class _Index:
    """The index as one machine sees it; each page is read once."""

    session: requests.Session
    url: str
    arch: str
    glibc: Glibc
    bar: ProgressBar
    pages: dict[str, tuple[UsableWheel, ...]] = field(default_factory=dict)

    def wheels(self, project: str) -> tuple[UsableWheel, ...]:
        """Return the wheels of a project that the machine can use, the best one last. Raises NetworkError."""
        if project not in self.pages:
            self.bar.update(len(self.pages), None, project)
            found = project_files(self.session, self.url, project)
            self.pages[project] = usable_wheels(project, found, self.arch, self.glibc)
        return self.pages[project]

    def best(self, project: str, versions: SpecifierSet) -> UsableWheel:
        """Return the best wheel among some versions. Raises AbsentFromIndexError, NetworkError."""
        fitting = [wheel for wheel in self.wheels(project) if wheel.version in versions]
        if not fitting:
            raise AbsentFromIndexError(
                f"it has no {project}{versions} for {self.arch} and glibc {'.'.join(map(str, self.glibc))}"
            )
        return fitting[-1]


def _toolkit(
    request: ToolkitRequest, lines: Sequence[str], index: _Index
) -> tuple[ToolkitRequest, list[UsableWheel]]:
    """Return the wheels of a toolkit, the one that names the others first."""
    asked = [Requirement(line) for line in lines]
    bounds = dict.fromkeys([canonicalize_name(one.name) for one in asked], SpecifierSet())
    for one in asked:
        bounds[canonicalize_name(one.name)] &= one.specifier
    for one in asked:
        if one.extras:
            first = index.best(canonicalize_name(one.name), one.specifier)
            for further in wheel_requirements_of(first, index.session):
                machines = (
                    {"platform_machine": request.arch, "extra": extra} for extra in one.extras
                )
                if further.marker is None or any(map(further.marker.evaluate, machines)):
                    name = canonicalize_name(further.name)
                    bounds[name] = bounds.get(name, SpecifierSet()) & further.specifier
    return request, [index.best(name, versions) for name, versions in bounds.items()]


def _library(
    request: ToolkitRequest, lines: Sequence[str], index: _Index
) -> tuple[ToolkitRequest, list[UsableWheel]]:
    """Return the wheel of a library, and its exact version: the newest that begins as asked."""
    (project,) = lines
    wheels = index.wheels(project)
    fitting = [wheel for wheel in wheels if str(wheel.version) == request.version]
    fitting = fitting or [
        wheel for wheel in wheels if version_begins(str(wheel.version), request.version)
    ]
    if not fitting:
        has = tuple(dict.fromkeys(wheel.version.base_version for wheel in wheels))
        same = [one for one in has if version_begins(one, request.version.partition(".")[0])]
        # those of the same major version, or the oldest and the newest
        near = (
            ", ".join(same)
            or " to ".join(dict.fromkeys((*has[:1], *has[-1:])))
            or f"none for {request.arch}"
        )
        raise AbsentFromIndexError(f"it has {near}", has)
    found = fitting[-1]
    return ToolkitRequest(request.kind, found.version.base_version, request.cuda, request.arch), [
        found
    ]


def unpack_wheel(wheel: Path, folder: Path, libraries: str) -> None:
    """Unpack what of a wheel belongs into a CUDA_HOME, libraries into the folder of that name."""
    with refuse_damage(wheel), zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            where = place_wheel_member(member.filename, libraries)
            if where is None:
                continue
            target = folder / where
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(
                missing_ok=True
            )  # it may be a link to the file of a toolkit that is completed
            with archive.open(member) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            target.chmod(0o755 if member.external_attr >> 16 & _EXECUTABLE else 0o644)
