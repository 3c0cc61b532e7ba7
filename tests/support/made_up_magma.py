"""MAGMA in miniature: headers that tell a version, and a static library with made-up code for GPUs."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.fatbins import PTX, fatbin, library, piece

HEADER = """/* made up */
#define MAGMA_VERSION_MAJOR {}
#define MAGMA_VERSION_MINOR {}
#define MAGMA_VERSION_MICRO {}
"""


def header(version: str = "2.6.1") -> str:
    """Return the text of the header that tells a version."""
    return HEADER.format(*version.split("."))


def static(path: Path, *objects: Sequence[bytes]) -> Path:
    """Write a static library; each object holds a fatbin of some pieces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [
        library(
            path.parent / f"an_object_with_a_long_name_{number}.o", {".nv_fatbin": fatbin(*pieces)}
        )
        for number, pieces in enumerate(objects)
    ]
    subprocess.run(["ar", "rcS", path, *made], check=True)
    for one in made:
        one.unlink()
    return path


def install(folder: Path, version: str = "2.6.1") -> None:
    """Put one into a folder, with code for 7.0 and 8.6, and PTX of the latter."""
    (folder / "include").mkdir(parents=True)
    (folder / "include/magma_types.h").write_text(header(version))
    (folder / "include/magma_v2.h").write_text("")
    whole = (piece(70), piece(86), piece(86, PTX))
    static(folder / "lib/libmagma.a", whole, whole)
