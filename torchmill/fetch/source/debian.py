"""`--from debian`: fetch a release from Debian's source archive."""

import contextlib
import shutil
from pathlib import Path

from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import HostError, SourceError
from torchmill.core.process import CommandError
from torchmill.fetch.source import apt_archives
from torchmill.fetch.source.apt import Apt, SourcePackage, explain_apt_error, hold_apt
from torchmill.fetch.source.apt_archives import SOURCES, AptArchive, DebianSuite
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.request import DEBIAN, SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import SourceDir, SourceProof
from torchmill.fetch.source.tree import require_python_project


def fetch_debian(
    request: SourceRequest, slot: SourceDir, cache: Path, progress: ProgressDisplay
) -> Source:
    """Download, check and unpack a release, and fill the submodules that its archive leaves empty.

    Raises SourceError, NetworkError, HostError; BusyError if another run holds the cache for long.
    """
    suite, name = _find_suite(request)
    if shutil.which("apt-get") is None:
        raise HostError(
            f"--from debian needs apt-get, which is not installed: {request.alternatives()}",
            code="apt-missing",
        )
    with contextlib.closing(progress.task(request.title)) as bar, slot.scratch() as tree:
        # All checkouts of the user share the lists and downloads in the cache.
        with hold_apt(cache):
            archives = _require_archives(suite)
            bar.update(0, None, f"reading the lists of {suite}")
            apt = Apt(cache / f"{suite.name}-sources")
            apt.configure(archives)
            package = _download(apt, suite, name, request.release.version, request, bar)
            unpack_archive(apt.downloads / package.tarball, tree, bar)
            filled = _fill_submodules(apt, suite, tree, request, bar)
        require_python_project(tree, f"Debian's {package.tarball}")
        notes = "; ".join(["as repacked by Debian", *filled])
        origin = f"Debian's {package.name} {package.version} ({notes})"
        proof = SourceProof(
            archive=package.sha256, unproven="Debian repacks the source, and names no commit"
        )
        return slot.publish(slot.unpacked, request, DEBIAN, origin, proof=proof)


def _find_suite(request: SourceRequest) -> tuple[DebianSuite, str]:
    """Return the suite that has a release, and the name of its source package there.

    Raises SourceError if the facts name no suite for the release.
    """
    package = request.package
    suite, _, name = package.debian.sources.get(request.release.version, "").partition("/")
    if name:
        return DebianSuite(DEBIAN, suite, ("main",)), name
    places = []
    for version, path in package.debian.sources.items():  # "1.13.1" -> "bookworm/pytorch"
        places.append(f"{version} in {path.partition('/')[0]}")
    raise SourceError(
        f"torchmill knows of no suite of Debian with {package.name} {request.release.version} (its "
        f"facts name {', '.join(places) or 'none for any release of it'}; Debian was not asked): "
        f"{request.alternatives()}",
        code="release-not-in-debian",
    )


def _require_archives(suite: DebianSuite) -> tuple[AptArchive, ...]:
    """Return the archives from which a suite is read. Raises HostError if there are none."""
    etc = apt_archives.APT_SETTINGS
    keyrings = apt_archives.KEYRINGS
    machine = apt_archives.machine_archives(etc)
    archives = apt_archives.suite_archives(suite, machine, keyrings, SOURCES)
    if not archives:
        raise HostError(
            f"{suite} is in no line of {etc}, and its keys ({keyrings / suite.keyring}) are "
            "missing: add a `deb` line for it, or install debian-archive-keyring",
            code="no-apt-archive",
        )
    return archives


def _download(  # noqa: PLR0917 - a package, the request it is for, and how to show it
    apt: Apt,
    suite: DebianSuite,
    name: str,
    version: str | None,
    request: SourceRequest,
    bar: ProgressBar,
) -> SourcePackage:
    """Download the tarball of a source package, and return the package.

    `version` is that of its authors, None for any. Raises SourceError if the suite does not have
    it, and other errors if apt fails.
    """
    try:
        package, failure = apt.query(lambda: apt.find_source(name, version), bool)
        # Without lists, nothing can be said about the package.
        if package is None and failure is not None:
            raise failure
        if package is None:
            other_version = apt.find_source(name)
            if other_version is None:
                offer = f"it has no {name}"
            else:
                offer = f"it now has {name} {other_version.upstream}"
            title = f"{name} {version}" if version else name
            raise SourceError(
                f"{suite} does not have {title} ({offer}): {request.alternatives()}",
                code="release-not-in-debian",
            )
        bar.update(0, None, f"downloading {package.tarball}")
        apt.download_source(package)
    except CommandError as error:
        raise explain_apt_error(
            error.output, apt.folder, request.title, request.alternatives()
        ) from None
    return package


def _fill_submodules(
    apt: Apt, suite: DebianSuite, tree: Path, request: SourceRequest, bar: ProgressBar
) -> tuple[str, ...]:
    """Unpack source packages of Debian into submodules that its repacked archive leaves empty.

    The facts name the package for each submodule. Returns a note for each that was filled:
    "third_party/deep from deep 2.0-1".
    """
    filled = []
    for path, name in request.package.debian.submodules.get(suite.name, {}).items():
        folder = tree / path
        if folder.is_dir() and any(folder.iterdir()):
            continue
        package = _download(apt, suite, name, None, request, bar)
        if folder.exists():
            folder.rmdir()  # a folder that is not empty makes this fail
        folder.parent.mkdir(parents=True, exist_ok=True)
        unpack_archive(apt.downloads / package.tarball, folder, bar)
        filled.append(f"{path} from {name} {package.version}")
    return tuple(filled)
