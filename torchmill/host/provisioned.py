"""The toolkits, libraries and compilers in the user's cache, by their records."""

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

MAGMA: Final = "magma"
_KEPT = re.compile(r"magma-(?P<version>\d+(?:\.\d+)*)-cu(?P<cuda>\d+)-(?P<code>[\d._+PTXaf]+)")
FOLDER = "toolkits"  # in the user's cache
RECORD = "torchmill-toolkit.json"
MAKING, WHOLE = (
    ".making-",
    "whole",
)  # begins the name of the folder of what is being made; where it lies there
TOOLKIT: Final = "toolkit"
COMPILER: Final = "compiler"
COMPLETED = ", completed with "  # between a toolkit that lacked parts and the packages of these


@dataclass(frozen=True, slots=True)
class ProvisionRecord:
    """What lies in one folder, and where it is from."""

    kind: str  # TOOLKIT, COMPILER, or a library: "cudnn"
    version: str  # "11.8", "gcc-11", "8.5.0.96"
    full: str  # the provider's own version of the whole: "11.8.89"
    provider: str
    pieces: tuple[ProviderPackage, ...]
    completes: str = (
        ""  # the folder of the toolkit whose files are in it beside those of the pieces
    )

    @property
    def origin(self) -> str:
        """Return where it is from, for a person: "brought from debian"."""
        return (
            f"completed from {self.completes}"
            if self.completes
            else f"brought from {self.provider}"
        )


@dataclass(frozen=True, slots=True)
class ProvisionedFolder:
    """One folder that is whole."""

    name: str  # "11.8", "gcc-11", "cudnn-8.5.0.96-cu11"
    arch: str
    home: Path
    record: ProvisionRecord


def list_provisioned(cache: Path, arch: str) -> dict[str, ProvisionedFolder]:
    """Return what is kept for a machine, by name; a folder without a record that can be read is not there."""
    found = {}
    for file in find_paths(cache / FOLDER, f"*-{arch}/{RECORD}"):
        record = None if file.parent.name.startswith(".") else read_provision_record(file)
        if record is not None:
            name = file.parent.name.removesuffix(f"-{arch}")
            found[name] = ProvisionedFolder(name, arch, file.parent, record)
    return found


def completed_toolkits(there: Iterable[ProvisionedFolder]) -> dict[str, str]:
    """Return what the completed toolkits among what is kept are made of, by their folders."""
    return {
        str(one.home): f"{one.record.completes}{COMPLETED}"
        + ", ".join(f"{piece.name} {piece.version}" for piece in one.record.pieces)
        for one in there
        if one.record.completes
    }


def provisioned_compilers(cache: Path, arch: str) -> list[Path]:
    """Return the C++ compilers that are kept."""
    there = list_provisioned(cache, arch).values()
    return [
        provisioned_cxx(one.home, one.record.version)
        for one in there
        if one.record.kind == COMPILER
    ]


def provisioned_cxx(home: Path, version: str) -> Path:
    """Return the C++ compiler in the folder of "gcc-11" or "clang-14"."""
    return home / "bin" / version.replace("gcc", "g++").replace("clang", "clang++")


def read_provision_record(file: Path) -> ProvisionRecord | None:
    """Return a record; None where it is missing or broken."""
    try:
        said = parse_json(file.read_text(encoding="utf-8"))
        pieces = tuple(ProviderPackage(**piece) for piece in said["pieces"])
        base = said.get("completes", "")
        return ProvisionRecord(
            said["kind"], said["version"], said["full"], said["provider"], pieces, base
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def format_provision_record(record: ProvisionRecord, arch: str, made: str) -> str:
    """Return the text of a record; `made` says when, in ISO 8601."""
    return hide_password(json.dumps(asdict(record) | {"arch": arch, "made": made}, indent=1)) + "\n"


@dataclass(frozen=True, slots=True)
class ProvisionedMagma:
    """One that is kept. Its code for GPUs is its own: a build cannot add to it."""

    name: str  # under which it is kept: "magma-2.6.1-cu118-7.0_8.6+PTX"
    version: str
    code: str  # "7.0;8.6+PTX"


def provisioned_magma(names: Iterable[str], cuda: str) -> Iterator[ProvisionedMagma]:
    """Yield what is kept for a toolkit, "11.8", by the names of all that is kept."""
    for name in names:
        match = _KEPT.fullmatch(name)
        if match and match["cuda"] == cuda.replace(".", ""):
            yield ProvisionedMagma(name, match["version"], match["code"].replace("_", ";"))
