"""ccache: its settings, and its statistics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from packaging.version import Version

from torchmill.toolchain.compiler_identity import program_output
from torchmill.toolchain.remote_cache import RemoteCache

CUDA_SINCE = Version("4.12.3")  # older ones take nvcc's dependency flags for preprocessing and cache nothing
_DEPENDS_SINCE = Version("10.2")  # before, CMake asks nvcc apart what it read
_RENAMED = Version("4.7")  # what was the secondary storage is the remote one
_VERSION = re.compile(r"ccache(?: version)? (\d+(?:\.\d+)+)")
_FEATURES = re.compile(r"^Features:(.*)$", re.MULTILINE)
# One far away may take a while to answer; one that has died must not cost every compile more than this.
_TIMEOUTS = ("connect-timeout=1000", "operation-timeout=5000")  # milliseconds
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_SHARED = ("remote_storage_hit", "secondary_storage_hit")
_SILENT = tuple(f"{name}_storage_{what}" for name in ("remote", "secondary") for what in ("error", "timeout"))


@dataclass(frozen=True, slots=True)
class CcacheProgram:
    """A ccache of this machine."""

    path: str
    version: str | None
    features: frozenset[str]  # "http-storage"; none before 4.4

    def supports(self, remote: RemoteCache) -> bool:
        """Tell whether it can use a cache of this kind: what it does not know stops every compile."""
        return f"{remote.scheme}-storage" in self.features

    def __str__(self) -> str:
        """Return "ccache 4.7.5"."""
        return f"ccache {self.version}" if self.version else "ccache"


def probe_ccache(path: str) -> CcacheProgram:
    """Return what a ccache reports of itself; nothing where it does not run."""
    output = program_output(path, "--version")
    version, features = _VERSION.match(output), _FEATURES.search(output)
    return CcacheProgram(
        path, version[1] if version else None, frozenset(features[1].split() if features else ())
    )


def ccache_variables(
    program: CcacheProgram, root: Path, folder: Path, size: str, remote: RemoteCache | None = None
) -> dict[str, str]:
    """Return the variables that put it before the compilers of CMake, with its objects in a `folder`.

    `root` holds every tree that is built, `size` is what the folder may take ("30G").
    """
    found = {
        "CCACHE_DIR": str(folder),
        # paths below it become relative, so that the same file hits in another checkout's tree
        "CCACHE_BASEDIR": str(root),
        # nor does the working directory, which -g writes into objects, count
        "CCACHE_NOHASHDIR": "1",
        # a container's compiler has a new modification time in each image, and the same content
        "CCACHE_COMPILERCHECK": "content",
        # __DATE__ and __TIME__ are for people, and so is the language that compilers warn in
        "CCACHE_SLOPPINESS": "time_macros,locale",
        # the default of 5 GB forgets the first files of a build before its last are made
        "CCACHE_MAXSIZE": size,
        "CMAKE_C_COMPILER_LAUNCHER": program.path,
        "CMAKE_CXX_COMPILER_LAUNCHER": program.path,
    }
    if remote is not None:
        new = program.version is None or Version(program.version) >= _RENAMED
        found["CCACHE_REMOTE_STORAGE" if new else "CCACHE_SECONDARY_STORAGE"] = _remote_storage(remote)
    return found


def nvcc_variables(program: CcacheProgram, cuda: str) -> dict[str, str]:
    """Return the variables that put it before nvcc of a toolkit; none where one of the two cannot do it.

    Asked for the preprocessed source, nvcc gives that of the first capability, so two files that differ for
    another would be one. It goes by what nvcc says that it read, which newer ones say while they compile.
    """
    if program.version is None or Version(program.version) < CUDA_SINCE or Version(cuda) < _DEPENDS_SINCE:
        return {}
    return {"CMAKE_CUDA_COMPILER_LAUNCHER": f"/usr/bin/env;CCACHE_DEPEND=1;{program.path}"}


def _remote_storage(remote: RemoteCache) -> str:
    """Return a shared cache as ccache takes it: a URL, then its attributes behind bars."""
    if remote.scheme == "file":
        url, attributes = f"file:{remote.path}", []
    else:
        login = [quote(one, safe="") for one in (remote.user, remote.password) if one]
        url = f"{remote.scheme}://{':'.join(login)}{'@' if login else ''}{remote.address}{remote.path}"
        attributes = list(_TIMEOUTS)
    if remote.scheme == "http":  # most servers make no folders of themselves
        attributes.append(f"layout={remote.options.get('layout', 'flat')}")
    return "|".join([url, *attributes, *(["read-only"] if remote.read_only else [])])


def count_ccache_hits(log: Iterable[str]) -> tuple[int, int, int, int]:
    """Return hits, misses, hits in a shared cache, and how often that did not answer, from a log of results.

    A line of ccache's log names a file ("# a.cpp") or one result of it.
    """
    results = Counter(line.strip() for line in log)
    hits, shared, failed = (sum(map(results.__getitem__, names)) for names in (_HITS, _SHARED, _SILENT))
    return hits, results["cache_miss"], shared, failed
