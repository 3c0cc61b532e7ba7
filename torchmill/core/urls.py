"""URLs from users: checked before use, and shown without secrets.

The login of a URL is the user and password before its host: https://USER:PASSWORD@HOST/. Three
functions leave secrets out: `strip_login` of a valid URL that goes on to be used; for messages,
`redact_url` of a text that should be one URL, and `hide_password` of any text with URLs in it.
"""

import re
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from torchmill.core.errors import ConfigError, parse_option

# https://www.rfc-editor.org/rfc/rfc3986 allows no other characters.
_ALLOWED_CHARACTERS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
# "git@host:path", as scp and git write addresses. A single letter before the colon is a drive of
# Windows.
SCP_URL = re.compile(r"^(?:[\w.+-]+@)?[\w.-]{2,}:(?![:\\])(?!//)")
# The login of a URL in a text. A user without a password is hidden in http and https only, where it
# may be a token; in ssh it is "git".
_LOGIN = re.compile(r"(?i)(?<=//)[^/\s]*:[^/\s]*@|(?:(?<=https://)|(?<=http://))[^/\s]*@")
# A query is hidden because it may be a signature that opens a bucket, or contain a token.
_QUERY = re.compile(r"\?[^\s?'\")\\]*=[^\s'\")\\]*")
# The form of conda's servers: https://HOST/t/TOKEN/CHANNEL
_CONDA_TOKEN = re.compile(r"(//[^\s/]+(?:/[^\s/]+)*?/t)/[\w-]{8,}(?=/)")
_LOCAL_HOSTS = {"", "localhost"}  # in a file: URL


def validate_url(
    option: str, url: str, schemes: Collection[str], example: str, no_login: str = ""
) -> SplitResult:
    """Return the parts of a user's URL after checking that it can name a folder, such as an index.

    `option` names the option or variable that holds the URL, `example` is a valid URL. The URL may
    contain a login, unless `no_login` is given: the end of a message that says why it may not.

    Raises ConfigError for an invalid URL, with a message without login and query.
    """
    problem = _find_problem(url, schemes)
    if problem:
        raise ConfigError(
            f"{option} {redact_url(url)}: {problem}: write it as {example}", code="invalid-url"
        )
    parts = urlsplit(url)
    if no_login and "@" in parts.netloc:  # a user without a password may be a token
        raise ConfigError(f"{option} {redact_url(url)}: {no_login}", code="password-in-url")
    return parts


def _find_problem(url: str, schemes: Collection[str]) -> str:
    """Return a clause that says why a text is not the URL of a folder; "" if it is."""
    if not _ALLOWED_CHARACTERS.fullmatch(url):
        return "has characters that are not allowed in a URL (a space is %20)"
    try:
        parts = urlsplit(url)
        _ = parts.port  # an invalid port raises ValueError only when it is read
    except ValueError as error:
        # The text of the error may repeat a password.
        return "is not a URL" if "@" in url else f"is not a URL ({error})"
    if parts.scheme not in schemes:
        beginnings = ", ".join(f"{scheme}://" for scheme in schemes)
        return f"does not begin with {beginnings}"
    has_query = "?" in url or "#" in url
    if parts.scheme == "file":
        is_local = parts.netloc in _LOCAL_HOSTS and parts.path.startswith("/")
        is_folder = is_local and not has_query
        return "" if is_folder else "is not a folder on this machine"
    if not parts.hostname:
        return "names no server"
    return "has a query or a fragment, which no folder has" if has_query else ""


def strip_login(url: str) -> str:
    """Return a URL without its login; other text stays as it is."""
    # The scheme may be missing, as in "//host/path".
    return re.sub(r"^([\w+.-]*:?//)[^/?#]*@", r"\1", url)


def redact_url(url: str) -> str:
    """Return a text that a user gave as a URL, for a message, without login, token and query.

    The URL need not be valid, as in a message about a mistake in it.
    """
    # In an invalid URL, everything between the scheme and the last @ may be a part of a password.
    without_login = re.sub(r"^([A-Za-z][\w+.-]*:/*)?.*@", r"\1", url, flags=re.DOTALL)
    return re.split(r"[?#]", hide_password(without_login), maxsplit=1)[0]


def host_of(url: str) -> str:
    """Return the host of a URL, also of the form "git@host:path"; a path is returned as it is.

    Raises ConfigError for an invalid URL such as http://[bad/.
    """
    if SCP_URL.match(url):
        return url.split(":", 1)[0].rpartition("@")[2]
    demand = f"correct the address {redact_url(url)}"  # begins the message of the error
    parts = parse_option(demand, url, urlsplit, "invalid-url")
    return parts.hostname or url


def hide_password(text: str) -> str:
    """Return a text without the passwords, tokens and queries of the URLs in it."""
    text = _LOGIN.sub("", text)
    text = _CONDA_TOKEN.sub(r"\1", text)
    return _QUERY.sub("", text)
