"""The wheels of one version must require the same: a resolver reads the metadata of one, for all of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from torchmill.pack import needs
from torchmill.pack.needs import Needs
from torchmill.pack.stage import BROKEN


def of(wheel: Path) -> list[Path]:
    """Return the other wheels of the same version in the folder where a wheel lies, or will lie."""
    stem = "-".join(wheel.name.split("-")[:2])
    every = wheel.parent.glob("*.whl")
    return sorted(path for path in every if path.name.startswith(f"{stem}-") and path != wheel)


def differences(wheel: Path, others: Iterable[Path]) -> list[str]:
    """Return a sentence for each other wheel that requires something else, or supports other Pythons."""
    mine = _read(wheel)
    read = ((other, _read(other)) for other in others)
    sentences = (
        needs.difference((wheel.name, mine), (other.name, theirs))
        for other, theirs in read
        if mine is not None and theirs is not None
    )
    return [sentence for sentence in sentences if sentence]


def _read(wheel: Path) -> Needs | None:
    """Return what METADATA says; None where it cannot be read."""
    try:
        with ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            said = Parser().parsestr(archive.read(name).decode("utf-8"))
    except (OSError, StopIteration, zlib.error, *BROKEN):
        return None
    return needs.of(
        said.get("Requires-Python"), said.get_all("Requires-Dist", []), said.get_all("Provides-Extra", [])
    )
