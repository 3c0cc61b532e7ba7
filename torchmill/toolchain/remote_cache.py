"""A compiler cache that machines share: one setting for all tools."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from torchmill.core.errors import ConfigError

VARIABLE = "TORCHMILL_CACHE"
NONE = "none"  # in its place: no compiler cache at all
FORMS = "redis://HOST:PORT/NUMBER, http://HOST/PATH, https://HOST/PATH, file:///FOLDER, s3://BUCKET/PREFIX, gha or none"
READ_ONLY = "read-only"  # after a #: what is compiled here is not put into it
REMOTE_TIMEOUT_SECONDS = 3.0  # seconds that a server gets to answer before the build
_PORTS = {"redis": 6379, "rediss": 6379, "http": 80, "https": 443}
_SCHEMES = {*_PORTS, "file", "s3"}
_OPTIONS = {"s3": {"endpoint", "region"}, "http": {"layout"}}  # what may follow a question mark
_PROXIES = {"http_proxy", "https_proxy", "all_proxy"}  # in either case; ccache and Redis go by none
_GHA = ("ACTIONS_RESULTS_URL", "ACTIONS_RUNTIME_TOKEN")


@dataclass(frozen=True, slots=True)
class RemoteCache:
    """Where a shared cache is; its user and password are never shown."""

    scheme: str  # "redis", "rediss", "http", "https", "file", "s3", "gha"
    host: str = ""  # of s3 the bucket
    port: int | None = None
    path: str = ""  # without its last slash; of redis the number of the database
    user: str = ""
    password: str = ""
    options: Mapping[str, str] = field(
        default_factory=dict
    )  # of s3 its endpoint and region, of http the layout
    read_only: bool = False

    def __str__(self) -> str:
        """Return it without user and password."""
        return "gha" if self.scheme == "gha" else f"{self.scheme}://{self.address}{self.path}"

    @property
    def address(self) -> str:
        """Return the host, with its port where it has one; an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Return the host and port that must answer; None where there is none, or none is known."""
        if self.scheme in _PORTS:
            return self.host, self.port or _PORTS[self.scheme]
        if own := self.options.get("endpoint"):
            url = urlsplit(own if "://" in own else f"http://{own}")
            return url.hostname or "", url.port or _PORTS[url.scheme]
        return None


def parse_remote(text: str) -> RemoteCache | None:
    """Return what the setting names; None for nothing, and for no cache at all.

    Raises ConfigError for anything that names no cache.
    """
    if text in {"", NONE}:
        return None
    body, _, flag = text.partition("#")
    if flag not in {"", READ_ONLY}:
        raise _setting_error(text, f"'#{flag}' is not '#{READ_ONLY}'")
    if body == "gha":
        return RemoteCache("gha", read_only=bool(flag))
    if not body.isprintable() or any(sign in body for sign in " |\\"):
        raise _setting_error(text, "it contains a space, a bar or a backslash")
    try:
        found = _remote(urlsplit(body), read_only=bool(flag))
        checked = found.endpoint
    except (ValueError, KeyError) as error:
        raise _setting_error(text, str(error)) from None
    if checked is not None and not checked[0]:
        raise _setting_error(text, "it has no host")
    return found


def _remote(url: SplitResult, *, read_only: bool) -> RemoteCache:
    """Return what a URL names; raises ValueError that says what is wrong with it."""
    more = dict(parse_qsl(url.query, keep_blank_values=True))
    path = (unquote(url.path) if url.scheme == "file" else url.path).rstrip("/")
    if url.scheme not in _SCHEMES:
        raise ValueError(f"'{url.scheme}' is not a supported kind of cache")
    if unknown := more.keys() - _OPTIONS.get(url.scheme, set()):
        raise ValueError(f"'{min(unknown)}' is not an option of this cache")
    if url.scheme == "file" and (url.netloc or not path.startswith("/")):
        raise ValueError("a folder begins with a slash: file:///FOLDER")
    if url.scheme != "file" and not url.hostname:
        raise ValueError("it has no host" if url.scheme in _PORTS else "it has no bucket")
    if url.scheme in {"redis", "rediss"} and path and not path[1:].isdecimal():
        raise ValueError(f"the database of Redis is a number, not '{path[1:]}'")
    if url.scheme == "s3" and url.username:
        raise ValueError(
            "credentials for a bucket belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    host = url.netloc if url.scheme == "s3" else url.hostname or ""  # buckets have capitals
    user, password = unquote(url.username or ""), unquote(url.password or "")
    return RemoteCache(url.scheme, host, url.port, path, user, password, more, read_only)


def _setting_error(text: str, why: str) -> ConfigError:
    before, sign, place = text.rpartition("@")
    who = before.partition("://")[2]
    if sign and ("@" in why or any(part in who for part in why.split("'")[1::2])):
        why = (
            "the part before the @ is not USER:PASSWORD: in these write / ? # [ as %2F %3F %23 %5B"
        )
    shown = f"{text.partition(':')[0]}://…@{place}" if sign else text
    return ConfigError(
        f"{VARIABLE} is '{shown}', but {why}: write {FORMS}", code="invalid-cache-setting"
    )


def why_unreachable(remote: RemoteCache, environ: Mapping[str, str]) -> str | None:
    """Return why a cache cannot be used now; None where nothing speaks against it."""
    if remote.scheme == "gha":
        missing = [name for name in _GHA if not environ.get(name)]
        return (
            f"{missing[0]} is not set: only a step of a workflow can export it" if missing else None
        )
    if remote.scheme == "file":
        return None if Path(remote.path).is_dir() else f"{remote.path} is not a folder"
    proxies = [environ[name] for name in environ if name.lower() in _PROXIES]
    if remote.endpoint is None or (any(proxies) and "redis" not in remote.scheme):
        return None
    try:
        socket.create_connection(remote.endpoint, REMOTE_TIMEOUT_SECONDS).close()
    except OSError as error:  # a name that is unknown, nobody who listens, nobody who answers
        return error.strerror or str(error)
    except UnicodeError:  # "cache..example"
        return f"{remote.host} is not a valid host name"
    return None
