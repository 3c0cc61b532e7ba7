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
from millpress import bundling, zip_archive
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
from torchmill.fetch.toolkit import layout
from torchmill.fetch.toolkit.inherited import place_inherited
from torchmill.fetch.toolkit.request import (
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
    version_begins,
)
from torchmill.fetch.toolkit.store import fetch_piece
from torchmill.host.provisioned import TOOLKIT

PROVIDER = "pypi"

Glibc = tuple[int, int]  # (2, 17)
# Folders of a toolkit. In wheels they lie below one or two others: cusparselt, nvidia/cublas,
# nvidia/cu13.
_TOOLKIT_FOLDERS = frozenset({"bin", "include", "lib", "nvvm"})
_DEEPEST = 2
_PYTHON_NAMES = frozenset({"__init__.py", "__pycache__"})
_DIST_INFO = ".dist-info"
_EXECUTABLE = 0o111
_COPY_BYTES = 1 << 20


class AbsentFromIndexError(Exception):
    """The index does not have the request: a clause, and the `versions` that it has instead."""

    def __init__(self, message: str, versions: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.versions = versions


@dataclass(frozen=True, slots=True)
class UsableWheel:
    """One wheel that a machine can use."""

    project: str
    version: Version
    build: int  # the number of a rebuild, or 0
    file: IndexFile

    @property
    def sha256(self) -> str:
        """Return the digest in the index. Raises AbsentFromIndexError if there is none."""
        if self.file.sha256 is None:
            raise AbsentFromIndexError(
                f"its index lists no sha256 of {self.file.name}, so that it could not be checked"
            )
        return self.file.sha256

    def piece(self) -> ProviderPackage:
        """Return the package to download. Raises AbsentFromIndexError if it has no digest."""
        return ProviderPackage(
            PROVIDER,
            self.project,
            str(self.version),
            self.file.name,
            self.file.url,
            self.sha256,
            self.file.size or 0,
        )


def usable_wheels(
    project: str, files: Iterable[IndexFile], arch: str, glibc: Glibc
) -> tuple[UsableWheel, ...]:
    """Return the wheels of a project that a machine of this arch and glibc can use, best last."""
    wheels = []
    for file in files:
        with contextlib.suppress(InvalidWheelFilename):
            _, version, build, tags = parse_wheel_filename(file.name)
            # only platforms count: these wheels contain no Python code that would be run
            runs = any(platform_runs(tag.platform, arch, glibc) for tag in tags)
            if runs and not file.yanked and not version.is_prerelease:
                build_number = build[0] if build else 0
                wheels.append(UsableWheel(project, version, build_number, file))
    wheels.sort(key=lambda wheel: (wheel.version, wheel.build, wheel.file.name))
    return tuple(wheels)


def platform_runs(platform: str, arch: str, glibc: Glibc) -> bool:
    """Tell whether a machine can use the platform tag "manylinux_2_17_x86_64".

    packaging.tags cannot tell: it lists the tags of the running interpreter, not those of a machine
    that is only described.
    """
    if platform in {"any", f"{bundling.PLAIN_LINUX_PREFIX}{arch}"}:
        return True
    match = bundling.match_libc_tag(platform)
    if match is None or (match["libc"], match["arch"]) != ("manylinux", arch):
        return False
    return (int(match["major"]), int(match["minor"])) <= glibc


def wheel_requirements_of(wheel: UsableWheel, session: requests.Session) -> tuple[Requirement, ...]:
    """Return the requirements of a small wheel, which has little more than these.

    Raises NetworkError; AbsentFromIndexError for a file that is not the listed one.
    """
    file = wheel.file
    try:
        _, content = read_body(session, file.url, {})
    except READ_ERRORS as error:
        raise NetworkError(
            f"cannot read {hide_password(file.url)} ({describe_http_error(error)})",
            code="index-unreadable",
        ) from None
    if hashlib.sha256(content).hexdigest() != wheel.sha256:
        raise AbsentFromIndexError(f"its {file.name} is not the file that the index lists")
    name = "-".join(file.name.split("-")[:2])
    with refuse_damage(Path(file.name)), zipfile.ZipFile(io.BytesIO(content)) as archive:
        text = archive.read(f"{name}{_DIST_INFO}/METADATA").decode()
        lines = HeaderParser().parsestr(text).get_all("Requires-Dist", ())
        return tuple(Requirement(line) for line in lines)


def place_wheel_member(member: str, library_folder: str) -> str | None:
    """Return the path of a wheel's member below the folder that is filled; None: it is left out.

    `library_folder` is the folder for libraries: "lib64" of a toolkit, "lib" otherwise. Licences
    are kept, in a folder for each package.
    """
    # as in the packages of CUDA 11.7
    parts = PurePosixPath(member.replace("/extras/CUPTI/", "/")).parts
    if member.endswith("/") or zip_archive.leaves_folder(member):
        return None
    if not _PYTHON_NAMES.isdisjoint(parts):
        return None
    for depth, part in enumerate(parts[: _DEEPEST + 1]):
        if part in _TOOLKIT_FOLDERS and 0 < depth < len(parts) - 1:
            folder = library_folder if part == "lib" else part
            return "/".join((folder, *parts[depth + 1 :]))
    is_licence = parts[-1].lower().startswith("license")
    if not is_licence or len(parts) == 1:
        return None
    if parts[0].endswith(_DIST_INFO):
        package = parts[0].removesuffix(_DIST_INFO)
    else:
        package = parts[-2]
    return f"licenses/{package}/{parts[-1]}"


def offer(
    request: ToolkitRequest,
    sources: Sequence[ToolkitSource],
    cache: Path,
    progress: ProgressDisplay,
) -> ProviderOffer | ProviderRefusal:
    """Return the wheels that make up a request, from the index that pip uses."""
    lines = sources[0].packages
    with contextlib.closing(progress.task(f"{request} on the package index")) as bar:
        try:
            with http_session() as session:
                index = _Index(session, configured_index(), request.arch, _machine_glibc(), bar)
                if request.kind == TOOLKIT:
                    exact = request
                    wheels = _select_toolkit(request, lines, index)
                else:
                    wheels = [_select_library(request, lines, index)]
                    version = wheels[0].version.base_version
                    exact = ToolkitRequest(request.kind, version, request.cuda, request.arch)
            pieces = tuple(wheel.piece() for wheel in wheels)
        except NetworkError as error:
            return ProviderRefusal(PROVIDER, str(error))
        except AbsentFromIndexError as error:
            return ProviderRefusal(PROVIDER, str(error), error.versions)
    full = request.version if request.completes else str(wheels[0].version)
    fill = partial(_fill, exact, pieces, cache, progress)
    return ProviderOffer(exact, PROVIDER, full, pieces, fill)


def _fill(
    request: ToolkitRequest,
    pieces: Sequence[ProviderPackage],
    cache: Path,
    progress: ProgressDisplay,
    folder: Path,
) -> None:
    """Download, check and unpack the wheels, and add the links and stubs that they leave out."""
    if request.completes:
        place_inherited(Path(request.completes), folder, request.arch)
    library_folder = "lib64" if request.kind == TOOLKIT else "lib"
    for piece in pieces:
        with contextlib.closing(progress.task(f"{piece.name} {piece.version}")) as bar:
            wheel = fetch_piece(piece, cache, bar)
            unpack_wheel(wheel, folder, library_folder)
    if request.kind == TOOLKIT:
        layout.add_links(folder, request.arch)
        layout.add_driver_stub(folder)
    else:
        layout.add_unversioned_names(folder / library_folder)


def _machine_glibc() -> Glibc:
    """Return the version of this machine's glibc; (0, 0) if its C library is another one."""
    name, version = platform.libc_ver()
    numbers = version.split(".")
    if name != "glibc" or len(numbers) == 1:
        return 0, 0
    return int(numbers[0]), int(numbers[1])


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
        """Return the wheels of a project that the machine can use, best last.

        Raises NetworkError.
        """
        if project not in self.pages:
            self.bar.update(len(self.pages), None, project)
            files = project_files(self.session, self.url, project)
            self.pages[project] = usable_wheels(project, files, self.arch, self.glibc)
        return self.pages[project]

    def best(self, project: str, versions: SpecifierSet) -> UsableWheel:
        """Return the best wheel among some versions. Raises AbsentFromIndexError, NetworkError."""
        fitting = [wheel for wheel in self.wheels(project) if wheel.version in versions]
        if not fitting:
            glibc = ".".join(map(str, self.glibc))
            raise AbsentFromIndexError(
                f"it has no {project}{versions} for {self.arch} and glibc {glibc}"
            )
        return fitting[-1]


def _select_toolkit(
    request: ToolkitRequest, lines: Sequence[str], index: _Index
) -> list[UsableWheel]:
    """Return the wheels of a toolkit: those of the requirements in `lines`, and of their extras.

    The first is the one that names the others. From CUDA 13 on, that is cuda-toolkit with its
    extras; before, each library is named by itself.
    """
    requirements = [Requirement(line) for line in lines]
    versions: dict[str, SpecifierSet] = {}  # in order, by the project's name
    for requirement in requirements:
        _narrow(versions, requirement)
    for requirement in requirements:
        if not requirement.extras:
            continue
        name = canonicalize_name(requirement.name)
        wheel = index.best(name, requirement.specifier)
        for dependency in wheel_requirements_of(wheel, index.session):
            if _is_demanded(dependency, requirement.extras, request.arch):
                _narrow(versions, dependency)
    return [index.best(name, specifiers) for name, specifiers in versions.items()]


def _narrow(versions: dict[str, SpecifierSet], requirement: Requirement) -> None:
    """Add a requirement to the versions of its project that may be used."""
    name = canonicalize_name(requirement.name)
    versions[name] = versions.get(name, SpecifierSet()) & requirement.specifier


def _is_demanded(dependency: Requirement, extras: Iterable[str], arch: str) -> bool:
    """Tell whether a dependency is needed on a machine, with one of some extras."""
    marker = dependency.marker
    if marker is None:
        return True
    return any(marker.evaluate({"platform_machine": arch, "extra": extra}) for extra in extras)


def _select_library(request: ToolkitRequest, lines: Sequence[str], index: _Index) -> UsableWheel:
    """Return the wheel of a library: of exactly the requested version, or the newest beginning so.

    Raises AbsentFromIndexError if there is none, NetworkError.
    """
    (project,) = lines
    wheels = index.wheels(project)
    fitting = [wheel for wheel in wheels if str(wheel.version) == request.version]
    if not fitting:
        fitting = [wheel for wheel in wheels if version_begins(str(wheel.version), request.version)]
    if not fitting:
        versions = tuple(dict.fromkeys(wheel.version.base_version for wheel in wheels))
        summary = _summarize_versions(versions, request)
        raise AbsentFromIndexError(f"it has {summary}", versions)
    return fitting[-1]


def _summarize_versions(versions: Sequence[str], request: ToolkitRequest) -> str:
    """Return the versions of the requested major version, or the oldest and the newest.

    There may be dozens, too many for a message.
    """
    if not versions:
        return f"none for {request.arch}"
    major = request.version.partition(".")[0]
    same_major = [version for version in versions if version_begins(version, major)]
    if same_major:
        return ", ".join(same_major)
    return " to ".join(dict.fromkeys((versions[0], versions[-1])))


def unpack_wheel(wheel: Path, folder: Path, library_folder: str) -> None:
    """Unpack the members of a wheel that belong into a CUDA_HOME; libraries: `library_folder`."""
    with refuse_damage(wheel), zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            place = place_wheel_member(member.filename, library_folder)
            if place is None:
                continue
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            # Not overwritten: it may be a link to the file of the toolkit that is completed.
            target.unlink(missing_ok=True)
            with archive.open(member) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, _COPY_BYTES)
            mode = member.external_attr >> 16  # of Unix, in the upper half
            target.chmod(0o755 if mode & _EXECUTABLE else 0o644)
