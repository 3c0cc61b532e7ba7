"""Which wheels of a package index a machine can use, and what they require."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser

import requests
from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchmill.errors import NetworkError
from torchmill.toolkit.pieces import Piece
from torchmill.upstream.index import PATIENCE, File

PROVIDER = "pypi"

Glibc = tuple[int, int]  # (2, 17)

_NAMED = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17), "linux": (0, 0)}
_NUMBERED = re.compile(r"manylinux_(\d+)_(\d+)")


class AbsentError(Exception):
    """The index lacks what is wanted: the message is a clause, `has` the versions that it does have."""

    def __init__(self, message: str, has: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.has = has


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel that a machine can use."""

    project: str
    version: Version
    build: int  # 0, or the number of a rebuild
    file: File

    @property
    def sha256(self) -> str:
        """Return the digest that the index says. Raises AbsentError where it says none."""
        if self.file.sha256 is None:
            raise AbsentError(f"its index tells no sha256 of {self.file.name}, which could not be checked")
        return self.file.sha256

    def piece(self) -> Piece:
        """Return what is to be downloaded. Raises AbsentError where it could not be checked."""
        file = self.file
        return Piece(
            PROVIDER, self.project, str(self.version), file.name, file.url, self.sha256, file.size or 0
        )


def usable(project: str, files: Iterable[File], arch: str, glibc: Glibc) -> tuple[Wheel, ...]:
    """Return the wheels of a project that a machine of this kind and C library can use, the best one last."""
    found = []
    for file in files:
        try:
            _, version, build, tags = parse_wheel_filename(file.name)
        except InvalidWheelFilename:
            continue
        if file.yanked or version.is_prerelease:
            continue
        if any(runs(tag.platform, arch, glibc) for tag in tags):
            found.append(Wheel(project, version, build[0] if build else 0, file))
    return tuple(sorted(found, key=lambda wheel: (wheel.version, wheel.build, wheel.file.name)))


def runs(platform: str, arch: str, glibc: Glibc) -> bool:
    """Tell whether a platform tag is one of a machine: "manylinux_2_17_x86_64"."""
    if platform == "any":
        return True
    system = platform.removesuffix(f"_{arch}")
    numbered = _NUMBERED.fullmatch(system)
    needed = (int(numbered[1]), int(numbered[2])) if numbered else _NAMED.get(system)
    return needed is not None and needed <= glibc


def requirements(wheel: Wheel, session: requests.Session) -> tuple[Requirement, ...]:
    """Return what a wheel that only requires others asks for.

    Raises NetworkError; AbsentError for a file that is not the listed one.
    """
    try:
        response = session.get(wheel.file.url, timeout=PATIENCE)
        response.raise_for_status()
    except requests.RequestException as error:
        raise NetworkError(f"{wheel.file.url} cannot be read ({error})") from None
    if hashlib.sha256(response.content).hexdigest() != wheel.sha256:
        raise AbsentError(f"its {wheel.file.name} is not the file that the index lists")
    name = "-".join(wheel.file.name.split("-")[:2])
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        said = HeaderParser().parsestr(archive.read(f"{name}.dist-info/METADATA").decode())
    return tuple(Requirement(line) for line in said.get_all("Requires-Dist", ()))
