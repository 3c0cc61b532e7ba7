"""sccache: run as a server under the guard, and watched."""

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

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

SYSTEMS = {"linux", "macos"}
PROGRAM_VARIABLE = "TORCHMILL_SCCACHE"  # for the launcher; without it nothing is cached
DISABLED_FILE = "without-sccache"  # beside the gate: while it exists, nothing goes to sccache
LONGEST_ADDRESS_BYTES = 100  # of a socket's path: Linux takes 107, macOS 103
LAYERS_SINCE = Version("0.15")  # a shared cache behind the disk's; older ones have one of the two
SERVER_TIMEOUT_SECONDS = 15.0  # for the server to write its last objects
ADDRESS_VARIABLE = "SCCACHE_SERVER_UDS"
WATCH_INTERVAL_SECONDS = 10.0
_POLL_SECONDS = 0.1
_SHARED = ("SCCACHE_REDIS", "SCCACHE_WEBDAV", "SCCACHE_S3", "SCCACHE_GHA", "SCCACHE_MULTILEVEL")
_MODE, _READ_ONLY = "_RW_MODE", "READ_ONLY"
_BUCKET = ("SCCACHE_BUCKET", "SCCACHE_ENDPOINT", "SCCACHE_REGION")
# The names of shared caches in sccache's variables, by the schemes of their URLs.
KINDS = {
    "redis": "redis",
    "rediss": "redis",
    "http": "webdav",
    "https": "webdav",
    "s3": "s3",
    "gha": "gha",
}
# sccache knows a compiler by its file's text, which names neither a tree nor a guard, but the
# compiler behind the stand-in.
_STAND_IN = Path(__file__).with_name("sccache_stand_in.sh")
# A map of an absolute path is part of sccache's key, and that path differs in each checkout, so
# sccache is given none of those. It ends with 2 if it failed itself: then the file is compiled
# without it.
_LAUNCHER = Path(__file__).with_name("sccache_launcher.sh")


def place_sccache(
    program: str, chosen: Iterable[str], folder: Path, digest: Digest
) -> dict[str, str]:
    """Return the variables that put sccache before the compilers of CMake, with the gate behind it.

    `chosen` are absolute paths of compilers; any other goes by the gate and is not cached. `folder`
    takes the stand-ins, and is kept, because CMake remembers launchers. nvcc is not cached, because
    sccache takes its steps apart and runs them itself. Raises OSError if the folder cannot be
    written.
    """
    launcher = folder / "sccache"
    for compiler in chosen:
        names = {"digest": digest_compiler(compiler, digest), "compiler": shlex.quote(compiler)}
        write_script(Path(f"{folder}{compiler}"), _STAND_IN, names)
    places = {"stand_ins": shlex.quote(str(folder)), "without": DISABLED_FILE}
    write_script(launcher, _LAUNCHER, places)
    launchers = {f"CMAKE_{language}_COMPILER_LAUNCHER": str(launcher) for language in ("C", "CXX")}
    return {PROGRAM_VARIABLE: program, **launchers}


def sccache_variables(
    version: str | None, root: Path, home: Path, remote: RemoteCache | None = None
) -> dict[str, str]:
    """Return the variables of a server whose objects are in the folder `home` and a shared cache.

    `root` holds every tree that is built.
    """
    variables = {
        **read_table_beside(__file__, "caches.toml")["sccache"],
        "SCCACHE_DIR": str(home),
        "SCCACHE_BASEDIRS": str(root),  # as CCACHE_BASEDIR; releases before 0.14 ignore it
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
        variables["SCCACHE_MULTILEVEL_WRITE_ERROR_POLICY"] = "ignore"
    return variables


def server_variables(folder: Path) -> dict[str, str]:
    """Return the variable that gives a build a server of its own, reached in `folder`.

    None if the path is too long for a socket. Releases before 0.9.0 ignore the variable.
    """
    address = folder / "sccache"
    if len(os.fsencode(address)) > LONGEST_ADDRESS_BYTES:
        return {}
    return {ADDRESS_VARIABLE: str(address)}


def start_server(
    program: str, environ: Mapping[str, str], note: Callable[[str], None]
) -> dict[str, str]:
    """Start the server that a build will use; return the build's environment without what fails.

    Clients that come together would each start a server, and reach only the last one; if none can
    start, each would wait for it in vain.
    """
    start = (program, "--start-server")
    refusal = why_failed(start, without_mark(environ))
    if refusal is None:
        return dict(environ)
    local = {}
    for name, value in environ.items():
        if not name.startswith((*_SHARED, *_BUCKET)):
            local[name] = value
    if local != environ and why_failed(start, without_mark(local)) is None:
        note(f"sccache cannot use the shared cache ({refusal}): using the local cache only")
        return local
    note(f"sccache does not start ({refusal}): building without a compiler cache")
    local.pop(PROGRAM_VARIABLE, None)
    return local


def read_statistics(program: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the statistics of the build's own server once it has written everything.

    None if the server has ended. It answers clients before it writes, and objects that it has not
    written when it ends are lost.
    """
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


def count_sccache_hits(statistics: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return hits, misses, hits in a shared cache, and failures of that, from its statistics."""
    stats = statistics.get("stats") or {}
    hits = _sum_counts(stats, "cache_hits")
    misses = _sum_counts(stats, "cache_misses")
    layers = stats.get("multi_level") or []
    shared_layers = layers[1:]  # the first is the disk
    location = str(statistics.get("cache_location"))
    if not layers and not location.startswith(("Local disk", "Multi-level")):
        shared_hits = hits  # the shared cache is the only one
    else:
        shared_hits = sum(layer.get("hits", 0) for layer in shared_layers)
    failures = sum(layer.get("write_failures", 0) for layer in shared_layers)
    return hits, misses, shared_hits, failures


@contextlib.contextmanager
def watch_shared_cache(
    shared: RemoteCache | None,
    environ: Mapping[str, str],
    folder: Path,
    note: Callable[[str], None],
) -> Iterator[None]:
    """Switch sccache off for as long as its shared cache does not answer; the first time is noted.

    Its launcher looks for a file in `folder`, where gates reach the guard. `environ` is the build's.
    """
    if shared is None or shared.endpoint is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        is_noted = False
        while not ended.wait(WATCH_INTERVAL_SECONDS):
            failure = remote_cache.why_unreachable(shared, environ)
            with contextlib.suppress(OSError):
                if failure is None:
                    (folder / DISABLED_FILE).unlink(missing_ok=True)
                else:
                    (folder / DISABLED_FILE).touch()
            if failure is not None and not is_noted:
                note(
                    f"{shared} no longer answers ({failure}): compiling without a cache until it does"
                )
                is_noted = True

    watcher = threading.Thread(target=watch, name="shared cache", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _remote_variables(remote: RemoteCache) -> dict[str, str]:
    """Return sccache's variables for a shared cache; an empty value sets nothing."""
    kind = KINDS[remote.scheme]
    if kind == "gha":
        # Without the second it asks the service that GitHub has switched off.
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
    argv = [program, "--show-stats", "--stats-format=json"]
    with contextlib.suppress(CommandError, HostError, ValueError):
        # without a server the client would start one
        if Path(environ.get(ADDRESS_VARIABLE, "")).is_socket():
            return parse_json_object(capture(argv, env=environ))
    return None


def _is_writing(statistics: Mapping[str, Any], is_read_only: bool) -> bool:
    """Tell whether objects are still being written, to the disk or to a shared cache."""
    stats = statistics.get("stats") or {}
    written: list[int] = [stats.get("cache_writes", 0) + stats.get("cache_write_errors", 0)]
    if not is_read_only:
        for layer in stats.get("multi_level") or ():
            written.append(layer.get("writes", 0) + layer.get("write_failures", 0))
    return min(written) < _sum_counts(stats, "cache_misses")


def _sum_counts(stats: Mapping[str, Any], name: str) -> int:
    """Return the sum of a figure that sccache counts by language."""
    counts = (stats.get(name) or {}).get("counts", {})
    return sum(int(count) for count in counts.values())
