"""A compiler cache that machines share: one setting for ccache and sccache.

The setting is the environment variable TORCHMILL_CACHE. Its value is a URL.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from torchmill.core.errors import ConfigError

VARIABLE = "TORCHMILL_CACHE"
NONE = "none"  # the value that switches compiler caches off
# The values of the variable that messages suggest.
FORMS = (
    "redis://HOST:PORT/NUMBER, http://HOST/PATH, https://HOST/PATH, file:///FOLDER, "
    "s3://BUCKET/PREFIX, gha or none"
)
READ_ONLY = "read-only"  # a fragment of the URL ("…#read-only"): builds do not write to the cache
REMOTE_TIMEOUT_SECONDS = 3.0  # in which each address of a server must accept a connection
_PORTS = {"redis": 6379, "rediss": 6379, "http": 80, "https": 443}
_SCHEMES = {*_PORTS, "file", "s3"}
_ENDPOINT_SCHEMES = {"http", "https"}  # of a bucket's server
_OPTIONS = {"s3": {"endpoint", "region"}, "http": {"layout"}}  # in the query of a URL
# Variables that name a proxy, in lower or upper case. Clients of Redis ignore them.
_PROXY_VARIABLES = {"http_proxy", "https_proxy", "all_proxy"}
# GitHub gives these only to actions: a step of the workflow must export them to its other steps.
_GHA_VARIABLES = ("ACTIONS_RESULTS_URL", "ACTIONS_RUNTIME_TOKEN")


@dataclass(frozen=True, slots=True)
class RemoteCache:
    """The location of a shared cache, and the login for it."""

    scheme: str  # "redis", "rediss", "http", "https", "file", "s3", "gha"
    host: str = ""  # for s3, the bucket
    port: int | None = None
    path: str = ""  # without a slash at its end; for redis, "/" and the number of the database
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict)  # from the query of the URL
    read_only: bool = False

    def __str__(self) -> str:
        """Return the URL for messages: without user, password, options and fragment."""
        if self.scheme == "gha":
            return "gha"
        return f"{self.scheme}://{self.address}{self.path}"

    @property
    def address(self) -> str:
        """Return the host as in a URL: with a port if there is one, an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """Return the host and the port of the server; None for "gha", a folder and most buckets.

        The server of a bucket is known only if the URL has the option "endpoint". Raises ValueError
        if that option is not an address; `parse_remote` has checked it.
        """
        if self.scheme in _PORTS:
            return self.host, self.port or _PORTS[self.scheme]
        endpoint = self.options.get("endpoint")
        if not endpoint:
            return None
        url = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        if url.scheme not in _ENDPOINT_SCHEMES:
            raise ValueError(f"the endpoint's scheme '{url.scheme}' is not http or https")
        return url.hostname or "", url.port or _PORTS[url.scheme]


def parse_remote(text: str) -> RemoteCache | None:
    """Return the cache that a value of TORCHMILL_CACHE names; None for "" and "none".

    Raises ConfigError for any other text that is neither "gha" nor the URL of a cache.
    """
    if text in {"", NONE}:
        return None
    url, _, flag = text.partition("#")
    if flag not in {"", READ_ONLY}:
        raise _setting_error(text, f"'#{flag}' is not '#{READ_ONLY}'")
    is_read_only = flag == READ_ONLY
    if url == "gha":
        return RemoteCache("gha", read_only=is_read_only)
    # In its own setting, ccache separates URLs by spaces, and attributes from the URL by bars.
    if not url.isprintable() or any(character in url for character in " |\\"):
        raise _setting_error(
            text, "it contains a space, a control character such as a tab, a bar or a backslash"
        )
    try:
        remote = _parse_url(urlsplit(url), read_only=is_read_only)
        endpoint = remote.endpoint
    except ValueError as error:
        raise _setting_error(text, str(error)) from None
    if endpoint is not None and not endpoint[0]:
        raise _setting_error(text, "it has no host")
    return remote


def _parse_url(url: SplitResult, *, read_only: bool) -> RemoteCache:
    """Return the cache that a URL names.

    Raises ValueError if it names none. The message continues a sentence about the URL: "it has …".
    """
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    path = url.path
    if url.scheme == "file":
        path = unquote(path)
    path = path.rstrip("/")
    _validate(url, path, options)
    return RemoteCache(
        scheme=url.scheme,
        # `hostname` is in lower case, but the names of some buckets have capitals.
        host=url.netloc if url.scheme == "s3" else url.hostname or "",
        port=url.port,
        path=path,
        user=unquote(url.username or ""),
        password=unquote(url.password or ""),
        options=options,
        read_only=read_only,
    )


def _validate(url: SplitResult, path: str, options: Mapping[str, str]) -> None:
    """Raise ValueError, as `_parse_url` does, unless a URL names a cache.

    `path` and `options` are those that the cache would have.
    """
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
    if url.scheme == "s3" and url.port is not None:
        raise ValueError("a bucket has no port: its server belongs in ?endpoint=HOST:PORT")


def _setting_error(text: str, reason: str) -> ConfigError:
    """Return the error for an invalid setting; its message hides the setting's user and password.

    `reason` continues a sentence about the setting, and may quote parts of it.
    """
    before, at_sign, after = text.rpartition("@")
    public_text = text
    if at_sign:
        scheme, separator, login = before.partition("://")
        if not separator:
            login = before
            scheme = ""
        public_text = f"{scheme}{separator}…@{after}"
        # If a password has a "/" or "?", the parser takes a part of it for a port or a path, and
        # the reason quotes that part.
        quoted_parts = reason.split("'")[1::2]
        # A part with an @ reaches beyond the login, and so is not found in it. Double quotes and
        # backslashes are Python's, around a text with an apostrophe: the parts are not whole then.
        # The reasons of this module have none of these three characters of their own.
        is_unclear = any(character in reason for character in '@"\\')
        # A scheme is quoted in lower case, whatever the login has.
        quotes_login = any(part.lower() in login.lower() for part in quoted_parts)
        quotes_secret = is_unclear or quotes_login
        if quotes_secret:
            reason = (
                "the part before the @ is not USER:PASSWORD: in these write / ? # [ as "
                "%2F %3F %23 %5B"
            )
    return ConfigError(
        f"{VARIABLE} is '{public_text}', but {reason}: write {FORMS}", code="invalid-cache-setting"
    )


def unreachable_reason(remote: RemoteCache, environ: Mapping[str, str]) -> str | None:
    """Return in a few words why a cache cannot be used now; None if no reason is seen.

    If no proxy is used, the server is asked to accept a connection. Each of its addresses that does
    not answer takes REMOTE_TIMEOUT_SECONDS.
    """
    if remote.scheme == "gha":
        return _missing_variable_reason(environ)
    if remote.scheme == "file":
        return None if Path(remote.path).is_dir() else f"{remote.path} is not a folder"
    # A proxy may reach a server that this machine cannot reach by itself.
    uses_proxy = remote.scheme not in {"redis", "rediss"} and _has_proxy(environ)
    endpoint = remote.endpoint
    if endpoint is None or uses_proxy:
        return None
    try:
        socket.create_connection(endpoint, REMOTE_TIMEOUT_SECONDS).close()
    except OSError as error:  # the name is unknown, the port is closed, or the server is silent
        return error.strerror or str(error)
    except UnicodeError:  # "cache..example" cannot be encoded for a name server
        return f"{endpoint[0]} is not a valid host name"
    return None


def _missing_variable_reason(environ: Mapping[str, str]) -> str | None:
    """Return a clause on a variable that the cache of GitHub Actions lacks; None if all are set."""
    for name in _GHA_VARIABLES:
        if not environ.get(name):
            return f"{name} is not set: only a step of a workflow can export it"
    return None


def _has_proxy(environ: Mapping[str, str]) -> bool:
    """Tell whether an environment names a proxy."""
    return any(value for name, value in environ.items() if name.lower() in _PROXY_VARIABLES)
