"""`--from debian`: a release from Debian's source archive, for networks without GitHub."""

import contextlib
import re
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from torchmill.config.model import Source
from torchmill.core.errors import HostError, NetworkError, SourceError, TorchmillError
from torchmill.core.files import disk_full_error
from torchmill.core.process import CommandError
from torchmill.fetch.source.apt import Apt, SourcePackage, machine_archives
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.git_command import complaint_gist
from torchmill.fetch.source.request import DEBIAN, SourceRequest
from torchmill.fetch.source.source_dir import (
    WAIT_TIMEOUT_SECONDS,
    SourceDir,
    hold_folder,
    require_python_project,
)

if TYPE_CHECKING:
    from torchmill.core.console import ProgressBar, ProgressDisplay

_ETC = Path("/etc/apt")
_UNREACHABLE = re.compile(
    r"could not resolve|temporary failure|unable to connect|could not connect|timed out", re.IGNORECASE
)


def fetch_debian(request: SourceRequest, slot: SourceDir, cache: Path, progress: "ProgressDisplay") -> Source:
    """Download, check and unpack the release and what fills its empty submodules.

    Raises SourceError, NetworkError, HostError; BusyError if another run holds the cache for too long.
    """
    package, release = request.package, request.release
    name = package.debian.get(release.version)
    if name is None:
        raise SourceError(
            f"Debian's source archive does not have {package.name} {release.version} (it has "
            f"{', '.join(package.debian) or 'no release of it'}): {request.ways_out()}",
            code="release-not-in-debian",
        )
    if shutil.which("apt-get") is None:
        raise HostError(
            f"--from debian needs apt-get, which is not installed: {request.ways_out()}", code="apt-missing"
        )
    with contextlib.closing(progress.task(request.what)) as bar, slot.scratch() as tree:
        with hold_apt(cache):
            if not (archives := machine_archives(_ETC)):
                raise HostError(
                    f"{_ETC} lists no archive to take sources from: add a `deb` line for Debian",
                    code="no-apt-archive",
                )
            bar.update(0, None, "reading Debian's lists")
            apt = Apt(cache)
            apt.configure(archives)
            package_found = _download(apt, name, release.version, request, bar)
            unpack_archive(apt.downloads / package_found.tarball, tree, bar)
            filled = _fill_submodules(apt, tree, request, bar)
        require_python_project(tree, f"Debian's {package_found.tarball}")
        notes = "; ".join(["as repacked by Debian, which cannot prove its commit", *filled])
        origin = f"Debian's {package_found.name} {package_found.version} ({notes})"
        return slot.publish(slot.unpacked, request, DEBIAN, origin, commit=release.commit)


def _download(apt: Apt, name: str, version: str | None, request: SourceRequest, bar: "ProgressBar") -> SourcePackage:
    """Return the listed package, its tarball downloaded and checked."""
    try:
        found, failure = apt.query(lambda: apt.find(name, version), bool)
        if found is None and failure is not None:
            raise failure
        if found is None:
            other = apt.find(name)
            has = f"they have {name} {other.upstream}" if other else f"they have no {name}"
            raise SourceError(
                f"the apt archives of this machine do not have {name} {version or ''} ({has}): "
                f"use a machine of the Debian release that does, or {request.ways_out()}",
                code="release-not-in-debian",
            )
        bar.update(0, None, f"downloading {found.tarball}")
        apt.download(found)
    except CommandError as error:
        raise explain_apt_error(error.output, apt.folder, request.what, request.ways_out()) from None
    return found


def _fill_submodules(apt: Apt, tree: Path, request: SourceRequest, bar: "ProgressBar") -> tuple[str, ...]:
    """Put Debian's copies into submodule folders that its repacked archive leaves empty, and name them."""
    filled = []
    for path, name in request.package.debian_fill.items():
        folder = tree / path
        if folder.is_dir() and any(folder.iterdir()):
            continue
        found = _download(apt, name, None, request, bar)
        if folder.exists():
            folder.rmdir()
        folder.parent.mkdir(parents=True, exist_ok=True)
        unpack_archive(apt.downloads / found.tarball, folder, bar)
        filled.append(f"{path} from {name} {found.version}")
    return tuple(filled)


def explain_apt_error(output: str, folder: Path, what: str, ways: str) -> TorchmillError:
    """Return the error to show for apt's output; `ways` are what the user may do instead."""
    complaint = apt_complaint(output)
    if "no space left" in output.lower():
        return disk_full_error(folder)
    if re.search(r"\b404\b", output):
        return SourceError(
            f"Debian's archive lists {what}, but its file is no longer there ({complaint}): {ways}",
            code="debian-file-gone",
        )
    if _UNREACHABLE.search(output):
        return NetworkError(f"cannot reach Debian's archive ({complaint}): {ways}", code="host-unreachable")
    return SourceError(f"apt could not get {what} from Debian's archive ({complaint}): {ways}", code="apt-failed")


def apt_complaint(output: str) -> str:
    """Return the first error in apt's output."""
    lines = [line.strip().removeprefix("E:").strip() for line in output.splitlines() if line.startswith("E:")]
    return lines[0] if lines else complaint_gist(output)


def hold_apt(cache: Path) -> AbstractContextManager[None]:
    """Hold the apt that all checkouts of this user share. Raises BusyError if another run keeps it."""
    message = f"{cache} is in use by another run: wait for it, or stop it"
    return hold_folder(cache, WAIT_TIMEOUT_SECONDS, message, "apt-busy")
