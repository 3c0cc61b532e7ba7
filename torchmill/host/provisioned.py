"""The toolkits, libraries and compilers in the user's cache, by their records.

`invoke toolkit` installs (*provisions*) them there, each in a folder with a record of its contents.
A toolkit of the system that lacks parts is *completed*: a copy in the cache has all of its files,
and the parts.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from torchmill.config.toolkit import ProviderPackage
from torchmill.core.lenient_paths import find_paths
from torchmill.core.strict_json import parse_json
from torchmill.core.urls import hide_password

FOLDER = "toolkits"  # in the user's cache
RECORD = "torchmill-toolkit.json"
MAKING = ".making-"  # the beginning of the name of a folder in which an installation is made
WHOLE = "whole"  # the folder in it that gets its final name once it is complete
MAGMA: Final = "magma"
TOOLKIT: Final = "toolkit"
COMPILER: Final = "compiler"
COMPLETED = ", completed with "  # between a toolkit that lacked parts and the packages of these
# "magma-2.6.1-cu118-7.0_8.6+PTX"
_MAGMA_NAME = re.compile(
    r"magma-(?P<version>\d+(?:\.\d+)*)-cu(?P<cuda>\d+)-(?P<code>[\d._+PTXaf]+)"
)


@dataclass(frozen=True, slots=True)
class ProvisionRecord:
    """The contents of one folder, and their origin."""

    kind: str  # TOOLKIT, COMPILER, or a library: "cudnn"
    version: str  # "11.8", "gcc-11", "8.5.0.96"
    full: str  # the provider's own version of the whole: "11.8.89"
    provider: str
    pieces: tuple[ProviderPackage, ...]  # the packages that were unpacked into the folder
    completes: str = ""  # the folder of the toolkit that this one completes; "": none
    # The arch of the machine that runs its programs if that is not the one that it compiles for.
    programs_of: str = ""

    @property
    def origin(self) -> str:
        """Return the origin for a person: "brought from debian"."""
        if self.programs_of:
            return f"brought from {self.provider} beside {self.completes}"
        if self.completes:
            return f"completed from {self.completes}"
        return f"brought from {self.provider}"


@dataclass(frozen=True, slots=True)
class ProvisionedFolder:
    """A folder with a complete installation."""

    name: str  # "11.8", "gcc-11", "cudnn-8.5.0.96-cu11"
    arch: str
    home: Path
    record: ProvisionRecord


def list_provisioned(cache: Path, arch: str, programs_of: str = "") -> dict[str, ProvisionedFolder]:
    """Return the installed folders of an architecture that have a readable record, by name.

    `programs_of` is the architecture whose programs compile for the other one; "" if they are of
    the same, as they usually are.
    """
    folders: dict[str, ProvisionedFolder] = {}
    for file in find_paths(cache / FOLDER, f"*-{arch}/{RECORD}"):
        home = file.parent
        if home.name.startswith("."):
            continue  # it is still being made
        record = read_provision_record(file)
        if record is not None and record.programs_of == programs_of:
            name = home.name.removesuffix(f"-{arch}")
            folders[name] = ProvisionedFolder(name, arch, home, record)
    return folders


def completed_toolkits(folders: Iterable[ProvisionedFolder]) -> dict[str, str]:
    """Return the origin of each completed toolkit, by the path of its folder.

    An origin is "/opt/cuda, completed with PACKAGE 1.0": the toolkit of the system, and packages.
    """
    origins: dict[str, str] = {}
    for folder in folders:
        record = folder.record
        if record.completes:
            pieces = ", ".join(f"{piece.name} {piece.version}" for piece in record.pieces)
            origins[str(folder.home)] = f"{record.completes}{COMPLETED}{pieces}"
    return origins


def provisioned_compilers(cache: Path, arch: str) -> list[Path]:
    """Return the paths of the C++ compilers in the cache, by its records; a path may be missing."""
    paths = []
    for folder in list_provisioned(cache, arch).values():
        if folder.record.kind == COMPILER:
            paths.append(provisioned_cxx(folder.home, folder.record.version))
    return paths


def provisioned_cxx(home: Path, version: str) -> Path:
    """Return the C++ compiler in the folder of "gcc-11" or "clang-14"."""
    return home / "bin" / version.replace("gcc", "g++").replace("clang", "clang++")


def read_provision_record(file: Path) -> ProvisionRecord | None:
    """Return a record; None if it is missing or broken."""
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
        return ProvisionRecord(
            kind=data["kind"],
            version=data["version"],
            full=data["full"],
            provider=data["provider"],
            pieces=tuple(ProviderPackage(**piece) for piece in data["pieces"]),
            completes=data.get("completes", ""),
            programs_of=data.get("programs_of", ""),
        )
    except (OSError, ValueError, LookupError, TypeError):
        # TypeError: a piece has other fields, as another release of torchmill wrote it.
        return None


def format_provision_record(record: ProvisionRecord, arch: str, time: str) -> str:
    """Return the text of a record; `time` is when the folder was made, in ISO 8601."""
    data = asdict(record) | {"arch": arch, "made": time}
    # A URL of a piece may have the password of an index.
    return hide_password(json.dumps(data, indent=1)) + "\n"


@dataclass(frozen=True, slots=True)
class ProvisionedMagma:
    """A MAGMA in the cache. Its code for GPUs is fixed: a build cannot add to it."""

    name: str  # of its folder: "magma-2.6.1-cu118-7.0_8.6+PTX"
    version: str
    code: str  # "7.0;8.6+PTX"


def provisioned_magma(names: Iterable[str], cuda: str) -> Iterator[ProvisionedMagma]:
    """Yield the MAGMAs for a toolkit, "11.8", among the names of provisioned folders."""
    # Names of folders have "cu118" for "11.8".
    digits = cuda.replace(".", "")
    for name in names:
        match = _MAGMA_NAME.fullmatch(name)
        if match and match["cuda"] == digits:
            yield ProvisionedMagma(name, match["version"], match["code"].replace("_", ";"))
