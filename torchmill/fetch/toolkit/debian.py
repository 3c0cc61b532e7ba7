"""CUDA toolkits and compilers from Debian's and Ubuntu's packages, unpacked without installing."""

import contextlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from torchmill.config.toolkit import ProviderPackage, ToolkitSource
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import SourceError
from torchmill.core.files import hash_file, read_refusal, report_unwritable
from torchmill.core.process import CommandError, capture
from torchmill.fetch.source import apt, apt_archives
from torchmill.fetch.source.apt import Apt, BinaryPackage
from torchmill.fetch.source.apt_archives import KEYRINGS, AptArchive, DebianSuite
from torchmill.fetch.toolkit.request import (
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
    version_begins,
)
from torchmill.fetch.toolkit.store import (
    Place,
    complete_toolkit,
    downloads_folder,
    place_files,
    placer,
    try_compiler,
)
from torchmill.host.provisioned import COMPILER, MAGMA, TOOLKIT

DEBIAN = "debian"
_ETC = Path("/etc/apt")
_WAYS = "run the command again to resume, or use another provider (`--from`)"
_DPKG_DEB = "dpkg-deb"
_UNPACKERS = 4  # at most: more than that wait for the disk


def offer(
    request: ToolkitRequest,
    sources: Sequence[ToolkitSource],
    cache: Path,
    progress: ProgressDisplay,
    etc: Path = _ETC,
) -> ProviderOffer | ProviderRefusal:
    """Look for something in the suites that are known to have it, the machine's own first.

    `etc` holds the machine's settings of apt. Raises BusyError where another run keeps the lists too long.
    """
    for program in ("apt-get", "apt-cache", _DPKG_DEB):
        if shutil.which(program) is None:
            return ProviderRefusal(DEBIAN, f"it needs {program}, which this machine does not have")
    machine = apt_archives.machine_archives(etc)
    places = [(source, apt_archives.parse_suite(source.where)) for source in sources]
    answers = []
    for source, where in sorted(
        places, key=lambda one: one[1].name not in {each.suite for each in machine}
    ):
        answer = _ask(
            request,
            where,
            source.packages,
            apt_archives.suite_archives(where, machine, KEYRINGS),
            cache,
            progress,
        )
        if isinstance(answer, ProviderOffer):
            return answer
        answers.append(answer)
    return ProviderRefusal(DEBIAN, "; ".join(answers) or "no known suite has it")


def _ask(  # noqa: PLR0917 - a request, where to read, and how to show it
    request: ToolkitRequest,
    where: DebianSuite,
    names: Sequence[str],
    archives: Sequence[AptArchive],
    cache: Path,
    progress: ProgressDisplay,
) -> ProviderOffer | str:
    """Return what one suite has among some packages, or why it cannot serve."""
    pinned = pinned_versions(names, request.version)
    if not archives:
        return f"{where} is in no line of {_ETC}, and its keys ({KEYRINGS / where.keyring}) are missing"
    machine = apt.ARCHITECTURES[request.arch]
    own = Apt(cache / DEBIAN / "-".join([where.name, machine, *where.components]))
    with (
        contextlib.closing(progress.task(f"{request}, {where}")) as bar,
        apt.hold_apt(cache / DEBIAN),
    ):
        bar.update(0, None, "reading its lists")
        own.configure(archives, machine)
        packages, failure = own.query(
            lambda: apt.package_closure(tuple(pinned), lambda names: apt.list_binaries(own, names)),
            lambda found: pinned.keys() <= {one.name for one in found},
        )
    if why := _unfit(where, packages, pinned, failure) or _too_new(request, where, packages):
        return why
    full = re.split(r"[~+]", packages[0].upstream)[-1]  # of "11.8.89~11.8.0" the toolkit's version
    if request.kind == MAGMA:
        packages = packages[
            : len(pinned)
        ]  # what it needs at run time serves nothing where it is linked in
        full = packages[0].upstream
        if not version_begins(full, request.version):
            return f"{where} has {MAGMA} {full}"
        request = replace(request, version=full)
    pieces = tuple(  # apt knows where they are
        ProviderPackage(DEBIAN, one.name, one.version, one.file, "", one.sha256, one.size)
        for one in packages
    )
    store = downloads_folder(cache, DEBIAN)

    def fill(folder: Path) -> None:
        with contextlib.closing(
            progress.task(f"{request}, {len(packages)} packages of {where}")
        ) as bar:
            with report_unwritable(store):
                _download(request, where, own, packages, store, bar)
            with report_unwritable(folder):
                _unpack(request, {store / one.file: one.size for one in packages}, folder, bar)
                if request.kind == COMPILER:
                    program = folder / "bin" / request.version.replace("gcc", "g++")
                    try_compiler(program, request.arch, f"{request} of {where}")
                elif request.kind == TOOLKIT:
                    complete_toolkit(folder, full, request.arch)

    return ProviderOffer(request, DEBIAN, full, pieces, fill)


def _download(  # noqa: PLR0917 - what to bring, from where and to where
    request: ToolkitRequest,
    suite: DebianSuite,
    own: Apt,
    packages: Sequence[BinaryPackage],
    store: Path,
    bar: ProgressBar,
) -> None:
    store.mkdir(parents=True, exist_ok=True)
    lacking = [one for one in packages if not _is_whole(store / one.file, one)]
    if not lacking:
        return
    for one in lacking:
        if (file := store / one.file).is_file() and file.stat().st_size >= one.size:
            file.unlink()  # apt goes on with what is too short, and with nothing else
    total = sum(one.size for one in lacking)
    try:
        apt.download_binaries(
            own, lacking, store, lambda share: bar.update(int(share * total), total, "downloading")
        )
    except CommandError as error:
        raise apt.explain_apt_error(error.output, own.folder, str(request), _WAYS) from None
    for one in lacking:
        file = store / one.file
        if not _is_whole(file, one):
            file.unlink(missing_ok=True)
            raise SourceError(
                f"{file} is not the package that {suite} lists and was deleted: {_WAYS}",
                code="wrong-digest",
            )


def _unpack(
    request: ToolkitRequest, sizes: Mapping[Path, int], folder: Path, bar: ProgressBar
) -> None:
    is_compiler, tables = request.kind == COMPILER, {COMPILER: "compiler", MAGMA: "magma"}
    place = placer(tables.get(request.kind, DEBIAN), request.arch)
    done, total = 0, sum(sizes.values())
    bar.update(done, total, "unpacking")
    for package in unpack_packages(sorted(sizes, key=lambda one: -sizes[one]), folder, place):
        done += sizes[package]
        bar.update(done, total, "unpacking")
    # the packages of a compiler lead to libraries of the machine's own
    system = (
        [Path(lib, f"{request.arch}-linux-gnu") for lib in ("/usr/lib", "/lib")]
        if is_compiler
        else []
    )
    mend_links(folder, system)


def _unfit(
    where: DebianSuite,
    packages: Sequence[BinaryPackage],
    pinned: Mapping[str, str],
    failure: CommandError | None,
) -> str:
    """Return why the packages are not those that the facts name, "" where they are."""
    known = {one.name: one for one in packages}
    for name, version in pinned.items():
        if name not in known:
            if failure is None:
                return f"{where} lists no {name}"
            return f"{where} cannot be asked ({apt.apt_complaint(failure.output)})"
        if version and known[name].upstream != version:
            return f"{where} now has {name} {known[name].upstream}, but {version} is expected"
    return ""


def _too_new(request: ToolkitRequest, where: DebianSuite, packages: Sequence[BinaryPackage]) -> str:
    """Return why this machine is too old for a compiler; of NVIDIA's programs the packages ask too much."""
    library, has = platform.libc_ver()
    if request.kind != COMPILER or request.arch != platform.machine() or library != "glibc":
        return ""
    needed = max((Version(one.glibc) for one in packages if one.glibc), default=Version("0"))
    return (
        f"the one of {where} needs glibc {needed}, but this machine has {has}"
        if needed > Version(has)
        else ""
    )


def _is_whole(file: Path, package: BinaryPackage) -> bool:
    return (
        file.is_file() and file.stat().st_size == package.size and hash_file(file) == package.sha256
    )


def pinned_versions(packages: Sequence[str], version: str) -> Mapping[str, str]:
    """Return the versions that facts name, "" where any will do.

    They write "libcub-dev", "nvidia-cuda-toolkit=11.2.2", "g++-{major}" (of the `version` "gcc-11": 11).
    """
    major = version.rpartition("-")[2]
    return dict(one.replace("{major}", major).partition("=")[::2] for one in packages)


def unpack_packages(packages: Sequence[Path], folder: Path, place: Place) -> Iterator[Path]:
    """Put the files of packages where `place` wants them, and yield each package that is through.

    Raises SourceError for a package that cannot be read, HostError for a full disk. Whatever stops one stops all.
    """

    def unpack(package: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            try:
                capture([_DPKG_DEB, "--extract", str(package), scratch], env=Apt.environment())
            except CommandError as error:
                if (refusal := read_refusal(error.output, folder)) is not None:
                    raise refusal from None
                package.unlink(missing_ok=True)
                raise SourceError(
                    f"{package} could not be unpacked ({error}): run the command again, which downloads it anew",
                    code="damaged-archive",
                ) from None
            place_files(Path(scratch), folder, place)

    with ThreadPoolExecutor(min(_UNPACKERS, os.cpu_count() or 1)) as threads:
        works = {threads.submit(unpack, one): one for one in packages}
        try:
            for work in as_completed(works):
                work.result()
                yield works[work]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def mend_links(folder: Path, places: Sequence[Path]) -> None:
    """Point dangling links to the libraries of those names in some folders of the machine, or remove them."""
    paths = [Path(inner, name) for inner, _, names in os.walk(folder) for name in names]
    for link in [path for path in paths if path.is_symlink() and not path.exists()]:
        name = link.readlink().name
        link.unlink()
        there = next((place / name for place in places if (place / name).exists()), None)
        if there is not None:
            link.symlink_to(there)
