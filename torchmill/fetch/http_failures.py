"""Describe failures of HTTP in a few words, and tell which of them may pass."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchmill.core import retries
from torchmill.core.retries import PassingFailure

if TYPE_CHECKING:
    import requests

# Refusals that ask to come back: Request Timeout, Too Early, Too Many Requests (RFC 9110, 8470,
# 6585). Other 4xx say that the request itself is wrong.
_PASSING_REFUSALS = {408, 425, 429}
_LOWEST_SERVER_ERROR = 500
_LASTING_SERVER_ERRORS = {501, 505}  # not implemented, HTTP version not supported
# What name servers answer if there is no such host; EAI_AGAIN is a name server that fails.
_NO_SUCH_HOST = {getattr(socket, name, None) for name in ("EAI_NONAME", "EAI_NODATA")}
# Of sockets whose network is down; Python has no class of its own for them.
_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
# A connection of TLS that ends, or whose bytes were changed on the way. Other errors of TLS come
# from certificates and settings, and last.
_BROKEN_TLS = (
    "eof",
    "closed",
    "bad record mac",
    "bad_record_mac",
    "decrypt",
    "record layer failure",
)

# Words in the message of a connection that would fail again, for those who have nothing but the
# message: a host that does not exist, a certificate that is not trusted.
LASTING_CONNECTION = re.compile(
    r"(?i)name or service not known|nodename nor servname|no address associated|certificate"
)


def describe_http_error(error: Exception) -> str:
    """Return the reason of an error of requests, as a clause.

    If there was no answer, the error wraps errors of other libraries. The innermost is the system's
    and has the reason, such as "connection refused".
    """
    response = getattr(error, "response", None)
    if response is not None:
        return f"it answers {response.status_code} {response.reason}"
    *_, cause = _causes(error)
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    reason = getattr(cause, "strerror", None) or str(cause)
    return reason.lower()


def judge_http(error: Exception) -> PassingFailure | None:
    """Return how a failure of requests, urllib3 or a socket may pass; None if it will not.

    Will not pass: refusals, except those that ask to come back; a host that does not exist;
    certificates that are not trusted; invalid addresses; errors of the disk.
    """
    import requests
    import urllib3

    if (failure := retries.judge_error(error)) is not None:
        return failure
    response = getattr(error, "response", None)
    if response is not None:
        return judge_response(response)
    connection_errors = (
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
        urllib3.exceptions.ProtocolError,
        urllib3.exceptions.IncompleteRead,
        urllib3.exceptions.TimeoutError,
        urllib3.exceptions.SSLError,
        ConnectionError,
        TimeoutError,
        socket.gaierror,
        ssl.SSLError,
    )
    is_network_unreachable = getattr(error, "errno", None) in _UNREACHABLE
    if not isinstance(error, connection_errors) and not is_network_unreachable:
        return None
    if any(_lasts(cause) for cause in _causes(error)):
        return None
    return PassingFailure(describe_http_error(error))


def judge_remote_zip(error: Exception) -> PassingFailure | None:
    """Return how a failure of remotezip may pass, which hides the error of requests behind its own."""
    from remotezip import RemoteZipError

    if isinstance(error, RemoteZipError) and isinstance(error.__context__, Exception):
        return judge_http(error.__context__)
    return judge_http(error)


def judge_response(response: requests.Response) -> PassingFailure | None:
    """Return how a refusal by a server may pass; None if it will not."""
    if not is_passing_status(response.status_code):
        return None
    reason = f"it answers {response.status_code} {response.reason}".rstrip()
    return PassingFailure(reason, retries.requested_pause(response.headers))


def is_passing_status(status: int) -> bool:
    """Tell whether a server that answers with a status may answer otherwise a moment later."""
    is_server_error = status >= _LOWEST_SERVER_ERROR and status not in _LASTING_SERVER_ERRORS
    return status in _PASSING_REFUSALS or is_server_error


def _lasts(cause: BaseException) -> bool:
    """Tell whether a connection that failed for this cause would fail again."""
    if isinstance(cause, socket.gaierror):
        return cause.errno in _NO_SUCH_HOST
    if isinstance(cause, ssl.SSLError):
        text = str(cause).lower()
        return not any(words in text for words in _BROKEN_TLS)
    # A proxy that refuses: "Tunnel connection failed: 407 Proxy Authentication Required".
    return "Tunnel connection failed: 4" in str(cause)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the error that it wraps, and so on, the innermost last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__context__
