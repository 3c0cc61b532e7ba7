"""NVIDIA's packages on the package index: whole toolkits from CUDA 13.0 on, libraries for all."""

from __future__ import annotations

import platform
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import requests
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from torchmill.errors import NetworkError
from torchmill.model import ToolkitSource
from torchmill.source.request import Bar, Progress
from torchmill.toolkit import driver_stub, inherited, shape
from torchmill.toolkit.choosing import begins
from torchmill.toolkit.pieces import Piece, fetched
from torchmill.toolkit.pypi_index import PROVIDER, AbsentError, Glibc, Wheel, requirements, usable
from torchmill.toolkit.pypi_layout import place
from torchmill.toolkit.wanted import TOOLKIT, Lacking, Offer, Wanted
from torchmill.upstream.index import configured, files

_EXECUTABLE = 0o111


@dataclass(frozen=True, slots=True)
class PypiOffer:
    """Wheels that make up what is wanted."""

    wanted: Wanted
    full: str
    pieces: tuple[Piece, ...]
    cache: Path
    progress: Progress
    provider: str = PROVIDER

    def fill(self, folder: Path) -> None:
        """Download, check and unpack the wheels, and add the links and stubs that wheels leave out.

        Raises NetworkError, SourceError, HostError.
        """
        if self.wanted.completes:
            inherited.place(Path(self.wanted.completes), folder, self.wanted.arch)
        libraries = "lib64" if self.wanted.kind == TOOLKIT else "lib"
        for piece in self.pieces:
            bar = self.progress.task(f"{piece.name} {piece.version}")
            try:
                unpack(fetched(piece, self.cache, bar), folder, libraries)
            finally:
                bar.close()
        if self.wanted.kind == TOOLKIT:
            shape.complete(folder, self.wanted.arch)
            driver_stub.add(folder)
        else:
            shape.unversioned(folder / libraries)


def offer(
    wanted: Wanted, sources: Sequence[ToolkitSource], cache: Path, progress: Progress
) -> Offer | Lacking:
    """Return the wheels that make up what is wanted, of the index that pip uses."""
    bar = progress.task(f"{wanted} on the package index")
    try:
        with requests.Session() as session:
            index = _Index(session, configured(), wanted.arch, _glibc(), bar)
            found = _toolkit if wanted.kind == TOOLKIT else _library
            exact, wheels = found(wanted, sources[0].packages, index)
        pieces = tuple(wheel.piece() for wheel in wheels)
        full = wanted.version if wanted.completes else str(wheels[0].version)
        return PypiOffer(exact, full, pieces, cache, progress)
    except NetworkError as error:
        return Lacking(PROVIDER, str(error))
    except AbsentError as error:
        return Lacking(PROVIDER, str(error), error.has)
    finally:
        bar.close()


def _glibc() -> Glibc:
    """Return the version of this machine's C library; (0, 0) where it is another one."""
    name, version = platform.libc_ver()
    numbers = version.split(".")
    return (int(numbers[0]), int(numbers[1])) if name == "glibc" and len(numbers) > 1 else (0, 0)


@dataclass(frozen=True, slots=True)
class _Index:
    """The index as one machine sees it; each page is read once."""

    session: requests.Session
    url: str
    arch: str
    glibc: Glibc
    bar: Bar
    pages: dict[str, tuple[Wheel, ...]] = field(default_factory=dict)

    def wheels(self, project: str) -> tuple[Wheel, ...]:
        """Return the wheels of a project that the machine can use, the best one last. Raises NetworkError."""
        if project not in self.pages:
            self.bar.update(len(self.pages), None, project)
            found = files(self.session, self.url, project)
            self.pages[project] = usable(project, found, self.arch, self.glibc)
        return self.pages[project]

    def best(self, project: str, versions: SpecifierSet) -> Wheel:
        """Return the best wheel among some versions. Raises AbsentError, NetworkError."""
        fitting = [wheel for wheel in self.wheels(project) if wheel.version in versions]
        if not fitting:
            raise AbsentError(
                f"it has no {project}{versions} for {self.arch} and glibc {'.'.join(map(str, self.glibc))}"
            )
        return fitting[-1]


def _toolkit(wanted: Wanted, packages: Sequence[str], index: _Index) -> tuple[Wanted, list[Wheel]]:
    """Return the wheels of a toolkit, the one that names the others first."""
    asked = [Requirement(line) for line in packages]
    bounds = dict.fromkeys([canonicalize_name(one.name) for one in asked], SpecifierSet())
    for one in asked:
        bounds[canonicalize_name(one.name)] &= one.specifier
    for one in asked:
        if one.extras:
            first = index.best(canonicalize_name(one.name), one.specifier)
            for further in requirements(first, index.session):
                if any(_holds(further, extra, wanted.arch) for extra in one.extras):
                    name = canonicalize_name(further.name)
                    bounds[name] = bounds.get(name, SpecifierSet()) & further.specifier
    return wanted, [index.best(name, versions) for name, versions in bounds.items()]


def _holds(requirement: Requirement, extra: str, arch: str) -> bool:
    """Tell whether an extra brings a requirement on Linux."""
    machine: Mapping[str, str] = {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": arch,
    }
    marker = requirement.marker
    return marker is None or marker.evaluate({**machine, "extra": extra})


def _library(wanted: Wanted, packages: Sequence[str], index: _Index) -> tuple[Wanted, list[Wheel]]:
    """Return the wheel of a library, and its exact version: the newest that begins as asked."""
    (project,) = packages
    wheels = index.wheels(project)
    fitting = [wheel for wheel in wheels if str(wheel.version) == wanted.version]
    fitting = fitting or [wheel for wheel in wheels if begins(str(wheel.version), wanted.version)]
    if not fitting:
        has = tuple(dict.fromkeys(wheel.version.base_version for wheel in wheels))
        raise AbsentError(f"it has {_near(wanted.version, has) or f'none for {wanted.arch}'}", has)
    found = fitting[-1]
    exact = Wanted(wanted.kind, found.version.base_version, wanted.cuda, wanted.arch)
    return exact, [found]


def _near(version: str, has: Sequence[str]) -> str:
    """Return versions in words: those of the same major version, or the oldest and the newest."""
    same = [one for one in has if begins(one, version.partition(".")[0])]
    return ", ".join(same) if same else " to ".join(dict.fromkeys((*has[:1], *has[-1:])))


def unpack(wheel: Path, folder: Path, libraries: str) -> None:
    """Unpack what of a wheel belongs into a CUDA_HOME, libraries into the folder of that name."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            where = place(member.filename, libraries)
            if where is None:
                continue
            target = folder / where
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # it may be a link to the file of a toolkit that is completed
            with archive.open(member) as content, target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            target.chmod(0o755 if member.external_attr >> 16 & _EXECUTABLE else 0o644)
