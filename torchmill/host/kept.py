"""The toolkits, libraries and compilers in the user's cache, by the records that lie in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from torchmill.model import Piece

FOLDER = "toolkits"  # in the user's cache
RECORD = "torchmill-toolkit.json"
MAKING, WHOLE = (
    ".making-",
    "whole",
)  # begins the name of the folder of what is being made; where it lies there
TOOLKIT, COMPILER = "toolkit", "compiler"
COMPLETED = ", completed with "  # between a toolkit that lacked parts and the packages of these


@dataclass(frozen=True, slots=True)
class Record:
    """What lies in one folder, and where it is from."""

    kind: str  # TOOLKIT, COMPILER, or a library: "cudnn"
    version: str  # "11.8", "gcc-11", "8.5.0.96"
    full: str  # the provider's own version of the whole: "11.8.89"
    provider: str
    pieces: tuple[Piece, ...]
    completes: str = ""  # the folder of the toolkit whose files are in it beside those of the pieces

    @property
    def origin(self) -> str:
        """Return where it is from, for a person: "brought from debian"."""
        return f"completed from {self.completes}" if self.completes else f"brought from {self.provider}"


@dataclass(frozen=True, slots=True)
class Kept:
    """One folder that is whole."""

    name: str  # "11.8", "gcc-11", "cudnn-8.5.0.96-cu11"
    arch: str
    home: Path
    record: Record


def kept(cache: Path, arch: str) -> dict[str, Kept]:
    """Return what is kept for a machine, by name; a folder without a record that can be read is not there."""
    found = {}
    for file in sorted((cache / FOLDER).glob(f"*-{arch}/{RECORD}")):
        record = None if file.parent.name.startswith(".") else read(file)
        if record is not None:
            name = file.parent.name.removesuffix(f"-{arch}")
            found[name] = Kept(name, arch, file.parent, record)
    return found


def beside_toolkits(there: Iterable[Kept]) -> dict[str, str]:
    """Return the folders of the libraries and compilers among what is kept, by name."""
    return {one.name: str(one.home) for one in there if one.record.kind != TOOLKIT}


def completed(there: Iterable[Kept]) -> dict[str, str]:
    """Return what the completed toolkits among what is kept are made of, by their folders."""
    return {
        str(one.home): f"{one.record.completes}{COMPLETED}"
        + ", ".join(f"{piece.name} {piece.version}" for piece in one.record.pieces)
        for one in there
        if one.record.completes
    }


def compilers(cache: Path, arch: str) -> list[Path]:
    """Return the C++ compilers that are kept."""
    there = kept(cache, arch).values()
    return [cxx(one.home, one.record.version) for one in there if one.record.kind == COMPILER]


def cxx(home: Path, version: str) -> Path:
    """Return the C++ compiler in the folder of "gcc-11" or "clang-14"."""
    return home / "bin" / version.replace("gcc", "g++").replace("clang", "clang++")


def read(file: Path) -> Record | None:
    """Return a record; None where it is missing or broken."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        pieces = tuple(Piece(**piece) for piece in said["pieces"])
        base = said.get("completes", "")
        return Record(said["kind"], said["version"], said["full"], said["provider"], pieces, base)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def written(record: Record, arch: str, made: str) -> str:
    """Return the text of a record; `made` says when, in ISO 8601."""
    return json.dumps(asdict(record) | {"arch": arch, "made": made}, indent=1) + "\n"
