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
PROGRAM_VARIABLE = (
    "TORCHMILL_SCCACHE"  # the program, for the launcher; without it nothing is cached
)
DISABLED_FILE = (
    "without-sccache"  # a file beside the gate: while it is there, nothing goes to sccache
)
LONGEST_ADDRESS_BYTES = 100  # bytes of a socket's path: Linux takes 107, macOS 103
LAYERS_SINCE = Version("0.15")  # a shared cache behind the disk's; older ones have one of the two
SERVER_TIMEOUT_SECONDS = 15.0  # that it gets to put the last objects away
ADDRESS_VARIABLE = "SCCACHE_SERVER_UDS"
_SHARED = ("SCCACHE_REDIS", "SCCACHE_WEBDAV", "SCCACHE_S3", "SCCACHE_GHA", "SCCACHE_MULTILEVEL")
_MODE, _READ_ONLY = "_RW_MODE", "READ_ONLY"
_BUCKET = ("SCCACHE_BUCKET", "SCCACHE_ENDPOINT", "SCCACHE_REGION")
# How it calls the kinds of shared caches that it can use, by their schemes.
KINDS = {
    "redis": "redis",
    "rediss": "redis",
    "http": "webdav",
    "https": "webdav",
    "s3": "s3",
    "gha": "gha",
}
WATCH_INTERVAL_SECONDS = 10.0
# sccache knows a compiler by its file's text: that names neither a tree nor a guard, but the real compiler.
_STAND_IN = Path(__file__).with_name("sccache_stand_in.sh")
# A map of an absolute path is part of sccache's key, and that path another in each checkout: so it learns
# nothing of those. It ends with 2 where it failed itself: then the file is compiled without it.
_LAUNCHER = Path(__file__).with_name("sccache_launcher.sh")


def place_sccache(
    program: str, chosen: Iterable[str], folder: Path, digest: Digest
) -> dict[str, str]:
    """Return the variables that put sccache before the compilers of CMake, all it compiles by the gate.

    `chosen` are absolute paths of compilers; one that is not among them goes by the gate and is not cached.
    `folder` takes the stand-ins: it is kept, because CMake remembers launchers. nvcc is not cached: sccache
    takes its steps apart and runs them itself. Raise OSError where the folder cannot be written.
    """
    launcher = folder / "sccache"
    for compiler in chosen:
        names = {"digest": digest_compiler(compiler, digest), "compiler": shlex.quote(compiler)}
        write_script(Path(f"{folder}{compiler}"), _STAND_IN, names)
    write_script(
        launcher, _LAUNCHER, {"stand_ins": shlex.quote(str(folder)), "without": DISABLED_FILE}
    )
    launchers = {f"CMAKE_{language}_COMPILER_LAUNCHER": str(launcher) for language in ("C", "CXX")}
    return {PROGRAM_VARIABLE: program, **launchers}


def sccache_variables(
    version: str | None, root: Path, home: Path, remote: RemoteCache | None = None
) -> dict[str, str]:
    """Return the variables of a server that keeps its objects in the folder `home`, and in a shared cache.

    `root` holds every tree that is built.
    """
    found = {
        **read_table_beside(__file__, "caches.toml")["sccache"],
        "SCCACHE_DIR": str(home),
        "SCCACHE_BASEDIRS": str(root),  # as CCACHE_BASEDIR; releases before 0.14 ignore it
    }
    if remote is None:
        return found
    kind = KINDS[remote.scheme]
    found |= {name: value for name, value in _remote_variables(remote).items() if value}
    if remote.read_only:
        found[f"SCCACHE_{kind.upper()}{_MODE}"] = _READ_ONLY
    if version is None or Version(version) >= LAYERS_SINCE:
        found["SCCACHE_MULTILEVEL_CHAIN"] = f"disk,{kind}"
        found["SCCACHE_MULTILEVEL_WRITE_ERROR_POLICY"] = "ignore"
    return found


def _remote_variables(remote: RemoteCache) -> dict[str, str]:
    """Return how a shared cache is named; what is empty says nothing."""
    kind = KINDS[remote.scheme]
    if kind == "gha":
        # without the second it asks the service that GitHub has switched off
        return {"SCCACHE_GHA_ENABLED": "on", "ACTIONS_CACHE_SERVICE_V2": "on"}
    if kind == "s3":
        own = remote.options.get("endpoint", "")
        return {
            "SCCACHE_BUCKET": remote.host,
            "SCCACHE_S3_KEY_PREFIX": remote.path.strip("/"),
            "SCCACHE_ENDPOINT": own,
            "SCCACHE_REGION": remote.options.get("region", "auto" if own else ""),
            "SCCACHE_S3_USE_SSL": "false" if own.startswith("http://") else "true",
        }
    url = f"{remote.scheme}://{remote.address}"
    name = f"SCCACHE_{kind.upper()}"
    who = {f"{name}_USERNAME": remote.user, f"{name}_PASSWORD": remote.password}
    if kind == "redis":
        return who | {f"{name}_ENDPOINT": url, f"{name}_DB": remote.path.strip("/")}
    return who | {f"{name}_ENDPOINT": url + remote.path}


def server_variables(folder: Path) -> dict[str, str]:
    """Return what makes a build's server its own, reached in `folder`, and not one that is running already.

    Older than 0.9.0 it does not listen to that; nor does any to a path that is too long.
    """
    address = folder / "sccache"
    return (
        {ADDRESS_VARIABLE: str(address)}
        if len(os.fsencode(address)) <= LONGEST_ADDRESS_BYTES
        else {}
    )


def start_server(
    program: str, environ: Mapping[str, str], note: Callable[[str], None]
) -> dict[str, str]:
    """Start the server that a build will use, and return the build's environment, less what does not work.

    Clients that come together would each start one, and reach only the last of these; where none can start,
    each would wait for it in vain.
    """
    start = (program, "--start-server")
    if (why := why_failed(start, without_mark(environ))) is None:
        return dict(environ)
    alone = {
        name: value for name, value in environ.items() if not name.startswith((*_SHARED, *_BUCKET))
    }
    if alone != environ and why_failed(start, without_mark(alone)) is None:
        note(f"sccache cannot use the shared cache ({why}): using the local cache only")
        return alone
    note(f"sccache does not start ({why}): building without a compiler cache")
    return {name: value for name, value in alone.items() if name != PROGRAM_VARIABLE}


def read_statistics(program: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the statistics of the build's own server once it has written everything; None where it is gone.

    It answers before it writes, and what it has not written when it ends is lost.
    """
    read_only = any(name.endswith(_MODE) and value == _READ_ONLY for name, value in environ.items())
    end = time.monotonic() + SERVER_TIMEOUT_SECONDS
    while True:
        answer = _query_statistics(program, environ)
        if answer is None or not _busy(answer, read_only) or time.monotonic() > end:
            return answer
        time.sleep(0.1)


def _query_statistics(program: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    with contextlib.suppress(CommandError, HostError, ValueError):
        if Path(environ.get(ADDRESS_VARIABLE, "")).is_socket():
            return parse_json_object(
                capture([program, "--show-stats", "--stats-format=json"], env=environ)
            )
    return None


def _busy(answer: Mapping[str, Any], read_only: bool) -> bool:
    """Tell whether objects are still being written, to the disk or to a shared cache."""
    stats = answer.get("stats") or {}
    written: list[int] = [stats.get("cache_writes", 0) + stats.get("cache_write_errors", 0)]
    if not read_only:
        written += [
            one.get("writes", 0) + one.get("write_failures", 0)
            for one in stats.get("multi_level") or ()
        ]
    return min(written) < _sum(stats, "cache_misses")


def count_sccache_hits(answer: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return hits, misses, hits in a shared cache, and how often that failed, from sccache's statistics."""
    stats = answer.get("stats") or {}
    hits = _sum(stats, "cache_hits")
    layers = stats.get("multi_level") or []
    only_shared = not layers and not str(answer.get("cache_location")).startswith(
        ("Local disk", "Multi-level")
    )
    shared = hits if only_shared else sum(layer.get("hits", 0) for layer in layers[1:])
    return (
        hits,
        _sum(stats, "cache_misses"),
        shared,
        sum(layer.get("write_failures", 0) for layer in layers[1:]),
    )


def _sum(stats: Mapping[str, Any], name: str) -> int:
    return sum(map(int, (stats.get(name) or {}).get("counts", {}).values()))


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

    def look() -> None:
        noted = False
        while not ended.wait(WATCH_INTERVAL_SECONDS):
            why = remote_cache.why_unreachable(shared, environ)
            with contextlib.suppress(OSError):
                if why is None:
                    (folder / DISABLED_FILE).unlink(missing_ok=True)
                else:
                    (folder / DISABLED_FILE).touch()
            if why is not None and not noted:
                note(f"{shared} no longer answers ({why}): compiling without a cache until it does")
                noted = True

    watcher = threading.Thread(target=look, name="shared cache", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
