"""`--from debian`: fetch a release from Debian's source archive.

Debian has a source package for each program: a tarball of the authors' source, maybe repacked, and
patches, which are left out here. A suite is a release of Debian, such as bookworm.
"""

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
    request: SourceRequest, slot: SourceDir, apt_folder: Path, progress: ProgressDisplay
) -> Source:
    """Download, check and unpack a release, and fill the submodules that its tarball leaves empty.

    `apt_folder` has the lists and downloads of apt. Raises SourceError, NetworkError, HostError;
    BusyError if another run holds that folder for long.
    """
    suite, source_name = _find_suite(request)
    if shutil.which("apt-get") is None:
        raise HostError(
            f"--from debian needs apt-get, which is not installed: {request.alternatives()}",
            code="apt-missing",
        )
    with contextlib.closing(progress.start_bar(request.title)) as bar, slot.scratch() as tree:
        # All checkouts of the user share the lists and downloads in the cache.
        with hold_apt(apt_folder):
            archives = _require_archives(suite)
            bar.update(0, None, f"reading the lists of {suite}")
            apt = Apt(apt_folder / f"{suite.name}-sources")
            apt.configure(archives)
            source_package = _download(
                apt, suite, source_name, request.release.version, request=request, bar=bar
            )
            unpack_archive(apt.downloads / source_package.tarball, tree, bar)
            filled = _fill_submodules(apt, suite, tree, request, bar)
        require_python_project(tree, f"Debian's {source_package.tarball}")
        notes = "; ".join(["as repacked by Debian", *filled])
        origin = f"Debian's {source_package.name} {source_package.version} ({notes})"
        # The digests of the submodules' tarballs were checked too, against Debian's signed lists.
        # The proof has no place for them: the notes name their packages and versions.
        proof = SourceProof(
            archive=source_package.sha256, unproven="Debian repacks the source, and names no commit"
        )
        return slot.publish(slot.unpacked, request, DEBIAN, origin, proof=proof)


def _find_suite(request: SourceRequest) -> tuple[DebianSuite, str]:
    """Return the suite that has a release, and the name of its source package there.

    Raises SourceError if the facts name no suite for the release.
    """
    package = request.package
    # The facts write "bookworm/pytorch".
    path = package.source.debian.sources.get(request.release.version, "")
    suite, _, source_name = path.partition("/")
    if source_name:
        return DebianSuite(DEBIAN, suite, ("main",)), source_name
    places = []
    for version, path in package.source.debian.sources.items():  # "1.13.1" -> "bookworm/pytorch"
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


def _download(
    apt: Apt,
    suite: DebianSuite,
    source_name: str,
    version: str | None,
    *,
    request: SourceRequest,
    bar: ProgressBar,
) -> SourcePackage:
    """Download the tarball of a source package, and return the package.

    `version` is that of its authors, None for any. Raises SourceError if the suite does not have
    it, and other errors if apt fails.
    """
    try:
        # Any package is enough; if there is none, the lists are renewed.
        source_package, failure = apt.query(
            lambda: apt.find_source(source_name, version), is_enough=bool
        )
        # If the lists could not be renewed, a package from the old lists is good: its tarball is
        # checked by the digest there. Without a package, the failure is the reason: newer lists may
        # have it.
        if source_package is None and failure is not None:
            raise failure
        if source_package is None:
            offered = apt.find_source(source_name)
            if offered is None:
                offer = f"it has no {source_name}"
            else:
                offer = f"it now has {source_name} {offered.upstream}"
            title = f"{source_name} {version}" if version else source_name
            raise SourceError(
                f"{suite} does not have {title} ({offer}): {request.alternatives()}",
                code="release-not-in-debian",
            )
        bar.update(0, None, f"downloading {source_package.tarball}")
        apt.download_source(source_package)
    except CommandError as error:
        raise explain_apt_error(
            error.output, apt.folder, title=request.title, alternatives=request.alternatives()
        ) from None
    return source_package


def _fill_submodules(
    apt: Apt, suite: DebianSuite, tree: Path, request: SourceRequest, bar: ProgressBar
) -> tuple[str, ...]:
    """Unpack source packages of Debian into submodules that the repacked tarball leaves empty.

    The facts name the package for each submodule. Returns a note for each that was filled:
    "third_party/deep from deep 2.0-1".
    """
    filled = []
    for path, source_name in request.package.source.debian.submodules.get(suite.name, {}).items():
        folder = tree / path
        if folder.is_dir() and any(folder.iterdir()):
            continue
        source_package = _download(apt, suite, source_name, None, request=request, bar=bar)
        # In git's archives, a submodule is an empty folder; Debian also leaves the folder out.
        if folder.is_dir():
            folder.rmdir()
        folder.parent.mkdir(parents=True, exist_ok=True)
        unpack_archive(apt.downloads / source_package.tarball, folder, bar)
        filled.append(f"{path} from {source_name} {source_package.version}")
    return tuple(filled)
