"""What to fetch and from where: mirrors, allowed URLs, and the error when a host does not answer."""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from torchmill.config.model import Facts, Package, Release
from torchmill.core.errors import ConfigError, NetworkError, SourceError
from torchmill.core.urls import SCP_URL, hide_password

DEBIAN, PYPI = "debian", "pypi"  # the words after --from that name no path
_SHA = re.compile(r"[0-9a-f]{40}")
_NOT_IN_A_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.lock$")


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One source to fetch, and where it may come from."""

    package: Package
    release: Release
    ref: str | None = None  # a branch or a commit, in place of the release's tag
    mirror: str | None = None  # where the repositories are, in place of their own hosts
    origin: str | None = None  # a folder, an archive, its URL, "debian" or "pypi", in place of git

    @property
    def what(self) -> str:
        """Return its name in messages."""
        return f"{self.package.name} {self.ref or self.release.tag}"


def source_requests(
    facts: Facts, releases: Sequence[Release], *, ref: str, mirror: str, origin: str
) -> tuple[SourceRequest, ...]:
    """Return the requests for the sources of some releases.

    A package without a repository comes from PyPI unless `origin` says otherwise. Raises ConfigError for a
    ref of several packages.
    """
    if ref and len(releases) > 1:
        raise ConfigError("--ref names a commit of one package: fetch one at a time", code="ref-of-several")
    requests = []
    for each in releases:
        package = facts.packages[each.package]
        in_git = bool(package.repository)
        source = origin or (None if in_git else PYPI)
        requests.append(SourceRequest(package, each, ref or None, (in_git and mirror) or None, source))
    return tuple(requests)


def is_commit(ref: str | None) -> bool:
    """Tell whether a ref is a full commit id, which never moves."""
    return ref is not None and _SHA.fullmatch(ref) is not None


def validate_request(request: SourceRequest) -> None:
    """Raise ConfigError for options that are invalid, or exclude each other."""
    if request.origin is not None and request.mirror is not None:
        raise ConfigError(
            "--from and --mirror exclude each other: a mirror holds git repositories; give one",
            code="conflicting-options",
        )
    if request.origin is not None and request.ref is not None:
        raise ConfigError(
            f"--ref {request.ref} names something in git, which --from does not ask; leave one out",
            code="conflicting-options",
        )
    for name in (request.ref, request.release.tag):
        if name is not None and (not name or name.startswith("-") or _NOT_IN_A_REF.search(name)):
            raise ConfigError(
                f"'{name}' cannot be the name of a tag, branch or commit: check --tag and --ref",
                code="invalid-ref",
            )
    if request.release.tag.startswith(".") or "/" in request.release.tag:
        raise ConfigError(
            f"the tag '{request.release.tag}' cannot name a folder: correct build_configs/releases",
            code="invalid-ref",
        )


CONNECT_TIMEOUT_SECONDS = 5.0
_PORTS = {"https": 443, "http": 80, "git": 9418}


def unreachable_error(host: str, why: str, request: SourceRequest) -> NetworkError:
    """Return the one error for a host that does not answer, with the ways around it."""
    return NetworkError(f"cannot reach {host} ({why}): {ways_out(request)}", code="host-unreachable")


def ways_out(request: SourceRequest) -> str:
    """Return what a user may do when the usual way to a source is closed."""
    ways = ["name a mirror of the repositories (`--mirror URL`)"] if request.package.repository else []
    ways.append("give a folder or an archive (`--from PATH|URL`)")
    if request.release.version in request.package.debian and request.origin != DEBIAN:
        ways.append("take it from Debian's source archive (`--from debian`)")
    if request.package.pypi and request.origin != PYPI:
        ways.append("take it from PyPI (`--from pypi`)")
    return f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else ways[0]


def connection_complaint(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why no connection to a URL's host is made, or None.

    Behind a proxy the answer is always None. Takes CONNECT_TIMEOUT_SECONDS at most.
    """
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme not in _PORTS or _has_proxy(environment):
        return None
    try:
        port = parts.port or _PORTS[parts.scheme]
        socket.create_connection((parts.hostname, port), timeout=CONNECT_TIMEOUT_SECONDS).close()
    except TimeoutError:
        return f"no answer in {CONNECT_TIMEOUT_SECONDS:.0f} s"
    except (OSError, ValueError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None


def _has_proxy(environment: Mapping[str, str]) -> bool:
    names = ("https_proxy", "http_proxy", "all_proxy")
    return any(environment.get(name) or environment.get(name.upper()) for name in names)


PROTOCOLS = ("https", "ssh", "git", "file")
# GitHub answers neither of these any more; old releases name submodules so.
_RETIRED = re.compile(r"^(?:git|http)://(?:www\.)?github\.com/")


def mirror_candidates(url: str, mirror: str | None) -> tuple[str, ...]:
    """Return the addresses to try in turn for a repository.

    In a mirror, https://host/OWNER/NAME(.git) is MIRROR/OWNER/NAME.git or MIRROR/NAME.git. Raises
    SourceError for a protocol that could run commands or cannot be trusted.
    """
    if mirror is None:
        return (require_allowed_url(_RETIRED.sub("https://github.com/", url)),)
    base = (require_allowed_url(mirror) if _has_host(mirror) else Path(mirror).resolve().as_uri()).rstrip("/")
    parts = [part for part in re.split(r"[/:\\]", url.rstrip("/").removesuffix(".git")) if part]
    if not parts or any(part in {".", ".."} for part in parts[-2:]):
        raise SourceError(
            f"'{url}' names no repository that a mirror could have: leave out --mirror", code="not-mirrorable"
        )
    owned = f"{base}/{'/'.join(parts[-2:])}.git"
    return (owned, f"{base}/{parts[-1]}.git")


def require_allowed_url(url: str) -> str:
    """Return `url`, or raise SourceError where git would do more than fetch from it."""
    scheme = url.split("://", 1)[0] if "://" in url else None
    fine = scheme in PROTOCOLS if scheme else not re.match(r"^\w+::", url)
    if url.startswith("-") or not fine or any(ord(letter) < ord(" ") for letter in url):
        raise SourceError(
            f"'{hide_password(url)}' is not fetched from: give an address of {', '.join(PROTOCOLS[:-1])} "
            f"or {PROTOCOLS[-1]}",
            code="untrusted-protocol",
        )
    return url


def _has_host(mirror: str) -> bool:
    return "://" in mirror or "::" in mirror or SCP_URL.match(mirror) is not None
