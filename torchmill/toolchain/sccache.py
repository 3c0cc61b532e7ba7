"""sccache: what it is told, and what it says that it did."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from torchmill.errors import HostError
from torchmill.process import CommandError, capture
from torchmill.toolchain.remote import Remote
from torchmill.toolchain.stand_ins import IN_USE

LONGEST_ADDRESS = 100  # bytes of a socket's path: Linux takes 107, macOS 103
LAYERS_SINCE = Version("0.15")  # a shared cache behind the disk's; older ones have one of the two
PATIENCE = 15.0  # seconds that it gets to put the last objects away
ADDRESS = "SCCACHE_SERVER_UDS"
_SHARED = ("SCCACHE_REDIS", "SCCACHE_WEBDAV", "SCCACHE_S3", "SCCACHE_GHA", "SCCACHE_MULTILEVEL")
_VERSION = re.compile(r"sccache (\d+(?:\.\d+)+)")
_MODE, _READ_ONLY = "_RW_MODE", "READ_ONLY"
_BUCKET = ("SCCACHE_BUCKET", "SCCACHE_ENDPOINT", "SCCACHE_REGION")
_KINDS = {
    "redis": "redis",
    "rediss": "redis",
    "http": "webdav",
    "https": "webdav",
    "s3": "s3",
    "gha": "gha",
}


def parse_version(said: str) -> str | None:
    """Return the version in what `sccache --version` says."""
    match = _VERSION.match(said)
    return match[1] if match else None


def reaches(remote: Remote) -> bool:
    """Tell whether it can use a cache of this kind."""
    return remote.scheme in _KINDS


def variables(
    version: str | None, root: Path, folder: Path, size: str, remote: Remote | None = None
) -> dict[str, str]:
    """Return the variables of a server that keeps its objects in a `folder`, and in a shared cache.

    `root` holds every tree that is built, `size` is what the folder may take ("30G").
    """
    found = {
        "SCCACHE_DIR": str(folder),
        "SCCACHE_BASEDIRS": str(root),  # as CCACHE_BASEDIR; releases before 0.14 ignore it
        "SCCACHE_CACHE_SIZE": size,
        # its server ends after ten idle minutes, and one large file may compile for longer (seconds)
        "SCCACHE_IDLE_TIMEOUT": "7200",
        # a server that was lost costs hits, not the build
        "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
    }
    if remote is None:
        return found
    kind = _KINDS[remote.scheme]
    found |= {name: value for name, value in _told(remote).items() if value}
    if remote.read_only:
        found[f"SCCACHE_{kind.upper()}{_MODE}"] = _READ_ONLY
    if version is None or Version(version) >= LAYERS_SINCE:
        found["SCCACHE_MULTILEVEL_CHAIN"] = f"disk,{kind}"
        found["SCCACHE_MULTILEVEL_WRITE_ERROR_POLICY"] = "ignore"
    return found


def _told(remote: Remote) -> dict[str, str]:
    """Return how a shared cache is named; what is empty says nothing."""
    kind = _KINDS[remote.scheme]
    if kind == "gha":
        # without the second it asks the service that GitHub has switched off
        return {"SCCACHE_GHA_ENABLED": "on", "ACTIONS_CACHE_SERVICE_V2": "on"}
    if kind == "s3":
        own = remote.more.get("endpoint", "")
        return {
            "SCCACHE_BUCKET": remote.host,
            "SCCACHE_S3_KEY_PREFIX": remote.path.strip("/"),
            "SCCACHE_ENDPOINT": own,
            "SCCACHE_REGION": remote.more.get("region", "auto" if own else ""),
            "SCCACHE_S3_USE_SSL": "false" if own.startswith("http://") else "true",
        }
    url = f"{remote.scheme}://{remote.place}"
    name = f"SCCACHE_{kind.upper()}"
    who = {f"{name}_USERNAME": remote.user, f"{name}_PASSWORD": remote.password}
    if kind == "redis":
        return who | {f"{name}_ENDPOINT": url, f"{name}_DB": remote.path.strip("/")}
    return who | {f"{name}_ENDPOINT": url + remote.path}


def server(folder: Path) -> dict[str, str]:
    """Return what makes a build's server its own, reached in `folder`, and not one that is running already.

    Older than 0.9.0 it does not listen to that; nor does any to a path that is too long.
    """
    address = folder / "sccache"
    return {ADDRESS: str(address)} if len(os.fsencode(address)) <= LONGEST_ADDRESS else {}


def started(program: str, environ: Mapping[str, str], note: Callable[[str], None]) -> dict[str, str]:
    """Start the server that a build will use, and return the build's environment, less what does not work.

    Clients that come together would each start one, and only the last of these would be heard; where none can
    start, each would wait for it in vain.
    """
    why = _start(program, environ)
    if why is None:
        return dict(environ)
    alone = {name: value for name, value in environ.items() if not name.startswith((*_SHARED, *_BUCKET))}
    if alone != environ and _start(program, alone) is None:
        note(f"sccache cannot use the shared cache ({why}): building with this machine's alone")
        return alone
    note(f"sccache cannot start ({why}): building without a compiler cache")
    return {name: value for name, value in alone.items() if name != IN_USE}


def _start(program: str, environ: Mapping[str, str]) -> str | None:
    """Return why the server does not start, None where it does."""
    try:
        capture([program, "--start-server"], env=environ)
    except (CommandError, HostError) as error:
        return str(error)
    return None


def statistics(program: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what the build's own server says when it has put everything away; None where that is gone.

    It answers before it writes, and what it has not written when it ends is lost.
    """
    read_only = any(name.endswith(_MODE) and value == _READ_ONLY for name, value in environ.items())
    end = time.monotonic() + PATIENCE
    while True:
        said = _asked(program, environ)
        if said is None or not _busy(said, read_only) or time.monotonic() > end:
            return said
        time.sleep(0.1)


def _asked(program: str, environ: Mapping[str, str]) -> dict[str, Any] | None:
    if ADDRESS not in environ or not Path(environ[ADDRESS]).is_socket():
        return None
    try:
        said = json.loads(capture([program, "--show-stats", "--stats-format=json"], env=environ))
    except (CommandError, HostError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def _busy(said: Mapping[str, Any], read_only: bool) -> bool:
    """Tell whether objects are still being written, to the disk or to a shared cache."""
    stats = said.get("stats") or {}
    written: list[int] = [stats.get("cache_writes", 0) + stats.get("cache_write_errors", 0)]
    if not read_only:
        layers = stats.get("multi_level") or []
        written += [one.get("writes", 0) + one.get("write_failures", 0) for one in layers]
    return min(written) < _sum(stats, "cache_misses")


def count(said: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return hits, misses, hits in a shared cache, and how often that failed, from sccache's statistics."""
    stats = said.get("stats") or {}
    hits = _sum(stats, "cache_hits")
    layers = stats.get("multi_level") or []
    only_shared = not layers and not str(said.get("cache_location")).startswith(("Local disk", "Multi-level"))
    shared = hits if only_shared else sum(layer.get("hits", 0) for layer in layers[1:])
    failed = sum(layer.get("write_failures", 0) for layer in layers[1:])
    return hits, _sum(stats, "cache_misses"), shared, failed


def _sum(stats: Mapping[str, Any], name: str) -> int:
    return sum(map(int, (stats.get(name) or {}).get("counts", {}).values()))
