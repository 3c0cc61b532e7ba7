"""A tiny MAGMA: headers with a version, and a static library with made-up code for GPUs."""

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
    """Return the text of the header with the version."""
    return HEADER.format(*version.split("."))


def static(path: Path, *objects: Sequence[bytes]) -> Path:
    """Write a static library; each object has a fatbin of some pieces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    object_files = []
    for number, pieces in enumerate(objects):
        # longer than the 15 characters that fit in the header of an ar archive's member
        file = path.parent / f"an_object_with_a_long_name_{number}.o"
        object_files.append(library(file, {".nv_fatbin": fatbin(*pieces)}))
    subprocess.run(["ar", "rcS", path, *object_files], check=True)
    for file in object_files:
        file.unlink()
    return path


def install(folder: Path, version: str = "2.6.1") -> None:
    """Put a MAGMA into a folder, with code for 7.0 and 8.6, and PTX of the latter."""
    (folder / "include").mkdir(parents=True)
    (folder / "include/magma_types.h").write_text(header(version))
    (folder / "include/magma_v2.h").write_text("")
    pieces = (piece(70), piece(86), piece(86, PTX))
    static(folder / "lib/libmagma.a", pieces, pieces)
