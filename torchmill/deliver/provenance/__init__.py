"""What stands beside a wheel for others: a statement of who built it from what, and a bill of materials."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from torchmill import artifact

# CycloneDX's library tells it of every class, and nox shows people what any library says.
logging.getLogger("py_serializable").setLevel(logging.WARNING)


def documents(told: Mapping[str, Any], wheel: Path) -> dict[str, bytes]:
    """Return the statement and the SBOM of a wheel, by what their names add to the wheel's.

    `told` is its manifest. The same manifest and wheel give the same bytes, wherever and whenever.
    """
    from torchmill.deliver.provenance import sbom, statement  # noqa: PLC0415 - slow to load

    metadata, record = inside(wheel)
    plain = artifact.plain(told)
    return {
        artifact.STATEMENT: statement.canonical(statement.compose(plain)),
        artifact.SBOM: sbom.compose(plain, metadata, record),
    }


def inside(wheel: Path) -> tuple[bytes, bytes]:
    """Return METADATA and RECORD of a wheel; nothing for a RECORD that is missing."""
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        info = next(name for name in names if name.count("/") == 1).removesuffix("METADATA")
        recorded = f"{info}RECORD" in archive.namelist()
        return archive.read(f"{info}METADATA"), archive.read(f"{info}RECORD") if recorded else b""
