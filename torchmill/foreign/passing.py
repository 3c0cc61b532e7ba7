"""What of a user's settings reaches a container: of network, pip and compiler cache, with their files."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote, urlsplit

from torchmill.containers.running import Mount

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
# Of pip's settings those that say where it finds packages, and not what it does with them.
PIP = (
    "index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "cert", "client-cert",
    "timeout", "default-timeout", "retries",
)  # fmt: skip
_FILES = (*CERTIFICATES, "PIP_CERT", "PIP_CLIENT_CERT")
_INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
# The shared compiler cache, and who may use it. A local one has its place already.
CACHES = ("TORCHMILL_CACHE", "CCACHE_REMOTE_*", "CCACHE_MAXSIZE", "SCCACHE_*", "AWS_*", "ACTIONS_R*")
PLACES = ("SCCACHE_DIR", "AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")  # not there
CCACHE = "CCACHE_DIR"


@dataclass(frozen=True, slots=True)
class Passed:
    """What a container gets of its user's environment."""

    variables: Mapping[str, str]
    mounts: tuple[Mount, ...]  # of the files that they name, each where it lies here


def passed(environ: Mapping[str, str], pip: Mapping[str, str], exists: Callable[[str], bool]) -> Passed:
    """Return what is passed on of an environment and of pip's settings (option -> value)."""
    found = {name: value for name, value in environ.items() if value and _goes(name)}
    found |= {_variable(option): value for option, value in pip.items() if option in PIP}
    mounts = [Mount(path, path) for path in _read(found, exists)]
    mounts += [Mount(path, path, writable=True) for path in _written(found)]
    return Passed(found, tuple(dict.fromkeys(mounts)))


def settings(listing: str) -> dict[str, str]:
    """Return pip's settings by their options, from what `pip config list` prints.

    What the environment says wins over files, and what is for `pip install` over what is for all commands.
    """
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section in found and value:
            found[section][option] = " ".join(_text(value).split())
    return found["global"] | found["install"] | found[":env:"]


def _text(value: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return value


def _variable(option: str) -> str:
    return f"PIP_{option.upper().replace('-', '_')}"


def _goes(name: str) -> bool:
    if name.upper() in PROXIES or name in {*CERTIFICATES, CCACHE, "NO_COLOR"}:
        return True
    return name not in PLACES and any(fnmatchcase(name, pattern) for pattern in CACHES)


def _read(found: Mapping[str, str], exists: Callable[[str], bool]) -> Iterator[str]:
    """Yield the files and folders that are only read and exist: certificates, and places of packages."""
    yield from filter(exists, _plain(found))
    for index in filter(exists, _local(" ".join(found.get(name, "") for name in _INDEXES).split())):
        yield posixpath.dirname(index) if index.count("/") > 1 else index  # its pages lead to files beside it


def _plain(found: Mapping[str, str]) -> Iterator[str]:
    yield from _local(found.get(name, "") for name in _FILES)
    yield from _local(found.get("PIP_FIND_LINKS", "").split())


def _written(found: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders of compiler caches."""
    yield from _local([found.get(CCACHE, ""), found.get("TORCHMILL_CACHE", "").partition("#")[0]])


def _local(places: Iterable[str]) -> Iterator[str]:
    """Yield the paths among some places: those that begin at the root, also as file://."""
    for place in places:
        address = urlsplit(place)
        path = unquote(address.path) if address.scheme == "file" else place
        if path.startswith("/"):
            yield path.rstrip("/") or "/"
