"""Debian's and Ubuntu's packages of CUDA and of compilers, unpacked and not installed."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from torchmill.digests import sha256
from torchmill.errors import SourceError
from torchmill.host.kept import COMPILER
from torchmill.model import Piece, ToolkitSource
from torchmill.process import CommandError
from torchmill.source.apt import Apt, Archive, machine_archives
from torchmill.source.binaries import Binary, closure, download, listed, settings
from torchmill.source.debian import alone, complaint, explained
from torchmill.source.disk import disk_full_told
from torchmill.source.request import Bar, Progress
from torchmill.toolkit import debian_layout, magma
from torchmill.toolkit.choosing import begins
from torchmill.toolkit.finishing import complete_toolkit, try_compiler
from torchmill.toolkit.pieces import downloads
from torchmill.toolkit.suites import Suite, archives, pins, suite
from torchmill.toolkit.unpacking import PROGRAM, mend_links, unpack
from torchmill.toolkit.wanted import MAGMA, Lacking, Wanted

DEBIAN = "debian"
_ETC = Path("/etc/apt")
_KEYRINGS = Path("/usr/share/keyrings")
_WAYS = "run the command again to go on, or take it from another provider (`--from`)"


@dataclass(frozen=True, slots=True)
class DebianOffer:
    """The packages of one suite that make what is wanted."""

    wanted: Wanted
    suite: Suite
    apt: Apt
    packages: tuple[Binary, ...]
    store: Path  # where packages are downloaded to
    progress: Progress
    provider: str = DEBIAN

    @property
    def full(self) -> str:
        """Return what its authors call the version of the whole: "11.8.0"."""
        return _full(self.packages[0]) if self.wanted.kind != MAGMA else self.wanted.version

    @property
    def pieces(self) -> Sequence[Piece]:
        """Return the packages; apt knows where they are."""
        return tuple(
            Piece(DEBIAN, one.name, one.version, one.file, "", one.sha256, one.size) for one in self.packages
        )

    def fill(self, folder: Path) -> None:
        """Download, check and unpack the packages into a folder.

        Raises NetworkError, SourceError; HostError for no room, and for a compiler that does not work here.
        """
        bar = self.progress.task(f"{self.wanted}, {len(self.packages)} packages of {self.suite}")
        try:
            with disk_full_told(self.store):
                self._download(bar)
            with disk_full_told(folder):
                self._unpack(folder, bar)
        finally:
            bar.close()

    def _download(self, bar: Bar) -> None:
        self.store.mkdir(parents=True, exist_ok=True)
        lacking = [one for one in self.packages if not _is_whole(self.store / one.file, one)]
        if not lacking:
            return
        for one in lacking:
            if (file := self.store / one.file).is_file() and file.stat().st_size >= one.size:
                file.unlink()  # apt goes on with what is too short, and with nothing else
        total = sum(one.size for one in lacking)
        try:
            download(
                self.apt,
                lacking,
                self.store,
                lambda share: bar.update(int(share * total), total, "downloading"),
            )
        except CommandError as error:
            raise explained(error.output, self.store, str(self.wanted), _WAYS) from None
        for one in lacking:
            file = self.store / one.file
            if not _is_whole(file, one):
                file.unlink(missing_ok=True)
                raise SourceError(
                    f"{file} is not the package that {self.suite} lists, and is deleted: {_WAYS}"
                )

    def _unpack(self, folder: Path, bar: Bar) -> None:
        arch, is_compiler = self.wanted.arch, self.wanted.kind == COMPILER
        places = {COMPILER: debian_layout.compiler, MAGMA: magma.place}
        place = places.get(self.wanted.kind) or debian_layout.toolkit(arch)
        sizes = {self.store / one.file: one.size for one in self.packages}
        done, total = 0, sum(sizes.values())

        def count(package: Path) -> None:
            nonlocal done
            done += sizes[package]
            bar.update(done, total, "unpacking")

        bar.update(done, total, "unpacking")
        unpack(sorted(sizes, key=lambda one: -sizes[one]), folder, place, count)
        mend_links(folder, debian_layout.libraries(arch) if is_compiler else ())
        if self.wanted.kind == MAGMA:
            return
        if is_compiler:
            program = folder / "bin" / self.wanted.version.replace("gcc", "g++")
            try_compiler(program, arch, f"{self.wanted} of {self.suite}")
        else:
            complete_toolkit(folder, self.full, arch)


def offer(
    wanted: Wanted, sources: Sequence[ToolkitSource], cache: Path, progress: Progress, etc: Path = _ETC
) -> DebianOffer | Lacking:
    """Look for something in the suites that are known to have it, the machine's own first.

    `etc` holds the machine's settings of apt. Raises BusyError where another run keeps the lists too long.
    """
    for program in ("apt-get", "apt-cache", PROGRAM):
        if shutil.which(program) is None:
            return Lacking(DEBIAN, f"it needs {program}, which this machine does not have")
    machine = machine_archives(etc)
    places = [(source, suite(source.where, wanted.arch)) for source in sources]
    answers = []
    for source, where in sorted(places, key=lambda one: one[1].name not in {each.suite for each in machine}):
        found = archives(where, machine, _KEYRINGS)
        answer = _ask(wanted, Carried(where, source.packages, found), cache, progress)
        if isinstance(answer, DebianOffer):
            return answer
        answers.append(answer)
    return Lacking(DEBIAN, "; ".join(answers) or "no suite is known to have it")


@dataclass(frozen=True, slots=True)
class Carried:
    """A suite that is known to have something, the packages it has it in, and where it is read."""

    suite: Suite
    packages: tuple[str, ...]
    archives: tuple[Archive, ...]


def _ask(wanted: Wanted, place: Carried, cache: Path, progress: Progress) -> DebianOffer | str:
    """Return what one suite has, or why it does not do."""
    where, pinned = place.suite, pins(place.packages, wanted.version)
    if not place.archives:
        return f"{where} is in no line of {_ETC}, and its keys ({_KEYRINGS / where.keyring}) are missing"
    apt = Apt(cache / DEBIAN / "-".join([where.name, where.architecture, *where.components]))
    bar = progress.task(f"{wanted}, {where}")
    try:
        with alone(cache / DEBIAN):
            bar.update(0, None, "reading its lists")
            apt.configure(place.archives, settings(apt, where.architecture))
            packages, complaints = _listed(apt, tuple(pinned))
    finally:
        bar.close()
    why = _unfit(where, packages, pinned, complaints) or _too_new(wanted, where, packages)
    if wanted.kind == MAGMA and not why:
        packages = packages[: len(pinned)]  # what it needs at run time serves nothing where it is linked in
        version = packages[0].upstream
        why = "" if begins(version, wanted.version) else f"{where} has {MAGMA} {version}"
        wanted = replace(wanted, version=version)
    return why or DebianOffer(wanted, where, apt, packages, downloads(cache, DEBIAN), progress)


def _unfit(where: Suite, packages: Sequence[Binary], pinned: Mapping[str, str], complaints: str) -> str:
    """Return why the packages are not those that the facts name, "" where they are."""
    known = {one.name: one for one in packages}
    for name, version in pinned.items():
        if name not in known:
            return f"{where} cannot be asked ({complaints})" if complaints else f"{where} lists no {name}"
        if version and known[name].upstream != version:
            return f"{where} has {name} {known[name].upstream} now, and {version} is expected"
    return ""


def _too_new(wanted: Wanted, where: Suite, packages: Sequence[Binary]) -> str:
    """Return why this machine is too old for a compiler; of NVIDIA's programs the packages ask too much."""
    library, has = platform.libc_ver()
    if wanted.kind != COMPILER or wanted.arch != platform.machine() or library != "glibc":
        return ""
    needed = max((Version(one.glibc) for one in packages if one.glibc), default=Version("0"))
    return (
        f"that of {where} needs glibc {needed}, and this machine has {has}" if needed > Version(has) else ""
    )


def _listed(apt: Apt, roots: Sequence[str]) -> tuple[tuple[Binary, ...], str]:
    """Return the packages, and what apt complained of.

    New lists are fetched where those at hand are old, or lack one.
    """
    if apt.fresh:
        found = closure(roots, lambda names: listed(apt, names))
        if set(roots) <= {one.name for one in found}:
            return found, ""
    why = ""
    try:
        apt.update()
    except CommandError as error:  # one archive of several may be gone, and old lists are better than none
        why = complaint(error.output)
    return closure(roots, lambda names: listed(apt, names)), why


def _is_whole(file: Path, package: Binary) -> bool:
    return file.is_file() and file.stat().st_size == package.size and sha256(file) == package.sha256


def _full(package: Binary) -> str:
    """Return the last part of "11.8.89~11.8.0", which is the toolkit's version, where a version has parts."""
    return re.split(r"[~+]", package.upstream)[-1]
