"""A compiler cache in front of the compilers: the second build of a file takes what the first one made."""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from packaging.version import Version

from torchwright.errors import HostError
from torchwright.model import Host
from torchwright.process import CommandError, capture

SIZE = "30G"  # a PyTorch with CUDA takes about a third
CUDA_SINCE = Version("4.12.3")  # older ones take nvcc's dependency flags for preprocessing and cache nothing
FOLDERS = {"CCACHE_DIR", "SCCACHE_DIR"}  # variables that say where a cache lies
_VERSION = re.compile(r"(?:ccache|sccache)(?: version)? (\d+(?:\.\d+)+)")


def environment(host: Host, root: Path, cache: Path, ccache: str | None = None) -> Mapping[str, str]:
    """Return the variables that put the host's compiler cache to use; none where it has no cache.

    `root` holds every tree that is built, `cache` is kept between builds. `ccache` is the version, where
    it is known: nvcc goes through a new one only.
    """
    if "ccache" in host.tools:
        return _ccache(host.tools["ccache"], root, cache, ccache)
    if "sccache" in host.tools:
        return _sccache(host.tools["sccache"], root, cache)
    return {}


def _ccache(program: str, root: Path, cache: Path, version: str | None) -> dict[str, str]:
    variables = {
        "CCACHE_DIR": str(cache / "ccache"),
        # paths below it become relative, so that the same file hits in another cell's tree
        "CCACHE_BASEDIR": str(root),
        # nor does the working directory, which -g writes into objects, count
        "CCACHE_NOHASHDIR": "1",
        # a container's compiler has a new modification time in each image, and the same content
        "CCACHE_COMPILERCHECK": "content",
        # __DATE__ and __TIME__ are for people; nothing that is computed depends on them
        "CCACHE_SLOPPINESS": "time_macros",
        # the default of 5 GB forgets the first files of a build before its last are made
        "CCACHE_MAXSIZE": SIZE,
        "CMAKE_C_COMPILER_LAUNCHER": program,
        "CMAKE_CXX_COMPILER_LAUNCHER": program,
    }
    if version is not None and Version(version) >= CUDA_SINCE:
        variables["CMAKE_CUDA_COMPILER_LAUNCHER"] = program
    return variables


def _sccache(program: str, root: Path, cache: Path) -> dict[str, str]:
    return {
        "SCCACHE_DIR": str(cache / "sccache"),
        "SCCACHE_BASEDIRS": str(root),  # as CCACHE_BASEDIR; releases that do not know it ignore it
        "SCCACHE_CACHE_SIZE": SIZE,
        # its server ends after ten idle minutes, and one large file may compile for longer (seconds)
        "SCCACHE_IDLE_TIMEOUT": "7200",
        # a server that was lost costs hits, not the build
        "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
        "CMAKE_C_COMPILER_LAUNCHER": program,
        "CMAKE_CXX_COMPILER_LAUNCHER": program,
        "CMAKE_CUDA_COMPILER_LAUNCHER": program,
    }


def unwritable(folder: Path) -> str | None:
    """Return why nothing can be written to a folder, which is made; None where it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def ccache_version(host: Host) -> str | None:
    """Ask the host's ccache for its version; None where there is none, or it does not run."""
    return parse_version(_ask(host, "--version", Path()) or "")


def statistics(host: Host, cache: Path) -> dict[str, int] | None:
    """Return the hits and misses that ccache counted in `cache`; None where it is not in use."""
    said = _ask(host, "--print-stats", cache)
    return None if said is None else parse_statistics(said)


def parse_version(said: str) -> str | None:
    """Return the version in what `ccache --version` says."""
    match = _VERSION.match(said)
    return match[1] if match else None


def parse_statistics(said: str) -> dict[str, int]:
    """Return hits and misses from `ccache --print-stats`, one counter a line."""
    rows = (line.split("\t") for line in said.splitlines())
    counts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}  # noqa: PLR2004
    hits = counts.get("direct_cache_hit", 0) + counts.get("preprocessed_cache_hit", 0)
    return {"hits": hits, "misses": counts.get("cache_miss", 0)}


def _ask(host: Host, flag: str, cache: Path) -> str | None:
    if "ccache" not in host.tools:
        return None
    try:
        return capture([host.tools["ccache"], flag], env={**os.environ, "CCACHE_DIR": str(cache / "ccache")})
    except (CommandError, HostError):
        return None
