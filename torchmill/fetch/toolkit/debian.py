"""CUDA toolkits and compilers from Debian's and Ubuntu's packages, unpacked without installing.

The facts "pin" packages: they name the version of each that belongs to a toolkit.
"""

import contextlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from torchmill.config.toolkit import ProviderPackage, ToolkitSource
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.digests import hash_file
from torchmill.core.errors import SourceError
from torchmill.core.process import CommandError, capture
from torchmill.core.system_errors import read_refusal, report_unwritable
from torchmill.fetch.source import apt
from torchmill.fetch.source.apt import Apt, BinaryPackage
from torchmill.fetch.source.apt_archives import (
    APT_SETTINGS,
    KEYRINGS,
    AptArchive,
    DebianSuite,
    machine_archives,
    parse_suite,
    suite_archives,
)
from torchmill.fetch.toolkit.layout import (
    Place,
    finish_debian_toolkit,
    place_files,
    placer,
    try_compiler,
)
from torchmill.fetch.toolkit.request import (
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
    version_begins,
)
from torchmill.fetch.toolkit.store import downloads_folder
from torchmill.host.provisioned import COMPILER, MAGMA, TOOLKIT

DEBIAN = "debian"
_ALTERNATIVES = "run the command again to resume, or use another provider (`--from`)"
_DPKG_DEB = "dpkg-deb"
_MOST_UNPACKERS = 4  # at a time; more would only wait for the disk
_PLACE_TABLES = {COMPILER: "compiler", MAGMA: "magma"}  # other kinds: "debian"


def offer(
    request: ToolkitRequest,
    sources: Sequence[ToolkitSource],
    cache: Path,
    progress: ProgressDisplay,
    etc: Path = APT_SETTINGS,
) -> ProviderOffer | ProviderRefusal:
    """Return the offer of the first suite that can serve a request, or a refusal.

    Suites that the machine's apt reads come first. `etc` is the folder of apt's settings. Raises
    BusyError if another run holds the lists for too long.
    """
    for program in ("apt-get", "apt-cache", _DPKG_DEB):
        if shutil.which(program) is None:
            return ProviderRefusal(DEBIAN, f"it needs {program}, which this machine does not have")
    machine = machine_archives(etc)
    machine_suites = {archive.suite for archive in machine}
    candidates = [(parse_suite(source.places), source) for source in sources]
    # False sorts before True; otherwise the order of the facts stays.
    candidates.sort(key=lambda candidate: candidate[0].name not in machine_suites)
    reasons = []
    for suite, source in candidates:
        archives = suite_archives(suite, machine, KEYRINGS)
        answer = _ask_suite(request, suite, source.packages, archives, cache, progress)
        if isinstance(answer, ProviderOffer):
            return answer
        reasons.append(answer)
    return ProviderRefusal(DEBIAN, "; ".join(reasons) or "no known suite has it")


def _ask_suite(  # noqa: PLR0917 - a request, where to read, and how to show it
    request: ToolkitRequest,
    suite: DebianSuite,
    package_lines: Sequence[str],
    archives: Sequence[AptArchive],
    cache: Path,
    progress: ProgressDisplay,
) -> ProviderOffer | str:
    """Return the offer of one suite, or a clause that says why it cannot serve the request.

    `package_lines` are the packages as the facts write them (`pinned_versions`).
    """
    pinned = pinned_versions(package_lines, request.version)
    if not archives:
        keyring = KEYRINGS / suite.keyring
        return f"{suite} is in no line of {APT_SETTINGS}, and its keys ({keyring}) are missing"
    architecture = apt.ARCHITECTURES[request.arch]
    lists_name = "-".join([suite.name, architecture, *suite.components])
    own_apt = Apt(cache / DEBIAN / lists_name)

    def look_up(names: Iterable[str]) -> Mapping[str, BinaryPackage]:
        return apt.list_binaries(own_apt, names)

    def find_packages() -> tuple[BinaryPackage, ...]:
        return apt.package_closure(tuple(pinned), look_up)

    def has_pinned(packages: Iterable[BinaryPackage]) -> bool:
        return pinned.keys() <= {package.name for package in packages}

    with (
        contextlib.closing(progress.start_bar(f"{request}, {suite}")) as bar,
        apt.hold_apt(cache / DEBIAN),
    ):
        bar.update(0, None, "reading its lists")
        own_apt.configure(archives, architecture)
        packages, failure = own_apt.query(find_packages, has_pinned)
    mismatch = _mismatch(suite, packages, pinned, failure)
    if mismatch:
        return mismatch
    complaint = _glibc_complaint(request, suite, packages)
    if complaint:
        return complaint
    upstream = packages[0].upstream
    if request.kind != MAGMA:
        # The version of NVIDIA's libraries is "11.8.89~11.8.0": theirs, and that of the toolkit.
        full = re.split(r"[~+]", upstream)[-1]
        store = downloads_folder(cache, request)
        return _Installation(request, suite, full, own_apt, packages, store, progress).offer()
    if not version_begins(upstream, request.version):
        return f"{suite} has {MAGMA} {upstream}"
    exact = replace(request, version=upstream)
    # MAGMA is linked statically, and needs no packages at run time: only the pinned packages are
    # taken, which come first.
    packages = packages[: len(pinned)]
    store = downloads_folder(cache, exact)
    return _Installation(exact, suite, upstream, own_apt, packages, store, progress).offer()


@dataclass(frozen=True, slots=True)
class _Installation:
    """The packages of a suite that serve a request, and how to install them."""

    request: ToolkitRequest
    suite: DebianSuite
    full: str  # the version of the toolkit, library or compiler
    apt: Apt
    packages: Sequence[BinaryPackage]
    store: Path  # the folder of downloads
    progress: ProgressDisplay

    def offer(self) -> ProviderOffer:
        """Return the offer of these packages. They have no URLs, which only apt knows."""
        pieces = []
        for package in self.packages:
            piece = ProviderPackage(
                provider=DEBIAN,
                name=package.name,
                version=package.version,
                file=package.file,
                url="",
                sha256=package.sha256,
                size=package.size,
            )
            pieces.append(piece)
        return ProviderOffer(self.request, DEBIAN, self.full, tuple(pieces), self.fill)

    def fill(self, folder: Path) -> None:
        """Download, check and unpack the packages, and add what they leave out."""
        request = self.request
        title = f"{request}, {len(self.packages)} packages of {self.suite}"
        with contextlib.closing(self.progress.start_bar(title)) as bar:
            with report_unwritable(self.store):
                self._download(bar)
            with report_unwritable(folder):
                self._unpack(folder, bar)
                if request.kind == COMPILER:
                    program = folder / "bin" / request.version.replace("gcc", "g++")
                    try_compiler(program, request.arch, f"{request} of {self.suite}")
                elif request.kind == TOOLKIT:
                    finish_debian_toolkit(folder, self.full, request.arch)

    def _download(self, bar: ProgressBar) -> None:
        """Download the packages that are missing, and compare each with its listed sha256."""
        self.store.mkdir(parents=True, exist_ok=True)
        missing = [package for package in self.packages if not self._has_arrived(package)]
        if not missing:
            return
        for package in missing:
            # apt resumes a file that is too short, but takes a file of the right length for
            # complete.
            file = self.store / package.file
            if file.is_file() and file.stat().st_size >= package.size:
                file.unlink()
        total = sum(package.size for package in missing)

        def show_share(share: float) -> None:
            bar.update(int(share * total), total, "downloading")

        try:
            apt.download_binaries(self.apt, missing, self.store, show_share)
        except CommandError as error:
            raise apt.explain_apt_error(
                error.output, self.apt.folder, title=str(self.request), alternatives=_ALTERNATIVES
            ) from None
        for package in missing:
            if not self._has_arrived(package):
                file = self.store / package.file
                file.unlink(missing_ok=True)
                raise SourceError(
                    f"{file} is not the package that {self.suite} lists and was deleted: "
                    f"{_ALTERNATIVES}",
                    code="wrong-digest",
                )

    def _has_arrived(self, package: BinaryPackage) -> bool:
        """Tell whether the file of a package is there, complete and intact."""
        file = self.store / package.file
        if not file.is_file() or file.stat().st_size != package.size:
            return False
        return hash_file(file) == package.sha256

    def _unpack(self, folder: Path, bar: ProgressBar) -> None:
        """Unpack the downloaded packages to their places in a folder."""
        request = self.request
        place = placer(_PLACE_TABLES.get(request.kind, DEBIAN), request.arch)
        sizes = {self.store / package.file: package.size for package in self.packages}
        # The largest come first, so that at the end no thread is busy for long while others wait.
        by_size = sorted(sizes, key=lambda file: -sizes[file])
        done = 0
        total = sum(sizes.values())
        bar.update(done, total, "unpacking")
        for file in unpack_packages(by_size, folder, place):
            done += sizes[file]
            bar.update(done, total, "unpacking")
        library_folders = []
        if request.kind == COMPILER:
            # The packages of a compiler have links to libraries that this machine has itself.
            triplet = f"{request.arch}-linux-gnu"
            library_folders = [Path("/usr/lib", triplet), Path("/lib", triplet)]
        mend_links(folder, library_folders)


def _mismatch(
    suite: DebianSuite,
    packages: Sequence[BinaryPackage],
    pinned: Mapping[str, str],
    failure: CommandError | None,
) -> str:
    """Return why the packages are not those that the facts pin, as a clause; "" if they are.

    `failure` is the error of renewing the lists, None if they are up to date.
    """
    listed = {package.name: package for package in packages}
    for name, version in pinned.items():
        if name not in listed:
            if failure is None:
                return f"{suite} lists no {name}"
            return f"{suite} cannot be asked ({apt.apt_complaint(failure.output)})"
        actual = listed[name].upstream
        if version and actual != version:
            return f"{suite} now has {name} {actual}, but {version} is expected"
    return ""


def _glibc_complaint(
    request: ToolkitRequest, suite: DebianSuite, packages: Sequence[BinaryPackage]
) -> str:
    """Return why this machine is too old for a compiler, as a clause; "" if it is not.

    Only compilers are judged: NVIDIA's programs run with an older glibc than their packages demand.
    """
    library, glibc = platform.libc_ver()
    if request.kind != COMPILER or request.arch != platform.machine() or library != "glibc":
        return ""
    demanded = [Version(package.glibc) for package in packages if package.glibc]
    needed = max(demanded, default=Version("0"))
    if needed <= Version(glibc):
        return ""
    return f"the one of {suite} needs glibc {needed}, but this machine has {glibc}"


def pinned_versions(package_lines: Iterable[str], version: str) -> Mapping[str, str]:
    """Return the names of packages that facts write, with their versions; "" if any will do.

    Facts write "libcub-dev", "nvidia-cuda-toolkit=11.2.2", or "g++-{major}": the major version is
    that of the requested `version`, 11 for "gcc-11".
    """
    major = version.rpartition("-")[2]
    versions = {}
    for line in package_lines:
        name, _, pinned = line.replace("{major}", major).partition("=")
        versions[name] = pinned
    return versions


def unpack_packages(packages: Sequence[Path], folder: Path, place: Place) -> Iterator[Path]:
    """Put the files of packages at their places in `folder`; yield each package when it is done.

    The digests of the packages are those that the suite lists. Several packages are unpacked at a
    time. After an error, no further one is begun. Raises SourceError for a package that dpkg-deb
    cannot unpack, HostError for a full disk.
    """

    def unpack(package: Path) -> None:
        # On the disk of `folder`, so that place_files moves files by renames.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            try:
                argv = [_DPKG_DEB, "--extract", str(package), scratch]
                capture(argv, env=Apt.environment())
            except CommandError as error:
                disk_error = read_refusal(error.output, folder)
                if disk_error is not None:
                    raise disk_error from None
                # The package stays: its digest is right, and to download it again would not help.
                # An old dpkg-deb fails for the zstd of Ubuntu's packages, for example.
                raise SourceError(
                    f"{package} is the package that its suite lists, but could not be unpacked "
                    f"({error}): {_ALTERNATIVES}",
                    code="damaged-archive",
                ) from None
            place_files(Path(scratch), folder, place)

    with ThreadPoolExecutor(min(_MOST_UNPACKERS, os.cpu_count() or 1)) as pool:
        futures = {pool.submit(unpack, package): package for package in packages}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def mend_links(folder: Path, library_folders: Sequence[Path]) -> None:
    """Replace dangling links in a folder by links to files of `library_folders`, or remove them.

    A link gets the file that has the name of its missing target.
    """
    paths = []
    for inner, _, names in os.walk(folder):
        paths += [Path(inner, name) for name in names]
    dangling = [path for path in paths if path.is_symlink() and not path.exists()]
    for link in dangling:
        name = link.readlink().name
        link.unlink()
        for library_folder in library_folders:
            if (library_folder / name).exists():
                link.symlink_to(library_folder / name)
                break
