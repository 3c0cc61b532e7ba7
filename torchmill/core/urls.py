"""URLs that users pass: checked before use, and shown without secrets."""

import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from torchmill.core.errors import ConfigError, parse_option

_SIGNS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")  # RFC 3986 has no others
SCP_URL = re.compile(r"^(?:[\w.+-]+@)?[\w.-]{2,}:(?![:\\])(?!//)")  # "git@host:path"
# a user alone may be a token, but for ssh, where it is "git"
_LOGIN = re.compile(r"(?i)(?<=//)[^/\s]*:[^/\s]*@|(?:(?<=https://)|(?<=http://))[^/\s]*@")
_QUERY = re.compile(
    r"\?[^\s?'\")\\]*=[^\s'\")\\]*"
)  # which may be a signature that opens a bucket, or a token
_CONDA_TOKEN = re.compile(  # as conda's servers take it: https://HOST/t/TOKEN/CHANNEL
    r"(//[^\s/]+(?:/[^\s/]+)*?/t)/[\w-]{8,}(?=/)"
)
_HERE = {"", "localhost"}  # the machines that file: may name


def validate_url(
    option: str, url: str, schemes: Collection[str], example: str, no_login: str = ""
) -> SplitResult:
    """Return the parts of an address of a folder, which may have a user and a password in it.

    `option` is how the address was given, `example` how it should look, `no_login` why nobody may be named in it
    where others would see it. Raises ConfigError for what is no such address; the message has no user, no password,
    and no query.
    """
    if why := _wrong(url, schemes):
        raise ConfigError(
            f"{option} {redact_url(url)}: {why}: write it as {example}", code="invalid-url"
        )
    parts = urlsplit(url)
    if no_login and "@" in parts.netloc:  # be it a user alone, who may be a token
        raise ConfigError(f"{option} {redact_url(url)}: {no_login}", code="password-in-url")
    return parts


def _wrong(url: str, schemes: Collection[str]) -> str:
    """Return why something is no address of a folder; "" where it is one."""
    if not _SIGNS.fullmatch(url):
        return "has characters that are not allowed in a URL (a space is %20)"
    try:
        parts = urlsplit(url)
        _ = parts.port  # what is none is found only when it is asked for
    except ValueError as error:
        return f"is not a URL ({error})" if "@" not in url else "is not a URL"
    if parts.scheme not in schemes:
        return f"does not begin with {', '.join(f'{scheme}://' for scheme in schemes)}"
    if parts.scheme == "file":
        whole = parts.netloc in _HERE and parts.path.startswith("/")
        return "" if whole and not {"?", "#"} & set(url) else "is not a folder on this machine"
    if not parts.hostname:
        return "names no server"
    return "has a query or a fragment, which no folder has" if {"?", "#"} & set(url) else ""


def strip_login(url: str) -> str:
    """Return an address without its user and password; what is none stays as it is."""
    return re.sub(r"^([\w+.-]*:?//)[^/?#]*@", r"\1", url)


def redact_url(url: str) -> str:
    """Return whatever was given as an address such that a message may have it: better too little of it."""
    hidden = re.sub(r"^([A-Za-z][\w+.-]*:/*)?.*@", r"\1", url, flags=re.DOTALL)
    return re.split(r"[?#]", hide_password(hidden), maxsplit=1)[0]


def host_of(url: str) -> str:
    """Return the host that an address names, or the address of a folder. Raises ConfigError for http://[bad/."""
    if SCP_URL.match(url):
        return url.split(":", 1)[0].rpartition("@")[2]
    return (
        parse_option(
            f"correct the address {redact_url(url)}", url, urlsplit, "invalid-url"
        ).hostname
        or url
    )


def hide_password(url: str) -> str:
    """Return an address, or a text with some, without passwords and tokens."""
    return _QUERY.sub("", _CONDA_TOKEN.sub(r"\1", _LOGIN.sub("", url)))
