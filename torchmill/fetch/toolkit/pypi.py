"""CUDA toolkits and libraries from NVIDIA's wheels on the package index.

The wheels have no Python code that is needed. Their headers, libraries and compilers are moved to
the places that they have in NVIDIA's own toolkits.
"""

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
from torchmill.fetch.download import http_session, read_body
from torchmill.fetch.http_failures import describe_http_error
from torchmill.fetch.package_index import READ_ERRORS, IndexFile, configured_index, project_files
from torchmill.fetch.source.archive import refuse_damage
from torchmill.fetch.toolkit import layout
from torchmill.fetch.toolkit.inherited import place_inherited, place_programs
from torchmill.fetch.toolkit.request import (
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
    version_begins,
)
from torchmill.fetch.toolkit.store import downloads_folder, fetch_piece
from torchmill.host.provisioned import TOOLKIT

PROVIDER = "pypi"

Glibc = tuple[int, int]  # (2, 17)
# Folders of a toolkit. In wheels they lie below one or two others, such as cusparselt, or
# nvidia/cublas, or nvidia/cu13.
_TOOLKIT_FOLDERS = frozenset({"bin", "include", "lib", "nvvm"})
_MOST_FOLDERS_ABOVE = 2
_PYTHON_NAMES = frozenset({"__init__.py", "__pycache__"})
_DIST_INFO = ".dist-info"
_EXECUTABLE = 0o111
_COPY_BYTES = 1 << 20


class AbsentFromIndexError(Exception):
    """The index does not have the requested packages.

    The message is a clause. `versions` are those that it has instead.
    """

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
            provider=PROVIDER,
            name=self.project,
            version=str(self.version),
            file=self.file.name,
            url=self.file.url,
            sha256=self.sha256,
            size=self.file.size or 0,
        )


def usable_wheels(
    project: str, files: Iterable[IndexFile], arch: str, glibc: Glibc
) -> tuple[UsableWheel, ...]:
    """Return the wheels of a project that a machine of this arch and glibc can use, best last.

    Pre-releases, and wheels that were withdrawn, are left out.
    """
    wheels = []
    for file in files:
        with contextlib.suppress(InvalidWheelFilename):
            _, version, build, tags = parse_wheel_filename(file.name)
            # The tags of Python do not count, because no Python code of these wheels is run.
            runs = any(platform_runs(tag.platform, arch, glibc) for tag in tags)
            if runs and not file.yanked and not version.is_prerelease:
                build_number = build[0] if build else 0
                wheels.append(UsableWheel(project, version, build_number, file))
    wheels.sort(key=lambda wheel: (wheel.version, wheel.build, wheel.file.name))
    return tuple(wheels)


def platform_runs(platform: str, arch: str, glibc: Glibc) -> bool:
    """Tell whether a machine can use wheels with a platform tag such as "manylinux_2_17_x86_64".

    packaging.tags is not used, because it lists the tags of the running interpreter. The machine
    may be another one, of which only arch and glibc are known.
    """
    if platform in {"any", f"{bundling.PLAIN_LINUX_PREFIX}{arch}"}:
        return True
    match = bundling.match_libc_tag(platform)
    if match is None or (match["libc"], match["arch"]) != ("manylinux", arch):
        return False
    return (int(match["major"]), int(match["minor"])) <= glibc


def wheel_requirements_of(wheel: UsableWheel, session: requests.Session) -> tuple[Requirement, ...]:
    """Return the requirements of a wheel, which is read into memory.

    For wheels such as cuda-toolkit, which contain little more than requirements. Raises
    NetworkError, AbsentFromIndexError if the file is not the one that the index lists, and
    SourceError if it is no wheel.
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
    name = "-".join(file.name.split("-")[:2])  # project and version
    with refuse_damage(Path(file.name)), zipfile.ZipFile(io.BytesIO(content)) as archive:
        # The file has the form of the headers of an e-mail.
        text = archive.read(f"{name}{_DIST_INFO}/METADATA").decode()
        lines = HeaderParser().parsestr(text).get_all("Requires-Dist", ())
        return tuple(Requirement(line) for line in lines)


def place_wheel_member(member: str, library_folder: str) -> str | None:
    """Return the place of a wheel's member in the folder that is filled; None: it is left out.

    "nvidia/cublas/lib/libcublas.so.12" has the place "lib64/libcublas.so.12" if `library_folder` is
    "lib64", the folder for libraries. Licences have places in a folder for each package.
    """
    # The wheels of CUDA 11.7 have the profiling interface in the folder extras/CUPTI.
    parts = PurePosixPath(member.replace("/extras/CUPTI/", "/")).parts
    if member.endswith("/") or zip_archive.leaves_folder(member):
        return None
    if not _PYTHON_NAMES.isdisjoint(parts):
        return None
    for depth, part in enumerate(parts[: _MOST_FOLDERS_ABOVE + 1]):
        is_folder = depth < len(parts) - 1
        if part in _TOOLKIT_FOLDERS and depth > 0 and is_folder:
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
    """Return the offer of the wheels that make up a request, from the index that pip uses.

    They are those of the first source; facts have one at most for a request.
    """
    lines = sources[0].packages
    with contextlib.closing(progress.start_bar(f"{request} on the package index")) as bar:
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
            # Not an error of the request: another provider may serve it.
            return ProviderRefusal(PROVIDER, str(error))
        except AbsentFromIndexError as error:
            return ProviderRefusal(PROVIDER, str(error), error.versions)
    full = str(wheels[0].version)
    if request.completes:  # its wheels are single libraries, with versions of their own
        full = request.version
    fill = partial(_fill, exact, pieces, downloads_folder(cache, exact), progress)
    return ProviderOffer(exact, PROVIDER, full, pieces, fill)


def _fill(
    request: ToolkitRequest,
    pieces: Sequence[ProviderPackage],
    downloads: Path,
    progress: ProgressDisplay,
    folder: Path,
) -> None:
    """Download, check and unpack the wheels, and add the links and stubs that they leave out."""
    if request.programs_of:
        place_programs(Path(request.completes), folder, request.programs_of)
    elif request.completes:
        place_inherited(Path(request.completes), folder, request.arch)
    library_folder = "lib64" if request.kind == TOOLKIT else "lib"
    for piece in pieces:
        with contextlib.closing(progress.start_bar(f"{piece.name} {piece.version}")) as bar:
            wheel = fetch_piece(piece, downloads, bar)
            unpack_wheel(wheel, folder, library_folder)
    if request.kind == TOOLKIT:
        layout.add_links(folder, request.arch)
        layout.add_driver_stub(folder, request.arch)
    else:
        layout.add_unversioned_names(folder / library_folder)


def _machine_glibc() -> Glibc:
    """Return the version of this machine's glibc; (0, 0) if it has another C library."""
    name, version = platform.libc_ver()
    numbers = version.split(".")
    if name != "glibc" or len(numbers) == 1:
        return 0, 0
    return int(numbers[0]), int(numbers[1])


@dataclass(frozen=True, slots=True)
class _Index:
    """The wheels on an index that one machine can use; each page is read once."""

    session: requests.Session
    url: str
    arch: str
    glibc: Glibc
    bar: ProgressBar
    pages: dict[str, tuple[UsableWheel, ...]] = field(default_factory=dict)  # by project

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
        """Return the best wheel of a project that has one of the `versions`.

        Raises AbsentFromIndexError if there is none, NetworkError.
        """
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
    """Return the wheels of a toolkit; the version of the first is that of the toolkit.

    `lines` are the requirements that the facts name. Before CUDA 13, each library has a
    requirement. From CUDA 13 on, the requirement is cuda-toolkit with extras, and the libraries are
    the requirements of these extras.
    """
    requirements = [Requirement(line) for line in lines]
    versions: dict[str, SpecifierSet] = {}  # project -> the versions that all requirements allow
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
    """Restrict the versions of a requirement's project to those that the requirement allows."""
    name = canonicalize_name(requirement.name)
    versions[name] = versions.get(name, SpecifierSet()) & requirement.specifier


def _is_demanded(dependency: Requirement, extras: Iterable[str], arch: str) -> bool:
    """Tell whether a dependency is needed on a machine of `arch` if some extras are requested."""
    marker = dependency.marker
    if marker is None:
        return True
    return any(marker.evaluate({"platform_machine": arch, "extra": extra}) for extra in extras)


def _select_library(request: ToolkitRequest, lines: Sequence[str], index: _Index) -> UsableWheel:
    """Return the wheel of a library.

    It has exactly the requested version, or else the newest version that begins with it. Raises
    AbsentFromIndexError if there is none, NetworkError.
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
    """Return some of the versions that an index has, for a message: there may be dozens.

    They are those of the requested major version, or else the oldest and the newest one.
    """
    if not versions:
        return f"none for {request.arch}"
    major = request.version.partition(".")[0]
    same_major = [version for version in versions if version_begins(version, major)]
    if same_major:
        return ", ".join(same_major)
    return " to ".join(dict.fromkeys((versions[0], versions[-1])))


def unpack_wheel(wheel: Path, folder: Path, library_folder: str) -> None:
    """Unpack the members of a wheel that have a place (`place_wheel_member`) into a folder."""
    with refuse_damage(wheel), zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            place = place_wheel_member(member.filename, library_folder)
            if place is None:
                continue
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            # Removed and not overwritten: it may be a hard link to a file of the incomplete
            # toolkit, which must not change.
            target.unlink(missing_ok=True)
            with archive.open(member) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, _COPY_BYTES)
            mode = member.external_attr >> 16  # of Unix, in the upper half
            target.chmod(0o755 if mode & _EXECUTABLE else 0o644)
