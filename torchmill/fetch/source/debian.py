"""`--from debian`: a release from Debian's source archive, for networks without GitHub."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from torchmill.config.model import Source
from torchmill.core.errors import BusyError, HostError, NetworkError, SourceError, TorchmillError
from torchmill.core.process import CommandError
from torchmill.fetch.download import disk_full_error
from torchmill.fetch.source.apt import Apt, SourcePackage, machine_archives
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.git_command import complaint_gist
from torchmill.fetch.source.request import DEBIAN, FetchBar, FetchProgress, SourceRequest, ways_out
from torchmill.fetch.source.source_dir import SourceDir, build_backend, require_python_project

_WAIT = 600.0  # seconds for another fetch to be done with the same apt
_ETC = Path("/etc/apt")
_UNREACHABLE = re.compile(
    r"could not resolve|temporary failure|unable to connect|could not connect|timed out", re.IGNORECASE
)


def fetch_debian(request: SourceRequest, slot: SourceDir, cache: Path, progress: FetchProgress) -> Source:
    """Download, check and unpack the release and what fills its empty submodules.

    Raises SourceError, NetworkError, HostError; BusyError where another fetch keeps the cache too long.
    """
    package, release = request.package, request.release
    name = package.debian.get(release.version)
    if name is None:
        carried = ", ".join(package.debian) or "no release of it"
        raise SourceError(
            f"Debian's source archive does not carry {package.name} {release.version} (it has {carried}): "
            f"{ways_out(request)}"
        )
    if shutil.which("apt-get") is None:
        raise HostError(f"--from debian needs apt-get, which this machine does not have: {ways_out(request)}")
    shutil.rmtree(slot.unpacked, ignore_errors=True)
    slot.unpacked.mkdir(parents=True)
    tree = slot.unpacked / "tree"
    bar = progress.task(request.what)
    try:
        with hold_apt(cache):
            apt = _ready(Apt(cache), bar)
            source = _download(apt, name, release.version, request, bar)
            unpack_archive(apt.downloads / source.tarball, tree, bar)
            filled = _fill(apt, tree, request, bar)
        require_python_project(tree, f"Debian's {source.tarball}")
    except BaseException:
        shutil.rmtree(slot.unpacked, ignore_errors=True)
        raise
    finally:
        bar.close()
    record = _source(request, tree, source, filled)
    return slot.publish(slot.unpacked, record, {"ref": None, "origin": DEBIAN})


def _ready(apt: Apt, bar: FetchBar) -> Apt:
    """Give our apt the machine's archives; raise HostError where it has none."""
    archives = machine_archives(_ETC)
    if not archives:
        raise HostError(
            f"{_ETC} names no archive to take sources from: add a line of `deb` for Debian to sources.list"
        )
    bar.update(0, None, "reading Debian's lists")
    apt.configure(archives)
    return apt


def _download(
    apt: Apt, name: str, version: str | None, request: SourceRequest, bar: FetchBar
) -> SourcePackage:
    """Return the listed package, its tarball downloaded and checked."""
    try:
        found = _listed(apt, name, version)
        if found is None:
            raise SourceError(_not_listed(apt, name, version, request))
        bar.update(0, None, f"downloading {found.tarball}")
        apt.download(found)
    except CommandError as error:
        raise explain_apt_error(error.output, apt.folder, request.what, ways_out(request)) from None
    return found


def _listed(apt: Apt, name: str, version: str | None) -> SourcePackage | None:
    """Look in the lists we have if they are fresh, else, or if they lack it, in new ones."""
    if apt.is_fresh and (found := apt.find(name, version)) is not None:
        return found
    try:
        apt.update()
    except CommandError:
        # one archive of several that has no sources does not matter if another lists the package
        found = apt.find(name, version)
        if found is None:
            raise
        return found
    return apt.find(name, version)


def _not_listed(apt: Apt, name: str, version: str | None, request: SourceRequest) -> str:
    other = apt.find(name)
    has = f"it has {name} {other.upstream}" if other else f"it has no {name}"
    return (
        f"the source archive of this machine's system does not carry {name} {version or ''} ({has}): use "
        f"a machine of the Debian release that does, or {ways_out(request)}"
    )


def _fill(apt: Apt, tree: Path, request: SourceRequest, bar: FetchBar) -> tuple[str, ...]:
    """Put Debian's copies into submodule folders that its repacked archive leaves empty, and name them."""
    filled = []
    for path, name in request.package.debian_fill.items():
        folder = tree / path
        if folder.is_dir() and any(folder.iterdir()):
            continue
        source = _download(apt, name, None, request, bar)
        if folder.exists():
            folder.rmdir()
        folder.parent.mkdir(parents=True, exist_ok=True)
        unpack_archive(apt.downloads / source.tarball, folder, bar)
        filled.append(f"{path} from {name} {source.version}")
    return tuple(filled)


def explain_apt_error(output: str, folder: Path, what: str, ways: str) -> TorchmillError:
    """Return the error to show for what apt said; `ways` are those around it."""
    said = apt_complaint(output)
    if "no space left" in output.lower():
        return disk_full_error(folder)
    if re.search(r"\b404\b", output):
        return SourceError(
            f"Debian's archive lists {what}, but does not have its file any more ({said}): {ways}"
        )
    if _UNREACHABLE.search(output):
        return NetworkError(f"Debian's archive cannot be reached ({said}): {ways}")
    return SourceError(f"apt could not get {what} from Debian's archive ({said}): {ways}")


def apt_complaint(output: str) -> str:
    """Return the first error in what apt said."""
    lines = [line.strip().removeprefix("E:").strip() for line in output.splitlines() if line.startswith("E:")]
    return lines[0] if lines else complaint_gist(output)


def _source(request: SourceRequest, tree: Path, source: SourcePackage, filled: tuple[str, ...]) -> Source:
    notes = ["as repacked by Debian, which cannot prove its commit", *filled]
    return Source(
        package=request.package.name,
        version=request.release.version,
        tag=request.release.tag,
        provider=DEBIAN,
        origin=f"Debian's {source.name} {source.version} ({'; '.join(notes)})",
        commit=request.release.commit,  # declared, not proven
        path=tree,
        verified=False,
        build_backend=build_backend(tree),
    )


@contextlib.contextmanager
def hold_apt(cache: Path) -> Iterator[None]:
    """Hold the apt, which all checkouts of this user share."""
    from filelock import FileLock, Timeout

    cache.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache / "lock", timeout=_WAIT)
    try:
        lock.acquire()
    except Timeout:
        raise BusyError(f"{cache} is in use by another fetch: wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()
