"""Set up the compiler cache of a build: ccache or sccache, local and shared."""

import contextlib
import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from millguard.timeline import TimelineEvent, format_record
from packaging.version import Version

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import read_text
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import program_output
from torchmill.host import programs
from torchmill.host.compilers import Digest, chosen_compilers, digest_compiler, find_programs
from torchmill.host.host import Host
from torchmill.toolchain import remote_cache, sccache
from torchmill.toolchain.remote_cache import RemoteCache

REMOTE_STORAGE = ("CCACHE_REMOTE_STORAGE", "CCACHE_SECONDARY_STORAGE")  # since 4.7, and before
STATS_LOG_VARIABLE = (
    "CCACHE_STATSLOG"  # takes a line for each result since ccache 4.4; older ones ignore it
)
# Compilers that a build may come to call, beside those that the user names.
COMPILER_NAMES = ("cc", "c++", "gcc", "g++", "clang", "clang++")
CUDA_SINCE = Version(
    "4.12.3"
)  # older ones take nvcc's dependency flags for preprocessing and cache nothing
_DEPENDS_SINCE = Version("10.2")  # before, CMake asks nvcc apart what it read
_RENAMED = Version("4.7")  # what was the secondary storage is the remote one
_FEATURES = re.compile(r"^Features:(.*)$", re.MULTILINE)
# One far away may take a while to answer; one that has died must not cost every compile more than this.
_TIMEOUTS = ("connect-timeout=1000", "operation-timeout=5000")  # milliseconds
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_SHARED = ("remote_storage_hit", "secondary_storage_hit")
_SILENT = tuple(
    f"{name}_storage_{what}" for name in ("remote", "secondary") for what in ("error", "timeout")
)


@dataclass(frozen=True, slots=True)
class CacheSite:
    """Where one build happens, and where to note what it has to do without."""

    host: Host
    root: Path  # holds every tree that is built
    cache_folder: Path  # the user's folder of what stays between builds
    log: Path  # of this build: takes what ccache does
    environ: Mapping[str, str]  # the user's
    note: Callable[[str], None]
    digest: Digest
    provide_sccache: Callable[
        [], str | None
    ]  # return the program, installed for the user; None after a note
    cuda: str | None = None  # the toolkit's version; None: nothing is compiled by nvcc
    parts: tuple[
        RemoteCache, ...
    ] = ()  # folders of what shares compiled; they also get what the local cache had


@dataclass(frozen=True, slots=True)
class CompilerCache:
    """The compiler cache of one build; without a tool there is none."""

    tool: str = ""  # "ccache", "sccache"
    program: str = ""
    version: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    shared: RemoteCache | None = None  # the cache behind it


@dataclass(frozen=True, slots=True)
class CacheHits:
    """What a cache did for one build."""

    tool: str  # "ccache 4.7.5"
    hits: int
    misses: int  # what was compiled
    remote: int = 0  # of the hits, those from the shared cache
    failures: int = 0  # times that the shared cache did not do what it was asked for
    shared: str = ""  # as people may see it: "redis://cache.example:6379"

    def __str__(self) -> str:
        asked = self.hits + self.misses
        share = f" ({self.hits / asked:.0%})" if asked else ""
        text = f"{self.tool}: {self.hits} of {asked} hits{share}"
        if self.remote:
            text += f", {self.remote} of them in {self.shared or 'the shared cache'}"
        if self.failures:
            times = "once" if self.failures == 1 else f"{self.failures} times"
            text += f"; {self.shared or 'the shared cache'} failed {times}"
        return text


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


def set_up_cache(site: CacheSite) -> CompilerCache:
    """Return the cache of a build; what it has to do without is noted.

    Raises ConfigError where the user names a shared cache wrongly, HostError where parts need another ccache.
    """
    setting = site.environ.get(remote_cache.VARIABLE, "")
    if site.parts:
        _require_ccache(site, setting)
    if setting == remote_cache.NONE:  # nor that of a tree which was configured with ccache
        return CompilerCache(variables={"CCACHE_DISABLE": "1"})
    shared = remote_cache.parse_remote(setting)
    if (
        shared is not None
        and (why := remote_cache.why_unreachable(shared, site.environ)) is not None
    ):
        site.note(f"{shared} cannot be reached ({why}): building without the shared cache")
        shared = None
    path = site.host.programs.paths.get("ccache")
    first = probe_ccache(path) if path else None
    if shared is not None and not (first is not None and first.supports(shared)):
        if (
            shared.scheme in sccache.KINDS and not site.parts
        ):  # which sccache neither reads nor fills
            found = _sccache(site, shared)
            if first is None:
                return found
            if found.tool:
                site.note(f"{first} does not support {shared}: using sccache instead")
                return found
        site.note(
            f"{first or 'sccache'} does not support {shared}: building without the shared cache"
        )
        shared = None
    return _sccache(site, shared) if first is None else _ccache(site, first, shared)


def _require_ccache(site: CacheSite, setting: str) -> None:
    """Raise HostError where no ccache keeps what shares compile in a folder."""
    unwanted = [*REMOTE_STORAGE, *([remote_cache.VARIABLE] if setting == remote_cache.NONE else [])]
    own, path = (
        next((name for name in unwanted if name in site.environ), ""),
        site.host.programs.paths.get("ccache"),
    )
    if own or not path or "file-storage" not in probe_ccache(path).features:
        why = f"{own} is set: unset it" if own else "install a newer one"
        raise HostError(
            f"--parts needs ccache 4.4 or newer, and its storage to itself: {why}",
            code="parts-need-ccache",
        )


def _ccache(site: CacheSite, program: CcacheProgram, shared: RemoteCache | None) -> CompilerCache:
    folder = site.cache_folder / "ccache"
    if not _writable(site, folder, "CCACHE_DIR"):
        return CompilerCache()
    variables = ccache_variables(program, site.root, folder, *filter(None, (shared, *site.parts)))
    variables |= {STATS_LOG_VARIABLE: str(site.log)} | (
        {"CCACHE_RESHARE": "1"} if site.parts else {}
    )
    if site.cuda is not None:
        variables |= nvcc_variables(program, site.cuda)
    with contextlib.suppress(OSError):  # the files that are called are compared all the same
        # a file that says which compilers these are, whatever their paths are: ccache reads all of it
        compilers = chosen_compilers(site.environ)
        text = "".join(sorted(f"{digest_compiler(one, site.digest)}\n" for one in compilers))
        file = site.cache_folder / "compilers" / hashlib.sha256(text.encode()).hexdigest()[:16]
        if not file.is_file() or read_text(file) != text:
            write_atomically(file, text)
        variables["CCACHE_EXTRAFILES"] = str(file)
    with contextlib.suppress(OSError):
        site.log.parent.mkdir(parents=True, exist_ok=True)
        site.log.unlink(missing_ok=True)
    return CompilerCache("ccache", program.path, program.version, variables, shared)


def _sccache(site: CacheSite, shared: RemoteCache | None) -> CompilerCache:
    folder = site.cache_folder / "sccache"
    if not _writable(site, folder, "SCCACHE_DIR"):
        return CompilerCache()
    program = site.host.programs.paths.get("sccache")
    if program is None and site.host.system in sccache.SYSTEMS:
        program = site.provide_sccache()
    if program is None:
        return CompilerCache()
    version = programs.parse_tool_version("sccache", program_output(program, "--version"))
    variables = sccache.sccache_variables(version, site.root, folder, shared)
    if site.host.system == "windows":  # has no gate to lead it by
        launchers = (f"CMAKE_{one}_COMPILER_LAUNCHER" for one in ("C", "CXX", "CUDA"))
        return CompilerCache(
            "sccache", program, version, variables | dict.fromkeys(launchers, program)
        )
    known, folder = (
        {*site.host.compilers.by_command, *COMPILER_NAMES},
        site.cache_folder / "stand-ins",
    )
    chosen = chosen_compilers(site.environ) | find_programs(known, site.environ.get("PATH"))
    try:
        variables |= sccache.place_sccache(program, chosen, folder, site.digest)
    except OSError as error:
        site.note(f"{folder} cannot be written ({error}): building without a compiler cache")
        return CompilerCache()
    return CompilerCache("sccache", program, version, variables, shared)


def _writable(site: CacheSite, folder: Path, variable: str) -> bool:
    """Tell whether a cache can lie here; where the user has named another place, that is the user's."""
    if variable in site.environ:
        return True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        site.note(
            f"{folder} cannot be written ({error.strerror or error}): building without a compiler cache; "
            "XDG_CACHE_HOME=DIR gives it another place"
        )
        return False


def read_cache_hits(cache: CompilerCache, environ: Mapping[str, str]) -> CacheHits | None:
    """Return what the cache did for the build that had this environment; None where nothing tells.

    sccache tells as long as its server runs.
    """
    counts = None
    if (
        cache.tool == "ccache"
        and environ.get(STATS_LOG_VARIABLE) == cache.variables[STATS_LOG_VARIABLE]
    ):
        counts = count_ccache_hits(read_text(Path(environ[STATS_LOG_VARIABLE])).splitlines())
    elif (
        cache.tool == "sccache"
        and (found := sccache.read_statistics(cache.program, environ)) is not None
    ):
        counts = sccache.count_sccache_hits(found)
    if counts is None or not any(counts):
        return None
    return CacheHits(
        " ".join(filter(None, (cache.tool, cache.version))), *counts, shared=str(cache.shared or "")
    )


def record_hits(hits: CacheHits, timeline: Path, at: float) -> None:
    """Write what a cache did into a build's timeline, where there is one; `at` seconds after its start."""
    with contextlib.suppress(OSError), timeline.open("r+", encoding="utf-8") as file:
        file.seek(0, 2)
        file.write(f"{format_record(TimelineEvent(at, 'cache', '', str(hits)))}\n")


def probe_ccache(path: str) -> CcacheProgram:
    """Return what a ccache reports of itself; nothing where it does not run."""
    output = program_output(path, "--version")
    version, features = programs.parse_tool_version("ccache", output), _FEATURES.search(output)
    return CcacheProgram(path, version, frozenset(features[1].split() if features else ()))


def ccache_variables(
    program: CcacheProgram, root: Path, folder: Path, *remote: RemoteCache
) -> dict[str, str]:
    """Return the variables that put it before the compilers of CMake, with its objects in a `folder`.

    `root` holds every tree that is built.
    """
    found = {
        **read_table_beside(__file__, "caches.toml")["ccache"],
        "CCACHE_DIR": str(folder),
        # paths below it become relative, so that the same file hits in another checkout's tree
        "CCACHE_BASEDIR": str(root),
        "CMAKE_C_COMPILER_LAUNCHER": program.path,
        "CMAKE_CXX_COMPILER_LAUNCHER": program.path,
    }
    if remote:
        new = program.version is None or Version(program.version) >= _RENAMED
        found[REMOTE_STORAGE[0 if new else 1]] = " ".join(map(_remote_storage, remote))
    return found


def nvcc_variables(program: CcacheProgram, cuda: str) -> dict[str, str]:
    """Return the variables that put it before nvcc of a toolkit; none where one of the two cannot do it.

    Asked for the preprocessed source, nvcc gives that of the first capability, so two files that differ for
    another would be one. It goes by what nvcc says that it read, which newer ones say while they compile.
    """
    if (
        program.version is None
        or Version(program.version) < CUDA_SINCE
        or Version(cuda) < _DEPENDS_SINCE
    ):
        return {}
    return {"CMAKE_CUDA_COMPILER_LAUNCHER": f"/usr/bin/env;CCACHE_DEPEND=1;{program.path}"}


def _remote_storage(remote: RemoteCache) -> str:
    """Return a shared cache as ccache takes it: a URL, then its attributes behind bars."""
    if remote.scheme == "file":
        url, attributes = f"file:{quote(remote.path)}", []
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
    hits, shared, failed = (
        sum(map(results.__getitem__, names)) for names in (_HITS, _SHARED, _SILENT)
    )
    return hits, results["cache_miss"], shared, failed
