"""Find libraries that a build links, by their headers."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.core.dataclass import dataclass

_MULTIARCH = ("", "x86_64-linux-gnu", "aarch64-linux-gnu")


@dataclass(frozen=True, slots=True)
class _Header:
    """How a library is told: files of which one is there, and the macros that make up its version."""

    files: tuple[str, ...]
    macros: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()  # variables that name where it lies


_HEADERS = {
    "cudnn": _Header(
        ("cudnn_version.h", "cudnn.h"),
        ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"),
        ("CUDNN_ROOT", "CUDNN_ROOT_DIR", "CUDNN_HOME", "CUDNN_PATH"),
    ),
    "nccl": _Header(("nccl.h",), ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"), ("NCCL_ROOT", "NCCL_HOME")),
    "magma": _Header(
        ("magma_types.h", "magma.h"),
        ("MAGMA_VERSION_MAJOR", "MAGMA_VERSION_MINOR", "MAGMA_VERSION_MICRO"),
        ("MAGMA_HOME",),
    ),
    "mkl": _Header(
        ("mkl_version.h",), ("__INTEL_MKL__", "__INTEL_MKL_MINOR__", "__INTEL_MKL_UPDATE__"), ("MKLROOT",)
    ),
    "openblas": _Header(
        ("openblas_config.h", "openblas/openblas_config.h", "openblas-pthread/openblas_config.h"),
        ("OPENBLAS_VERSION",),
        ("OpenBLAS_HOME",),
    ),
    "numa": _Header(("numa.h",)),
    "jpeg": _Header(("jconfig.h", "jpeglib.h"), ("LIBJPEG_TURBO_VERSION",)),
    "png": _Header(("png.h",), ("PNG_LIBPNG_VER_STRING",)),
    "zlib": _Header(("zlib.h",), ("ZLIB_VERSION",)),
    "libuv": _Header(("uv/version.h",), ("UV_VERSION_MAJOR", "UV_VERSION_MINOR", "UV_VERSION_PATCH")),
    "libomp": _Header(("omp.h",)),
}
_OF_TOOLKITS = ("cudnn", "nccl", "magma")  # one copy may lie in each toolkit


def find_libraries(environ: Mapping[str, str], root: Path, toolkits: Mapping[str, str]) -> dict[str, str]:
    """Return the libraries and their versions, "" where a header does not tell its own.

    What lies inside a toolkit stands under its name and the toolkit's, "cudnn@11.8"; what only a variable
    of the user's shell leads to, under its name and its folder, "cudnn@/opt/cudnn".
    """
    inside = {
        f"{name}@{cuda}": version
        for cuda, home in toolkits.items()
        for name in _OF_TOOLKITS
        if (version := _version(_HEADERS[name], [Path(home) / "include"])) is not None
    }
    named = {
        f"{name}@{folder}": version
        for name, header in _HEADERS.items()
        for folder in filter(None, map(environ.get, header.roots))
        if (version := _version(header, [Path(folder, "include")])) is not None
    }
    usual = list(_folders(environ, root))
    outside = {
        name: version for name, header in _HEADERS.items() if (version := _version(header, usual)) is not None
    }
    return outside | inside | named


def header_version(name: str, include: Path) -> str | None:
    """Return the version that headers of a library in a folder tell, "" where they do not, None without."""
    return _version(_HEADERS[name], [include])


def parse_header_version(name: str, text: str) -> str:
    """Return the version that the text of a library's header tells, "" where it tells none."""
    return _defined(_HEADERS[name].macros, text)


def _folders(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    if environ.get("CONDA_PREFIX"):
        yield Path(environ["CONDA_PREFIX"], "include")
    for base in ("usr/local/include", "usr/include"):
        yield from (root / base / triple for triple in _MULTIARCH)
    yield root / "opt/homebrew/include"
    yield from sorted((root / "opt/homebrew/opt").glob("*/include"))  # libomp is in no common folder
    yield from (root / "opt/intel/oneapi/mkl/latest/include", root / "opt/intel/mkl/include")


def _version(header: _Header, folders: list[Path]) -> str | None:
    """Return the first version found; "" where headers are there and none tells it, None without any."""
    there = None
    for folder in folders:
        texts = [text for file in header.files if (text := _text(folder / file)) is not None]
        if texts:
            there = _defined(header.macros, "\n".join(texts))
        if there:
            break
    return there


def _defined(macros: tuple[str, ...], text: str) -> str:
    """Return the version that a header's macros make up, "" where one of them is missing."""
    numbers = []
    for macro in macros:
        match = re.search(rf"^\s*#\s*define\s+{macro}[ \t]+[^\d\n]*?(\d[\d.]*)", text, re.MULTILINE)
        if match is None:
            return ""
        numbers.append(match[1])
    return ".".join(numbers)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
