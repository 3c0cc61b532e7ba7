"""Find libraries that a build links, by their headers."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torchmill.core.lenient_paths import find_paths, is_file, read_text
from torchmill.core.package_data import read_table_beside
from torchmill.host.disk_usage import list_names

# Folders of Debian for the libraries of one architecture, below the common folders.
_MULTIARCH = ("", "x86_64-linux-gnu", "aarch64-linux-gnu")
# library -> its headers, the macros with its version, and the variables with its folder
_HEADERS = read_table_beside(__file__, "headers.toml")
# Names by which programs load libraries that come in several releases, also as parts of torch's wheels.
_LOADED = re.compile(
    r"lib(?:cudnn|cublas|cusparse|cusolver|nvJitLink)\.so\.\d+|libnccl\.so\.2"
    r"|libmkl_(?:core|rt)\.so\.\d+|libstdc\+\+\.so\.6"
)
TOOLKIT_LIBRARIES = ("cudnn", "nccl", "magma", "cufile")  # each toolkit may have its own copy


def find_libraries(
    environ: Mapping[str, str], root: Path, toolkits: Mapping[str, str]
) -> dict[str, str]:
    """Return the libraries and their versions, "" if a header does not tell its own.

    A library inside a toolkit has the toolkit's version in its name, "cudnn@11.8"; one that only a
    variable of the user's shell leads to its folder, "cudnn@/opt/cudnn".
    """
    versions: dict[str, str | None] = {}
    usual_folders = list(_usual_folders(environ, root))
    for name in _HEADERS:
        versions[name] = header_version(name, usual_folders)
    for cuda, home in toolkits.items():
        # Toolkits of conda have their headers below targets/.
        folders = [Path(home, "include"), *find_paths(Path(home), "targets/*/include")]
        for name in TOOLKIT_LIBRARIES:
            versions[f"{name}@{cuda}"] = header_version(name, folders)
    for name, header in _HEADERS.items():
        for variable in header.get("roots", ()):
            folder = environ.get(variable)
            if folder:
                versions[f"{name}@{folder}"] = header_version(name, [Path(folder, "include")])
    return {key: version for key, version in versions.items() if version is not None}


def loader_libraries(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """Return the libraries of CUDA, MKL and C++ that LD_LIBRARY_PATH puts before all others.

    "libcudnn.so.8" -> the first folder that has it. `root` is the folder of the system's files.
    """
    found: dict[str, str] = {}
    for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if not folder.startswith("/"):
            continue
        for name in list_names(root / folder.lstrip("/")):
            if _LOADED.fullmatch(name):
                found.setdefault(name, folder)
    return found


def header_version(name: str, folders: Iterable[Path]) -> str | None:
    """Return the first version in the headers of a library in some folders.

    "" if there are headers without a version, None if there are no headers.
    """
    version = None
    for folder in folders:
        paths = [folder / file for file in _HEADERS[name]["files"]]
        texts = [read_text(path) for path in paths if is_file(path)]
        if texts:
            version = parse_header_version(name, "\n".join(texts))
        if version:
            break
    return version


def parse_header_version(name: str, text: str) -> str:
    """Return the version that the macros of a header make up, "" if one of them is missing."""
    numbers: list[str] = []
    for macro in _HEADERS[name].get("macros", ()):
        definition = rf"^\s*#\s*define\s+{macro}[ \t]+[^\d\n]*?(\d+(?:\.\d+)*)"
        match = re.search(definition, text, re.MULTILINE)
        if match is None:
            return ""
        numbers.append(match[1])
    return ".".join(numbers)


def _usual_folders(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Yield the folders that compilers and CMake search for headers."""
    if environ.get("CONDA_PREFIX"):
        yield Path(environ["CONDA_PREFIX"], "include")
    for base in ("usr/local/include", "usr/include"):
        for triple in _MULTIARCH:
            yield root / base / triple
    yield root / "opt/homebrew/include"
    # libomp is keg-only in Homebrew: it is not linked into the common folder.
    yield from find_paths(root / "opt/homebrew/opt", "*/include")
    yield root / "opt/intel/oneapi/mkl/latest/include"
    yield root / "opt/intel/mkl/include"
