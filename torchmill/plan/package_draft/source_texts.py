"""The unpacked source of a package as values: the names and sizes of its files, and some texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from torchmill.config.field_types import no_entries

CXX_SUFFIXES = (".cpp", ".cc", ".cxx", ".c")
CUDA_SUFFIX = ".cu"
HIP_SUFFIX = ".hip"
_CMAKE_DEPTH = 3  # as the kinds' rules on the standard of C++ have it
# The names of files whose texts are read, besides all .py and .cmake files at the top.
READ_NAMES = (
    "setup.py",
    "setup.cfg",
    "pyproject.toml",
    "PKG-INFO",
    "CMakeLists.txt",
    "requirements.txt",
    ".gitmodules",
    "README.md",
    "README.rst",
)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file of the source."""

    file: str  # "setup.py"
    line: int = 0  # counted from 1; 0: the file as a whole

    def __str__(self) -> str:
        """Return "setup.py:12"."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class SourceTexts:
    """The files of a source: all of them with their sizes, and the texts of those that are read."""

    sizes: Mapping[str, int]  # path below the top folder, with "/" -> bytes
    texts: Mapping[str, str] = no_entries()

    def text(self, name: str) -> str:
        """Return the text of a file; "" if it was not read, or does not exist."""
        return self.texts.get(name, "")

    def with_suffix(self, *suffixes: str) -> dict[str, int]:
        """Return the files with one of the suffixes, with their sizes in bytes."""
        files: dict[str, int] = {}
        for path, size in self.sizes.items():
            if path.endswith(suffixes):
                files[path] = size
        return files

    def has_file(self, name: str) -> bool:
        """Tell whether there is a file of this path."""
        return name in self.sizes

    def has_entries(self, folder: str) -> bool:
        """Tell whether a file lies in a folder, or in a folder in it."""
        return any(path.startswith(f"{folder}/") for path in self.sizes)


def search(
    texts: SourceTexts, pattern: str, names: Iterable[str]
) -> Iterator[tuple[re.Match[str], Place]]:
    """Yield the matches of a pattern in the lines of the named files, with their places.

    Lines that are comments of Python or CMake are passed over, and so are files that were not read.
    """
    compiled = re.compile(pattern)
    for name in names:
        for number, line in enumerate(texts.text(name).splitlines(), start=1):
            if line.lstrip().startswith("#"):
                continue
            for match in compiled.finditer(line):
                yield match, Place(name, number)


def is_read(path: str) -> bool:
    """Tell whether the text of a file is read.

    The texts that are read are those of the files that say how a source is built, and of the
    __init__.py of each package at the top. Files of CMake may lie in a folder.
    """
    pure_path = PurePosixPath(path)
    depth = len(pure_path.parts)
    if depth == 2 and pure_path.name == "__init__.py":  # noqa: PLR2004 - of a package at the top
        return True
    if depth > 1:
        is_cmake = pure_path.name == "CMakeLists.txt" or pure_path.suffix == ".cmake"
        return depth <= _CMAKE_DEPTH and is_cmake
    return pure_path.name in READ_NAMES or pure_path.suffix in {".py", ".cmake"}
