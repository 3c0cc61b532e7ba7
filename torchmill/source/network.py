"""Whether a host answers, and what to say when it does not."""

import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from torchmill.errors import NetworkError
from torchmill.source.request import DEBIAN, PYPI, Request

PATIENCE = 5.0  # seconds for a host to take a connection
_PORTS = {"https": 443, "http": 80, "git": 9418}


def unreachable(host: str, why: str, request: Request) -> NetworkError:
    """Return the one error for a host that does not answer, with the ways around it."""
    return NetworkError(f"{host} cannot be reached ({why}): {ways_out(request)}")


def ways_out(request: Request) -> str:
    """Return what a user may do when the usual way to a source is closed."""
    ways = ["name a mirror of the repositories (`--mirror URL`)"] if request.package.repository else []
    ways.append("give a folder or an archive (`--from PATH|URL`)")
    if request.release.version in request.package.debian and request.origin != DEBIAN:
        ways.append("take it from Debian's source archive (`--from debian`)")
    if request.package.pypi and request.origin != PYPI:
        ways.append("take it from PyPI (`--from pypi`)")
    return f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else ways[0]


def complaint(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why no connection to a URL's host is made, or None.

    Behind a proxy nothing is known beforehand. Takes PATIENCE seconds at most, and what the resolver takes.
    """
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme not in _PORTS or _has_proxy(environment):
        return None
    try:
        port = parts.port or _PORTS[parts.scheme]
        socket.create_connection((parts.hostname, port), timeout=PATIENCE).close()
    except TimeoutError:
        return f"no answer in {PATIENCE:.0f} s"
    except (OSError, ValueError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None


def _has_proxy(environment: Mapping[str, str]) -> bool:
    names = ("https_proxy", "http_proxy", "all_proxy")
    return any(environment.get(name) or environment.get(name.upper()) for name in names)
