"""Find libraries that a build links, by their headers."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torchmill.core.lenient_paths import find_paths, is_file, read_text
from torchmill.core.package_data import read_table_beside

_MULTIARCH = ("", "x86_64-linux-gnu", "aarch64-linux-gnu")
# of a library its headers, the macros that make up its version, and the variables that name where it lies
_HEADERS = read_table_beside(__file__, "headers.toml")
_OF_TOOLKITS = ("cudnn", "nccl", "magma", "cufile")  # one copy may lie in each toolkit


def find_libraries(
    environ: Mapping[str, str], root: Path, toolkits: Mapping[str, str]
) -> dict[str, str]:
    """Return the libraries and their versions, "" where a header does not tell its own.

    What lies inside a toolkit stands under its name and the toolkit's, "cudnn@11.8"; what only a variable
    of the user's shell leads to, under its name and its folder, "cudnn@/opt/cudnn".
    """
    usual = list(_folders(environ, root))
    places = {name: (name, usual) for name in _HEADERS}
    for cuda, home in toolkits.items():
        inner = [
            Path(home, "include"),
            *find_paths(Path(home), "targets/*/include"),
        ]  # the latter of conda's
        places |= {f"{name}@{cuda}": (name, inner) for name in _OF_TOOLKITS}
    for name, header in _HEADERS.items():
        for folder in filter(None, map(environ.get, header.get("roots", ()))):
            places[f"{name}@{folder}"] = (name, [Path(folder, "include")])
    versions = {key: header_version(name, folders) for key, (name, folders) in places.items()}
    return {key: version for key, version in versions.items() if version is not None}


def header_version(name: str, folders: Iterable[Path]) -> str | None:
    """Return the first version that the headers of a library tell; "" where none does, None without any."""
    version = None
    for folder in folders:
        headers = [folder / file for file in _HEADERS[name]["files"]]
        if found := [read_text(file) for file in headers if is_file(file)]:
            version = parse_header_version(name, "\n".join(found))
        if version:
            break
    return version


def parse_header_version(name: str, text: str) -> str:
    """Return the version that the macros of a library's header make up, "" where one of them is missing."""
    numbers = []
    for macro in _HEADERS[name].get("macros", ()):
        match = re.search(
            rf"^\s*#\s*define\s+{macro}[ \t]+[^\d\n]*?(\d+(?:\.\d+)*)", text, re.MULTILINE
        )
        if match is None:
            return ""
        numbers.append(match[1])
    return ".".join(numbers)


def _folders(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    if environ.get("CONDA_PREFIX"):
        yield Path(environ["CONDA_PREFIX"], "include")
    for base in ("usr/local/include", "usr/include"):
        yield from (root / base / triple for triple in _MULTIARCH)
    yield root / "opt/homebrew/include"
    yield from find_paths(root / "opt/homebrew/opt", "*/include")  # libomp is in no common folder
    yield from (root / "opt/intel/oneapi/mkl/latest/include", root / "opt/intel/mkl/include")
