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
# takes a line for each result since ccache 4.4; older ones ignore it
STATS_LOG_VARIABLE = "CCACHE_STATSLOG"
# Compilers that a build may come to call, beside those that the user names.
COMPILER_NAMES = ("cc", "c++", "gcc", "g++", "clang", "clang++")
# Older ones take nvcc's flags for dependencies for preprocessing, and cache nothing.
CUDA_SINCE = Version("4.12.3")
_DEPENDENCIES_SINCE = Version("10.2")  # of CUDA; before, CMake asks nvcc apart for the files read
_RENAMED_STORAGE = Version("4.7")  # the secondary storage is the remote one since
_FEATURES = re.compile(r"^Features:(.*)$", re.MULTILINE)
# A server far away may take a while to answer; one that has died must not cost every compile more
# than this. Milliseconds.
_TIMEOUTS = ("connect-timeout=1000", "operation-timeout=5000")
# Results in ccache's log.
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_SHARED_HITS = ("remote_storage_hit", "secondary_storage_hit")
_SHARED_FAILURES = (
    "remote_storage_error",
    "remote_storage_timeout",
    "secondary_storage_error",
    "secondary_storage_timeout",
)


@dataclass(frozen=True, slots=True)
class CacheSite:
    """Where one build happens, and where to note what it has to do without."""

    host: Host
    root: Path  # holds every tree that is built
    cache_folder: Path  # the user's, kept between builds
    log: Path  # of this build: takes ccache's results
    environ: Mapping[str, str]  # the user's
    note: Callable[[str], None]
    digest: Digest
    # returns the program, installed for the user; None after a note
    provide_sccache: Callable[[], str | None]
    cuda: str | None = None  # the toolkit's version; None if nvcc compiles nothing
    # folders of what shares compiled; they also get the objects that the local cache has
    parts: tuple[RemoteCache, ...] = ()


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
        requests = self.hits + self.misses
        share = f" ({self.hits / requests:.0%})" if requests else ""
        text = f"{self.tool}: {self.hits} of {requests} hits{share}"
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
    """Return the cache of a build; features that it has to do without are noted.

    Raises ConfigError if the user names a shared cache wrongly, HostError if parts need another
    ccache.
    """
    setting = site.environ.get(remote_cache.VARIABLE, "")
    if site.parts:
        _require_ccache(site, setting)
    if setting == remote_cache.NONE:
        # Also for a tree that was configured with ccache.
        return CompilerCache(variables={"CCACHE_DISABLE": "1"})
    shared = _reachable_cache(site, setting)
    path = site.host.programs.paths.get("ccache")
    ccache = probe_ccache(path) if path else None
    if shared is not None and (ccache is None or not ccache.supports(shared)):
        # sccache neither reads nor writes parts
        if shared.scheme in sccache.KINDS and not site.parts:
            cache = _set_up_sccache(site, shared)
            if ccache is None:
                return cache
            if cache.tool:
                site.note(f"{ccache} does not support {shared}: using sccache instead")
                return cache
        site.note(
            f"{ccache or 'sccache'} does not support {shared}: building without the shared cache"
        )
        shared = None
    if ccache is None:
        return _set_up_sccache(site, shared)
    return _set_up_ccache(site, ccache, shared)


def read_cache_hits(cache: CompilerCache, environ: Mapping[str, str]) -> CacheHits | None:
    """Return what the cache did for the build that had this environment; None if nobody knows.

    sccache knows as long as its server runs.
    """
    counts = None
    if cache.tool == "ccache":
        log = environ.get(STATS_LOG_VARIABLE)
        if log is not None and log == cache.variables[STATS_LOG_VARIABLE]:
            counts = count_ccache_hits(read_text(Path(log)).splitlines())
    elif cache.tool == "sccache":
        statistics = sccache.read_statistics(cache.program, environ)
        if statistics is not None:
            counts = sccache.count_sccache_hits(statistics)
    if counts is None or not any(counts):
        return None
    tool = f"{cache.tool} {cache.version}" if cache.version else cache.tool
    return CacheHits(tool, *counts, shared=str(cache.shared or ""))


def record_hits(hits: CacheHits, timeline: Path, at: float) -> None:
    """Write a cache's hits into a build's timeline, if there is one.

    `at` is in seconds after the start of the build.
    """
    event = TimelineEvent(at, "cache", "", str(hits))
    with contextlib.suppress(OSError), timeline.open("r+", encoding="utf-8") as file:
        file.seek(0, 2)
        file.write(f"{format_record(event)}\n")


def probe_ccache(path: str) -> CcacheProgram:
    """Return a ccache with its version and features; without, if it does not run."""
    output = program_output(path, "--version")
    version = programs.parse_tool_version("ccache", output)
    features = _FEATURES.search(output)
    return CcacheProgram(path, version, frozenset(features[1].split() if features else ()))


def ccache_variables(
    program: CcacheProgram, root: Path, folder: Path, *remote: RemoteCache
) -> dict[str, str]:
    """Return the variables that put ccache before the compilers of CMake.

    Its objects are in `folder`; `root` holds every tree that is built.
    """
    variables = {
        **read_table_beside(__file__, "caches.toml")["ccache"],
        "CCACHE_DIR": str(folder),
        # paths below it become relative, so that the same file hits in another checkout's tree
        "CCACHE_BASEDIR": str(root),
        "CMAKE_C_COMPILER_LAUNCHER": program.path,
        "CMAKE_CXX_COMPILER_LAUNCHER": program.path,
    }
    if remote:
        is_renamed = program.version is None or Version(program.version) >= _RENAMED_STORAGE
        name = REMOTE_STORAGE[0] if is_renamed else REMOTE_STORAGE[1]
        variables[name] = " ".join(_remote_storage(cache) for cache in remote)
    return variables


def nvcc_variables(program: CcacheProgram, cuda: str) -> dict[str, str]:
    """Return the variables that put ccache before nvcc; none if one of the two is too old.

    Asked for the preprocessed source, nvcc gives that of the first capability, so two files that
    differ for another one would be the same. Therefore ccache goes by the files that nvcc says it
    read, which newer releases say while they compile.
    """
    if program.version is None or Version(program.version) < CUDA_SINCE:
        return {}
    if Version(cuda) < _DEPENDENCIES_SINCE:
        return {}
    return {"CMAKE_CUDA_COMPILER_LAUNCHER": f"/usr/bin/env;CCACHE_DEPEND=1;{program.path}"}


def count_ccache_hits(log: Iterable[str]) -> tuple[int, int, int, int]:
    """Return hits, misses, hits in a shared cache, and failures of that, from a log of results.

    A line of the log names a file ("# a.cpp") or one result of it.
    """
    results = Counter(line.strip() for line in log)
    hits = sum(results[name] for name in _HITS)
    shared_hits = sum(results[name] for name in _SHARED_HITS)
    failures = sum(results[name] for name in _SHARED_FAILURES)
    return hits, results["cache_miss"], shared_hits, failures


def _reachable_cache(site: CacheSite, setting: str) -> RemoteCache | None:
    """Return the shared cache that the user names; None, after a note, if it cannot be reached."""
    shared = remote_cache.parse_remote(setting)
    if shared is None:
        return None
    failure = remote_cache.why_unreachable(shared, site.environ)
    if failure is not None:
        site.note(f"{shared} cannot be reached ({failure}): building without the shared cache")
        return None
    return shared


def _require_ccache(site: CacheSite, setting: str) -> None:
    """Raise HostError unless ccache can keep the objects of shares in a folder of its own."""
    conflicting = [name for name in REMOTE_STORAGE if name in site.environ]
    if setting == remote_cache.NONE:
        conflicting.append(remote_cache.VARIABLE)
    path = site.host.programs.paths.get("ccache")
    if conflicting:
        cure = f"{conflicting[0]} is set: unset it"
    elif not path or "file-storage" not in probe_ccache(path).features:
        cure = "install a newer one"
    else:
        return
    raise HostError(
        f"--parts needs ccache 4.4 or newer, and its storage to itself: {cure}",
        code="parts-need-ccache",
    )


def _set_up_ccache(
    site: CacheSite, program: CcacheProgram, shared: RemoteCache | None
) -> CompilerCache:
    folder = site.cache_folder / "ccache"
    if not _is_writable(site, folder, "CCACHE_DIR"):
        return CompilerCache()
    remote = [shared, *site.parts] if shared is not None else site.parts
    variables = ccache_variables(program, site.root, folder, *remote)
    variables[STATS_LOG_VARIABLE] = str(site.log)
    if site.parts:
        variables["CCACHE_RESHARE"] = "1"  # parts also get objects of the local cache
    if site.cuda is not None:
        variables |= nvcc_variables(program, site.cuda)
    # Without the file ccache still compares the compilers that are called.
    with contextlib.suppress(OSError):
        variables["CCACHE_EXTRAFILES"] = str(_write_compiler_list(site))
    with contextlib.suppress(OSError):
        site.log.parent.mkdir(parents=True, exist_ok=True)
        site.log.unlink(missing_ok=True)
    return CompilerCache("ccache", program.path, program.version, variables, shared)


def _write_compiler_list(site: CacheSite) -> Path:
    """Write the digests of the chosen compilers, whatever their paths are; return the file.

    ccache makes its content part of each key. Raises OSError.
    """
    compilers = chosen_compilers(site.environ)
    digests = sorted(f"{digest_compiler(compiler, site.digest)}\n" for compiler in compilers)
    text = "".join(digests)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = site.cache_folder / "compilers" / name
    if not file.is_file() or read_text(file) != text:
        write_atomically(file, text)
    return file


def _set_up_sccache(site: CacheSite, shared: RemoteCache | None) -> CompilerCache:
    folder = site.cache_folder / "sccache"
    if not _is_writable(site, folder, "SCCACHE_DIR"):
        return CompilerCache()
    program = site.host.programs.paths.get("sccache")
    if program is None and site.host.system in sccache.SYSTEMS:
        program = site.provide_sccache()
    if program is None:
        return CompilerCache()
    version = programs.parse_tool_version("sccache", program_output(program, "--version"))
    variables = sccache.sccache_variables(version, site.root, folder, shared)
    if site.host.system == "windows":  # without a gate, sccache itself is the launcher
        for language in ("C", "CXX", "CUDA"):
            variables[f"CMAKE_{language}_COMPILER_LAUNCHER"] = program
        return CompilerCache("sccache", program, version, variables)
    stand_ins = site.cache_folder / "stand-ins"
    names = {*site.host.compilers.by_command, *COMPILER_NAMES}
    compilers = chosen_compilers(site.environ) | find_programs(names, site.environ.get("PATH"))
    try:
        variables |= sccache.place_sccache(program, compilers, stand_ins, site.digest)
    except OSError as error:
        site.note(f"{stand_ins} cannot be written ({error}): building without a compiler cache")
        return CompilerCache()
    return CompilerCache("sccache", program, version, variables, shared)


def _is_writable(site: CacheSite, folder: Path, variable: str) -> bool:
    """Tell whether a cache can be in a folder; a place that the user has named is not examined."""
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


def _remote_storage(remote: RemoteCache) -> str:
    """Return a shared cache as ccache takes it: a URL, then its attributes behind bars."""
    attributes: list[str] = []
    if remote.scheme == "file":
        url = f"file:{quote(remote.path)}"
    else:
        login = ":".join(quote(part, safe="") for part in (remote.user, remote.password) if part)
        login += "@" if login else ""
        url = f"{remote.scheme}://{login}{remote.address}{remote.path}"
        attributes += _TIMEOUTS
    if remote.scheme == "http":  # most servers make no folders of themselves
        attributes.append(f"layout={remote.options.get('layout', 'flat')}")
    if remote.read_only:
        attributes.append("read-only")
    return "|".join([url, *attributes])
