"""A compiler cache that machines share: one setting for all tools."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from torchmill.core.errors import ConfigError

VARIABLE = "TORCHMILL_CACHE"
NONE = "none"  # its value for no compiler cache at all
FORMS = (
    "redis://HOST:PORT/NUMBER, http://HOST/PATH, https://HOST/PATH, file:///FOLDER, "
    "s3://BUCKET/PREFIX, gha or none"
)
READ_ONLY = "read-only"  # after a #: nothing is written to the cache
REMOTE_TIMEOUT_SECONDS = 3.0  # for a server to accept a connection before the build
_PORTS = {"redis": 6379, "rediss": 6379, "http": 80, "https": 443}
_SCHEMES = {*_PORTS, "file", "s3"}
_OPTIONS = {"s3": {"endpoint", "region"}, "http": {"layout"}}  # in the query of a URL
_PROXIES = {"http_proxy", "https_proxy", "all_proxy"}  # in either case; Redis clients use none
_GHA = ("ACTIONS_RESULTS_URL", "ACTIONS_RUNTIME_TOKEN")


@dataclass(frozen=True, slots=True)
class RemoteCache:
    """The location of a shared cache; its user and password are never shown."""

    scheme: str  # "redis", "rediss", "http", "https", "file", "s3", "gha"
    host: str = ""  # of s3 the bucket
    port: int | None = None
    path: str = ""  # without its last slash; of redis the number of the database
    user: str = ""
    password: str = ""
    options: Mapping[str, str] = field(default_factory=dict)  # from the query of the URL
    read_only: bool = False

    def __str__(self) -> str:
        """Return the URL without user and password."""
        if self.scheme == "gha":
            return "gha"
        return f"{self.scheme}://{self.address}{self.path}"

    @property
    def address(self) -> str:
        """Return the host, with its port if it has one; an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Return the host and port of the server; None if there is no server, or it is unknown."""
        if self.scheme in _PORTS:
            return self.host, self.port or _PORTS[self.scheme]
        endpoint = self.options.get("endpoint")
        if not endpoint:
            return None
        url = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        return url.hostname or "", url.port or _PORTS[url.scheme]


def parse_remote(text: str) -> RemoteCache | None:
    """Return the cache that the setting names; None for "" and "none".

    Raises ConfigError for anything that names no cache.
    """
    if text in {"", NONE}:
        return None
    body, _, flag = text.partition("#")
    if flag not in {"", READ_ONLY}:
        raise _setting_error(text, f"'#{flag}' is not '#{READ_ONLY}'")
    if body == "gha":
        return RemoteCache("gha", read_only=bool(flag))
    # ccache separates URLs by spaces, and a URL and its attributes by bars.
    if not body.isprintable() or any(sign in body for sign in " |\\"):
        raise _setting_error(text, "it contains a space, a bar or a backslash")
    try:
        remote = _parse_url(urlsplit(body), read_only=bool(flag))
        endpoint = remote.endpoint  # raises for an invalid endpoint of s3
    except (ValueError, KeyError) as error:
        raise _setting_error(text, str(error)) from None
    if endpoint is not None and not endpoint[0]:
        raise _setting_error(text, "it has no host")
    return remote


def _parse_url(url: SplitResult, *, read_only: bool) -> RemoteCache:
    """Return the cache that a URL names; raise ValueError that says what is wrong with it."""
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    path = url.path
    if url.scheme == "file":
        path = unquote(path)
    path = path.rstrip("/")
    _validate(url, path, options)
    return RemoteCache(
        scheme=url.scheme,
        # urlsplit makes a hostname lowercase, but the names of some buckets have capitals.
        host=url.netloc if url.scheme == "s3" else url.hostname or "",
        port=url.port,
        path=path,
        user=unquote(url.username or ""),
        password=unquote(url.password or ""),
        options=options,
        read_only=read_only,
    )


def _validate(url: SplitResult, path: str, options: Mapping[str, str]) -> None:
    """Raise ValueError if a URL names no cache."""
    if url.scheme not in _SCHEMES:
        raise ValueError(f"'{url.scheme}' is not a supported kind of cache")
    unknown = options.keys() - _OPTIONS.get(url.scheme, set())
    if unknown:
        raise ValueError(f"'{min(unknown)}' is not an option of this cache")
    if url.scheme == "file":
        if url.netloc or not path.startswith("/"):
            raise ValueError("a folder begins with a slash: file:///FOLDER")
    elif not url.hostname:
        raise ValueError("it has no host" if url.scheme in _PORTS else "it has no bucket")
    if url.scheme in {"redis", "rediss"} and path and not path[1:].isdecimal():
        raise ValueError(f"the database of Redis is a number, not '{path[1:]}'")
    if url.scheme == "s3" and url.username:
        raise ValueError(
            "credentials for a bucket belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def _setting_error(text: str, reason: str) -> ConfigError:
    """Return the error for an invalid setting, without the user and password in it."""
    before, sign, after = text.rpartition("@")
    login = before.partition("://")[2]
    quoted_parts = reason.split("'")[1::2]
    # An unescaped sign in a password makes the parser take a part of it for a port or a path.
    has_secret = "@" in reason or any(part in login for part in quoted_parts)
    if sign and has_secret:
        reason = (
            "the part before the @ is not USER:PASSWORD: in these write / ? # [ as %2F %3F %23 %5B"
        )
    shown = f"{text.partition(':')[0]}://…@{after}" if sign else text
    return ConfigError(
        f"{VARIABLE} is '{shown}', but {reason}: write {FORMS}", code="invalid-cache-setting"
    )


def why_unreachable(remote: RemoteCache, environ: Mapping[str, str]) -> str | None:
    """Return why a cache cannot be used at the moment; None if no reason is known."""
    if remote.scheme == "gha":
        return _why_no_workflow(environ)
    if remote.scheme == "file":
        return None if Path(remote.path).is_dir() else f"{remote.path} is not a folder"
    if remote.endpoint is None or ("redis" not in remote.scheme and _has_proxy(environ)):
        return None  # a proxy may reach a server that this machine cannot
    try:
        socket.create_connection(remote.endpoint, REMOTE_TIMEOUT_SECONDS).close()
    except OSError as error:  # the name is unknown, the port closed, or the server silent
        return error.strerror or str(error)
    except UnicodeError:  # "cache..example"
        return f"{remote.host} is not a valid host name"
    return None


def _why_no_workflow(environ: Mapping[str, str]) -> str | None:
    """Return why GitHub's cache cannot be used; None if its variables are set."""
    for name in _GHA:
        if not environ.get(name):
            return f"{name} is not set: only a step of a workflow can export it"
    return None


def _has_proxy(environ: Mapping[str, str]) -> bool:
    return any(value for name, value in environ.items() if name.lower() in _PROXIES)
