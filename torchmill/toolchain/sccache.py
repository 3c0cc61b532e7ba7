"""sccache: set up for a build under the memory guard, started, watched and asked for its hits.

CMake calls a launcher script with the command of a compiler. The launcher calls sccache, whose
server preprocesses the file. If the object is not in the cache, the server calls a stand-in: a
script in place of the compiler, which calls the compiler through the guard's gate. The gate is a
small program that waits until the memory suffices for one more compiler.
"""

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from torchmill.core.atomic_writes import write_script
from torchmill.core.errors import HostError
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import CommandError, capture, why_failed
from torchmill.core.reaper import without_mark
from torchmill.core.strict_json import parse_json_object
from torchmill.host.compilers import Digest, digest_compiler
from torchmill.toolchain import remote_cache
from torchmill.toolchain.remote_cache import RemoteCache

SYSTEMS = {"linux", "macos"}  # for which a build installs sccache if it is missing
PROGRAM_VARIABLE = "TORCHMILL_SCCACHE"  # tells the launcher the program; if unset, it is not used
DISABLED_FILE = "without-sccache"  # beside the gate: while it exists, the launcher skips sccache
ADDRESS_VARIABLE = "SCCACHE_SERVER_UDS"  # the path of the socket on which the server listens
LONGEST_ADDRESS_BYTES = 100  # of that path: Linux takes 107, macOS 103
# Since this release a shared cache can be behind the cache on the disk. Older ones use either, and
# those before 0.14 have no base directories.
LAYERS_SINCE = Version("0.15")
SERVER_TIMEOUT_SECONDS = 15.0  # within which the server should have written its last objects
WATCH_INTERVAL_SECONDS = 10.0
_POLL_SECONDS = 0.1
# Prefixes of the variables that set up shared caches.
_SHARED = ("SCCACHE_REDIS", "SCCACHE_WEBDAV", "SCCACHE_S3", "SCCACHE_GHA", "SCCACHE_MULTILEVEL")
_BUCKET = ("SCCACHE_BUCKET", "SCCACHE_ENDPOINT", "SCCACHE_REGION")
# The end of a variable's name, such as SCCACHE_REDIS_RW_MODE, and its value for reading alone.
_MODE = "_RW_MODE"
_READ_ONLY = "READ_ONLY"
# The names of shared caches in sccache's variables, by the schemes of their URLs.
KINDS = {
    "redis": "redis",
    "rediss": "redis",
    "http": "webdav",
    "https": "webdav",
    "s3": "s3",
    "gha": "gha",
}
# The contents of a compiler's file are a part of the keys in the cache. So a stand-in contains the
# digest of its compiler, and no path of a tree or a guard.
_STAND_IN = Path(__file__).with_name("sccache_stand_in.sh")
# Options are a part of the keys too. The launcher takes out -ffile-prefix-map with absolute paths,
# which differ in each checkout, and the stand-in adds them again. If sccache ends with 2, sccache
# itself failed, and the launcher compiles the file without it.
_LAUNCHER = Path(__file__).with_name("sccache_launcher.sh")


def place_sccache(
    program: str, compilers: Iterable[str], folder: Path, digest: Digest
) -> dict[str, str]:
    """Write the launcher and the stand-ins; return the variables by which CMake uses them.

    `program` is the path of sccache. `compilers` are absolute paths. Other compilers are called
    through the gate, and not cached. `digest` returns the digests of files, of which that of each
    compiler is written into its stand-in. `folder` must outlive the build, because CMake records
    the path of the launcher in a tree. Raises OSError if the folder cannot be written.
    """
    launcher = folder / "sccache"
    for compiler in compilers:
        stand_in_values = {
            "digest": digest_compiler(compiler, digest),
            "compiler": shlex.quote(compiler),
        }
        # The compiler's absolute path is appended: FOLDER/usr/bin/g++. With "/", Path would drop
        # the folder.
        stand_in = Path(f"{folder}{compiler}")
        write_script(stand_in, _STAND_IN, stand_in_values)
    launcher_values = {"stand_ins": shlex.quote(str(folder)), "without": DISABLED_FILE}
    write_script(launcher, _LAUNCHER, launcher_values)
    variables = {PROGRAM_VARIABLE: program}
    # Not for CUDA: sccache takes the steps of nvcc apart and runs them without a stand-in.
    for language in ("C", "CXX"):
        variables[f"CMAKE_{language}_COMPILER_LAUNCHER"] = str(launcher)
    return variables


def sccache_variables(
    version: str | None, root: Path, folder: Path, remote: RemoteCache | None = None
) -> dict[str, str]:
    """Return the variables that tell a server its caches.

    `version` is that of sccache, None if it is not known. `folder` is the cache on the disk,
    `remote` the shared cache, of a scheme in KINDS, and `root` the folder of all trees that are
    built.
    """
    variables = {
        **read_table_beside(__file__, "caches.toml")["sccache"],
        "SCCACHE_DIR": str(folder),
        # Paths below it become relative, so that a file in another checkout's tree is a hit.
        # Releases before 0.14 ignore the variable.
        "SCCACHE_BASEDIRS": str(root),
    }
    if remote is None:
        return variables
    kind = KINDS[remote.scheme]
    for name, value in _remote_variables(remote).items():
        if value:
            variables[name] = value
    if remote.read_only:
        variables[f"SCCACHE_{kind.upper()}{_MODE}"] = _READ_ONLY
    if version is None or Version(version) >= LAYERS_SINCE:
        variables["SCCACHE_MULTILEVEL_CHAIN"] = f"disk,{kind}"
        # An object that the shared cache does not take must not make the compile fail.
        variables["SCCACHE_MULTILEVEL_WRITE_ERROR_POLICY"] = "ignore"
    return variables


def server_variables(folder: Path) -> dict[str, str]:
    """Return the variable by which a build has its own server, with a socket in `folder`.

    It is left out if the path is too long for a socket. Releases before 0.9.0 ignore the variable.
    """
    address = folder / "sccache"
    if len(os.fsencode(address)) > LONGEST_ADDRESS_BYTES:
        return {}
    return {ADDRESS_VARIABLE: str(address)}


def start_server(
    program: str, environ: Mapping[str, str], note: Callable[[str], None]
) -> dict[str, str]:
    """Start the server of a build before the build; return the environment for the build.

    If the server cannot start with the shared cache, the environment is without that; if it cannot
    start at all, without sccache. Either is noted.
    """
    # If the compilers of a build started the server, each of the first ones would start a server,
    # and all would use the last one. If no server can start, each compile would wait for it.
    start = (program, "--start-server")
    failure = why_failed(start, without_mark(environ))
    if failure is None:
        return dict(environ)
    local_environ: dict[str, str] = {}
    for name, value in environ.items():
        if not name.startswith((*_SHARED, *_BUCKET)):
            local_environ[name] = value
    if local_environ != environ:
        local_failure = why_failed(start, without_mark(local_environ))
        if local_failure is None:
            note(f"sccache cannot use the shared cache ({failure}): using the local cache only")
            return local_environ
        failure = local_failure
    note(f"sccache does not start ({failure}): building without a compiler cache")
    local_environ.pop(PROGRAM_VARIABLE, None)
    return local_environ


def await_statistics(program: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the statistics of a build's own server as soon as it has written all objects.

    `environ` is the build's. None if the server has ended, or `environ` names no socket of it. After
    SERVER_TIMEOUT_SECONDS the last statistics are returned.
    """
    # The server answers a client before it writes the object. Objects that are not written yet
    # would be lost when the server is ended with the build.
    is_read_only = any(
        name.endswith(_MODE) and value == _READ_ONLY for name, value in environ.items()
    )
    deadline = time.monotonic() + SERVER_TIMEOUT_SECONDS
    while True:
        statistics = _query_statistics(program, environ)
        if statistics is None or not _is_writing(statistics, is_read_only):
            return statistics
        if time.monotonic() > deadline:
            return statistics
        time.sleep(_POLL_SECONDS)


class HitCounts(NamedTuple):
    """How many files a build took from its caches."""

    hits: int
    misses: int
    shared_hits: int  # of `hits`, those from a shared cache
    failures: int  # requests that the shared cache refused or did not answer


def count_sccache_hits(statistics: Mapping[str, Any]) -> HitCounts:
    """Return the counts in the statistics of a server."""
    stats = statistics.get("stats") or {}
    hits = _sum_counts(stats, "cache_hits")
    misses = _sum_counts(stats, "cache_misses")
    # A server with several caches counts for each of them; the first is the disk.
    layers = stats.get("multi_level") or []
    shared_layers = layers[1:]
    # Without a location, nothing says that the hits are of a shared cache.
    location = str(statistics.get("cache_location") or "Local disk")
    if not layers and not location.startswith(("Local disk", "Multi-level")):
        shared_hits = hits  # the server has no cache but the shared one
    else:
        shared_hits = sum(layer.get("hits", 0) for layer in shared_layers)
    failures = sum(layer.get("write_failures", 0) for layer in shared_layers)
    return HitCounts(hits, misses, shared_hits, failures)


@contextlib.contextmanager
def watch_shared_cache(
    shared: RemoteCache | None,
    environ: Mapping[str, str],
    folder: Path,
    note: Callable[[str], None],
) -> Iterator[None]:
    """Switch sccache off while its shared cache does not answer; the first time is noted.

    `environ` is the build's, `folder` the guard's, in which the launcher looks for DISABLED_FILE.
    Nothing is watched if the build has no shared cache, or one of which no server is known.
    """
    if shared is None or shared.endpoint is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        """Create or remove DISABLED_FILE now and then, until the build has ended."""
        is_noted = False
        while not ended.wait(WATCH_INTERVAL_SECONDS):
            failure = remote_cache.unreachable_reason(shared, environ)
            with contextlib.suppress(OSError):
                if failure is None:
                    (folder / DISABLED_FILE).unlink(missing_ok=True)
                else:
                    (folder / DISABLED_FILE).touch()
            if failure is not None and not is_noted:
                note(
                    f"{shared} no longer answers ({failure}): compiling without a cache until it "
                    "does"
                )
                is_noted = True

    watcher = threading.Thread(target=watch, name="shared cache", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        # The file is left: the guard's folder is deleted when the build ends, and commands of the
        # build that run until then must not ask a cache that does not answer.
        ended.set()
        watcher.join()


def _remote_variables(remote: RemoteCache) -> dict[str, str]:
    """Return sccache's variables for a shared cache. Those with an empty value are not to be set."""
    kind = KINDS[remote.scheme]
    if kind == "gha":
        # Without the second variable, sccache asks a service that GitHub has switched off.
        return {"SCCACHE_GHA_ENABLED": "on", "ACTIONS_CACHE_SERVICE_V2": "on"}
    if kind == "s3":
        endpoint = remote.options.get("endpoint", "")
        return {
            "SCCACHE_BUCKET": remote.host,
            "SCCACHE_S3_KEY_PREFIX": remote.path.strip("/"),
            "SCCACHE_ENDPOINT": endpoint,
            "SCCACHE_REGION": remote.options.get("region", "auto" if endpoint else ""),
            "SCCACHE_S3_USE_SSL": "false" if endpoint.startswith("http://") else "true",
        }
    url = f"{remote.scheme}://{remote.address}"
    prefix = f"SCCACHE_{kind.upper()}"
    variables = {f"{prefix}_USERNAME": remote.user, f"{prefix}_PASSWORD": remote.password}
    if kind == "redis":
        variables[f"{prefix}_ENDPOINT"] = url
        variables[f"{prefix}_DB"] = remote.path.strip("/")
    else:
        variables[f"{prefix}_ENDPOINT"] = url + remote.path
    return variables


def _query_statistics(program: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the present statistics of a build's own server; None if it does not answer."""
    argv = [program, "--show-stats", "--stats-format=json"]
    with contextlib.suppress(CommandError, HostError, ValueError):
        # Without a server, the client would start one.
        if Path(environ.get(ADDRESS_VARIABLE, "")).is_socket():
            return parse_json_object(capture(argv, env=environ))
    return None


def _is_writing(statistics: Mapping[str, Any], is_read_only: bool) -> bool:
    """Tell whether the server has yet to write objects, to the disk or to a shared cache.

    Each miss is an object that is written to all caches. `is_read_only` says that the shared cache
    takes none.
    """
    stats = statistics.get("stats") or {}
    writes: list[int] = [stats.get("cache_writes", 0) + stats.get("cache_write_errors", 0)]
    if not is_read_only:
        for layer in stats.get("multi_level") or ():
            writes.append(layer.get("writes", 0) + layer.get("write_failures", 0))
    return min(writes) < _sum_counts(stats, "cache_misses")


def _sum_counts(stats: Mapping[str, Any], name: str) -> int:
    """Return the sum of a number that sccache counts for each language."""
    counts = (stats.get(name) or {}).get("counts", {})
    return sum(int(count) for count in counts.values())
