"""Set up the compiler cache of a build: ccache or sccache, local and shared.

ccache is preferred. sccache is for machines without ccache, and for shared caches that the
installed ccache does not support. The parts of a build are folders with the objects that several
machines have compiled, each its share (`shards`): ccache reads and writes them as remote storage.
"""

import contextlib
import hashlib
import os
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

# The variable for shared caches: its name since ccache 4.7, and the name before.
REMOTE_STORAGE = ("CCACHE_REMOTE_STORAGE", "CCACHE_SECONDARY_STORAGE")
_RENAMED_STORAGE = Version("4.7")
# Names the file to which ccache appends each result, since 4.4. Older releases ignore it.
STATS_LOG_VARIABLE = "CCACHE_STATSLOG"
# Compilers that a build may call, beside those that the user names.
COMPILER_NAMES = ("cc", "c++", "gcc", "g++", "clang", "clang++")
# Older releases of ccache mistake nvcc's options that list dependencies for a call of the
# preprocessor, and cache nothing.
CUDA_SINCE = Version("4.12.3")
# Of CUDA. With older toolkits, CMake has nvcc list the dependencies in a call of its own.
_DEPENDENCIES_SINCE = Version("10.2")
_FEATURES = re.compile(r"^Features:(.*)$", re.MULTILINE)
# Milliseconds. A distant server may take a while to answer, but a dead server must not delay each
# compile for longer.
_TIMEOUTS = ("connect-timeout=1000", "operation-timeout=5000")
# Variables with which nvcc completes its command line. ccache does not count them among the inputs of
# an object, so that another flag would be a hit; tried with 4.14.2.
# https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#nvcc-environment-variables
NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
# Names of results in ccache's log.
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
    """The machine, folders and functions with which the cache of a build is set up."""

    host: Host
    root: Path  # the folder of all trees that are built
    cache_folder: Path  # torchmill's in the user's cache
    log: Path  # the file for ccache's results of this build
    environ: Mapping[str, str]  # the environment of the user's shell
    note: Callable[[str], None]  # shows the user a message
    digest: Digest  # returns the digest of a file's contents
    # Installs sccache for the user and returns its path; None, after a note, if it fails.
    provide_sccache: Callable[[], str | None]
    cuda: str | None = None  # the toolkit's version; None if nvcc compiles nothing
    # Those of NVCC_VARIABLES that the build sets, with placeholders for its folders.
    nvcc_settings: Mapping[str, str] = field(default_factory=dict)
    # Folders of parts. They also get the objects that this machine's local cache has.
    parts: tuple[RemoteCache, ...] = ()


@dataclass(frozen=True, slots=True)
class CompilerCache:
    """The compiler cache of one build.

    If `tool` is empty, the build has no cache; `variables` are to be set all the same.
    """

    tool: str = ""  # "ccache", "sccache"
    program: str = ""  # its path
    version: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # for the build
    shared: RemoteCache | None = None  # the cache that other machines use too


@dataclass(frozen=True, slots=True)
class CacheHits:
    """The number of files that one build took from its cache, and of those that it compiled."""

    tool: str  # "ccache 4.7.5"
    hits: int  # files that were in a cache
    misses: int  # files that were compiled
    remote: int = 0  # hits that came from the shared cache
    failures: int = 0  # requests that the shared cache did not answer or refused
    shared: str = ""  # the shared cache, without a password: "redis://cache.example:6379"

    def __str__(self) -> str:
        """Return "ccache 4.7.5: 90 of 100 hits (90%), 5 of them in redis://cache.example:6379"."""
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
        """Tell whether this ccache can use a shared cache of that kind.

        If it is given a kind that it does not know, every compile fails.
        """
        return f"{remote.scheme}-storage" in self.features

    def __str__(self) -> str:
        """Return "ccache 4.7.5"."""
        return f"ccache {self.version}" if self.version else "ccache"


def set_up_cache(site: CacheSite) -> CompilerCache:
    """Return the cache of a build, after a note on each feature that it has to do without.

    The shared cache is asked whether it answers, folders are made, the log of an earlier build is
    removed, and sccache may be installed. Raises ConfigError if the user's setting names no cache,
    HostError if the build takes or makes parts, and this machine's ccache cannot do so or has no
    folder to write to.
    """
    setting = site.environ.get(remote_cache.VARIABLE, "")
    if site.parts:
        _require_ccache(site, setting)
    if setting == remote_cache.NONE:
        # A tree that was configured with ccache calls it all the same.
        return CompilerCache(variables={"CCACHE_DISABLE": "1"})
    shared = _reachable_cache(site, setting)
    path = site.host.programs.paths.get("ccache")
    ccache = probe_ccache(path) if path else None
    if shared is not None and (ccache is None or not ccache.supports(shared)):
        # sccache neither reads nor writes parts.
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
    """Return how many files a build took from its cache; None if that is not known.

    None, too, if the build asked the cache for no file. `environ` is the environment of the build.
    sccache must be asked while its server runs.
    """
    counts = None
    if cache.tool == "ccache":
        # The user may have given ccache another log, which has results of other builds too.
        log = environ.get(STATS_LOG_VARIABLE)
        if log is not None and log == cache.variables[STATS_LOG_VARIABLE]:
            counts = count_ccache_hits(read_text(Path(log)).splitlines())
    elif cache.tool == "sccache":
        statistics = sccache.await_statistics(cache.program, environ)
        if statistics is not None:
            counts = sccache.count_sccache_hits(statistics)
    if counts is None or not any(counts):
        return None
    tool = f"{cache.tool} {cache.version}" if cache.version else cache.tool
    return CacheHits(tool, *counts, shared=str(cache.shared or ""))


def record_hits(hits: CacheHits, timeline: Path, at: float) -> None:
    """Append a cache's hits to the timeline of a build, if this file exists and can be written.

    `at` is in seconds after the start of the build.
    """
    event = TimelineEvent(at, "cache", "", str(hits))
    # Mode "a" would make a file that does not exist.
    with contextlib.suppress(OSError), timeline.open("r+", encoding="utf-8") as file:
        file.seek(0, os.SEEK_END)
        file.write(f"{format_record(event)}\n")


def probe_ccache(path: str) -> CcacheProgram:
    """Return a ccache with its version and features; without these if it does not run."""
    output = program_output(path, "--version")
    version = programs.parse_tool_version("ccache", output)
    match = _FEATURES.search(output)
    features = match[1].split() if match else []
    return CcacheProgram(path, version, frozenset(features))


def ccache_variables(
    program: CcacheProgram, root: Path, folder: Path, *remote: RemoteCache
) -> dict[str, str]:
    """Return the variables by which CMake calls its compilers through ccache.

    `folder` is the local cache, `root` the folder of all trees that are built. `remote` are shared
    caches and parts, which ccache asks in this order.
    """
    variables = {
        **read_table_beside(__file__, "caches.toml")["ccache"],
        "CCACHE_DIR": str(folder),
        # Paths below it become relative, so that a file in another checkout's tree is a hit.
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
    """Return the variables by which CMake calls nvcc through ccache.

    There are none if ccache or the toolkit (`cuda`, its version) is too old, or if ccache does not
    tell its version.
    """
    if program.version is None or Version(program.version) < CUDA_SINCE:
        return {}
    if Version(cuda) < _DEPENDENCIES_SINCE:
        return {}
    # By default ccache compares preprocessed sources. nvcc preprocesses for the first compute
    # capability alone, so sources that differ for another one would count as equal. With
    # CCACHE_DEPEND, ccache compares the files that nvcc has read, by the list that nvcc writes.
    return {"CMAKE_CUDA_COMPILER_LAUNCHER": f"/usr/bin/env;CCACHE_DEPEND=1;{program.path}"}


def count_ccache_hits(log: Iterable[str]) -> sccache.HitCounts:
    """Return the counts in a log of ccache's results.

    Each line of `log` names a file ("# a.cpp") or a result of it ("cache_miss").
    """
    results = Counter(line.strip() for line in log)
    hits = sum(results[name] for name in _HITS)
    shared_hits = sum(results[name] for name in _SHARED_HITS)
    failures = sum(results[name] for name in _SHARED_FAILURES)
    return sccache.HitCounts(hits, results["cache_miss"], shared_hits, failures)


def _reachable_cache(site: CacheSite, setting: str) -> RemoteCache | None:
    """Return the shared cache that the user's setting names; None if the setting is empty.

    If the cache cannot be reached, this is noted, and None is returned. Raises ConfigError for a
    setting that cannot be read.
    """
    shared = remote_cache.parse_remote(setting)
    if shared is None:
        return None
    failure = remote_cache.unreachable_reason(shared, site.environ)
    if failure is not None:
        site.note(f"{shared} cannot be reached ({failure}): building without the shared cache")
        return None
    return shared


def _require_ccache(site: CacheSite, setting: str) -> None:
    """Raise HostError unless ccache can use parts as its remote storage.

    It cannot if it is too old, or if variables of the user turn it off or name other storage for
    it. A shared cache, which torchmill's own variable names, is used beside the parts.
    """
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
    """Return the cache of a build with ccache.

    If it cannot be written, this is noted, and the build has no cache (a cache without a tool).
    Raises HostError in this case if the build takes or makes parts.
    """
    folder = site.cache_folder / "ccache"
    if not _make_cache_folder(site, folder, "CCACHE_DIR"):
        return CompilerCache()
    remote = [shared, *site.parts] if shared is not None else site.parts
    variables = ccache_variables(program, site.root, folder, *remote)
    variables[STATS_LOG_VARIABLE] = str(site.log)
    if site.parts:
        # Parts also get the objects that come from the local cache.
        variables["CCACHE_RESHARE"] = "1"
    if site.cuda is not None:
        variables |= nvcc_variables(program, site.cuda)
    # Without this file ccache still compares the compilers that it calls.
    with contextlib.suppress(OSError):
        variables["CCACHE_EXTRAFILES"] = str(_write_further_inputs(site))
    with contextlib.suppress(OSError):
        site.log.parent.mkdir(parents=True, exist_ok=True)
        site.log.unlink(missing_ok=True)
    return CompilerCache(
        tool="ccache",
        program=program.path,
        version=program.version,
        variables=variables,
        shared=shared,
    )


def _write_further_inputs(site: CacheSite) -> Path:
    """Write what ccache would not take for an input of an object to a file; return its path.

    ccache includes the file in the key of each object. It has the digests of the compilers that a
    build uses, because ccache looks at the compiler that it calls, and not at programs behind that;
    and the settings that nvcc reads. Raises OSError.
    """
    compilers = chosen_compilers(site.environ)
    lines = sorted(f"{digest_compiler(compiler, site.digest)}\n" for compiler in compilers)
    for name, value in sorted(site.nvcc_settings.items()):
        lines.append(f"{name}={value}\n")
    text = "".join(lines)
    file = site.cache_folder / "compilers" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not file.is_file() or read_text(file) != text:
        write_atomically(file, text)
    return file


def _set_up_sccache(site: CacheSite, shared: RemoteCache | None) -> CompilerCache:
    """Return the cache of a build with sccache, which is installed if it is missing.

    If sccache cannot be installed or a folder cannot be written, this is noted, and the build has
    no cache. On systems for which torchmill does not bring sccache, a missing one is not noted.
    """
    folder = site.cache_folder / "sccache"
    if not _make_cache_folder(site, folder, "SCCACHE_DIR"):
        return CompilerCache()
    program = site.host.programs.paths.get("sccache")
    if program is None and site.host.system in sccache.SYSTEMS:
        program = site.provide_sccache()
    if program is None:
        return CompilerCache()
    version = programs.parse_tool_version("sccache", program_output(program, "--version"))
    variables = sccache.sccache_variables(version, site.root, folder, shared)
    if site.host.system == "windows":
        # The memory guard has no gate on Windows, so CMake calls sccache itself.
        for language in ("C", "CXX", "CUDA"):
            variables[f"CMAKE_{language}_COMPILER_LAUNCHER"] = program
    else:
        # Scripts in place of the compilers: see `sccache`.
        stand_ins = site.cache_folder / "stand-ins"
        names = {*site.host.compilers.by_command, *COMPILER_NAMES}
        compilers = chosen_compilers(site.environ) | find_programs(names, site.environ.get("PATH"))
        try:
            variables |= sccache.place_sccache(program, compilers, stand_ins, site.digest)
        except OSError as error:
            site.note(f"{stand_ins} cannot be written ({error}): building without a compiler cache")
            return CompilerCache()
    return CompilerCache(
        tool="sccache", program=program, version=version, variables=variables, shared=shared
    )


def _make_cache_folder(site: CacheSite, folder: Path, variable: str) -> bool:
    """Make a folder for a cache, and tell whether it can be written; if not, that is noted.

    A folder that the user names, by `variable`, replaces it and is not tested: True. If the build
    takes or makes parts, HostError is raised in place of a note: without a cache it would compile
    everything, and make no part.
    """
    if variable in site.environ:
        return True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        problem = f"{folder} cannot be written ({error.strerror or error})"
        cure = "XDG_CACHE_HOME=DIR gives it another place"
        if site.parts:
            raise HostError(
                f"--parts needs a compiler cache, and {problem}: {cure}", code="parts-need-ccache"
            ) from None
        site.note(f"{problem}: building without a compiler cache; {cure}")
        return False


def _remote_storage(remote: RemoteCache) -> str:
    """Return a shared cache as ccache reads it: "http://cache.example/a|layout=flat|read-only"."""
    attributes: list[str] = []
    if remote.scheme == "file":
        url = f"file:{quote(remote.path)}"
    else:
        # A password without a user stands without a colon: ccache reads redis://PASSWORD@HOST so.
        login_parts = [quote(part, safe="") for part in (remote.user, remote.password) if part]
        login = ":".join(login_parts) + "@" if login_parts else ""
        url = f"{remote.scheme}://{login}{remote.address}{remote.path}"
        attributes += _TIMEOUTS
    if remote.scheme == "http":
        # ccache's default layout has subfolders, and most servers do not make them by themselves.
        attributes.append(f"layout={remote.options.get('layout', 'flat')}")
    if remote.read_only:
        attributes.append("read-only")
    return "|".join([url, *attributes])
