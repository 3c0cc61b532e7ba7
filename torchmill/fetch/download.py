"""Download one file over HTTP, resuming after a broken connection; tell hosts that do not answer."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from torchmill.core.console import ProgressBar
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.files import find_paths, hash_file, report_unwritable
from torchmill.core.silence import SilentError, silence_limit, until_silent
from torchmill.core.units import format_bytes
from torchmill.core.urls import hide_password, host_of

if TYPE_CHECKING:
    import requests

_CHUNK_BYTES = 1 << 18
_CONNECT_TIMEOUT_SECONDS = 5.0
LARGEST_BODY_BYTES = (
    64 << 20
)  # of a page that is read as a whole; the longest of the package index has 5 MB
_PLAIN = {"Accept-Encoding": "identity"}  # else lengths and ranges would mean something else
Claim = tuple[
    str | None, int | None
]  # of a file: its sha256 and its bytes; None where nobody says it
_PORTS = {"https": 443, "http": 80, "git": 9418}


def download_file(
    url: str,
    folder: Path,
    bar: ProgressBar,
    *,
    otherwise: str,
    refused: str,
    said: Claim = (None, None),
) -> Path:
    """Return the file of an http(s) URL, complete, in `folder`.

    `said` are sha256 and bytes as an index has them. A download that broke off is resumed where the host tells which
    version of the file it has, or where the digest is known. Raises NetworkError that ends with `otherwise` (what has
    arrived is kept for the next try); SourceError that ends with `refused` if the host does not give the file;
    SourceError if it has more bytes or another digest, and is deleted; HostError for a full disk.
    """
    target = folder / (Path(unquote(urlsplit(url).path)).name or "archive")
    if not target.exists():
        _download(url, target, bar, otherwise, refused, said=said)
    sha256 = said[0]
    if sha256 is not None and (actual := hash_file(target)) != sha256:
        target.unlink()
        raise SourceError(
            f"{target.name} is not the expected file (its sha256 is {actual}, not {sha256}) and was "
            f"deleted: run the command again, or {otherwise}",
            code="wrong-digest",
        )
    return target


def _download(
    url: str, target: Path, bar: ProgressBar, otherwise: str, refused: str, *, said: Claim
) -> None:
    import requests
    import urllib3

    target.parent.mkdir(parents=True, exist_ok=True)
    part, mark = target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.mark")
    begun = part.stat().st_size if part.exists() and (said[0] or mark.exists()) else 0
    headers: dict[str, str] = {}
    if begun:
        headers["Range"] = f"bytes={begun}-"
        if mark.exists():  # a file that has changed since comes whole
            headers["If-Range"] = mark.read_text(encoding="utf-8")
    try:
        with (
            report_unwritable(target.parent),
            http_session() as session,
            open_url(session, url, headers) as (response, chunks),
        ):
            _receive(response, chunks, part, mark, bar, said[1])
    except requests.HTTPError as error:
        if error.response.status_code != requests.codes.requested_range_not_satisfiable:
            raise SourceError(
                f"{hide_password(url)}: {describe_http_error(error)}: {refused}",
                code="download-refused",
            ) from None
        if (
            error.response.headers.get("Content-Range") != f"bytes */{begun}"
        ):  # which would be all of it
            part.unlink(missing_ok=True)
            raise SourceError(
                f"{hide_password(url)} has changed since: run the command again to download all of it",
                code="download-changed",
            ) from None
    except requests.RequestException as error:
        raise NetworkError(
            f"cannot reach {host_of(url)} ({describe_http_error(error)}): {otherwise}",
            code="host-unreachable",
        ) from None
    except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, SilentError):
        arrived = format_bytes(part.stat().st_size if part.exists() else 0)
        raise NetworkError(
            f"the connection to {host_of(url)} broke after {arrived}: run the command again to resume, or {otherwise}",
            code="connection-broken",
        ) from None
    mark.unlink(missing_ok=True)
    part.rename(target)


def _receive(  # noqa: PLR0917 - what comes, where it goes, and what is known of it
    response: requests.Response,
    chunks: Iterator[bytes],
    part: Path,
    mark: Path,
    bar: ProgressBar,
    size: int | None,
) -> None:
    tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if tag and not tag.startswith("W/"):
        mark.write_text(tag, encoding="utf-8")
    with part.open("ab" if response.status_code == 206 else "wb") as file:  # noqa: PLR2004 (partial content)
        done = file.tell()
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        for chunk in chunks:
            file.write(chunk)
            done += len(chunk)
            if size is not None and done > size:
                part.unlink()
                what = f"{host_of(response.url)} sends more than the {size} bytes that {part.stem} is said to have"
                raise SourceError(
                    f"{what}: none of it is kept; tell whoever runs that host",
                    code="download-too-long",
                )
            bar.update(done, total, "downloading")


@contextlib.contextmanager
def open_url(
    session: requests.Session, url: str, headers: Mapping[str, str]
) -> Iterator[tuple[requests.Response, Iterator[bytes]]]:
    """Give the response to a request, and its content, as it comes.

    Raises SilentError for a host that sends nothing or too slowly, SourceError for an address that it leads
    to and that is none, and what requests and urllib3 raise; HTTPError for a refusal. So does the content.
    """
    import requests

    def answers() -> Iterator[bytes | requests.Response]:
        limit = silence_limit()
        with session.get(
            url, headers={**_PLAIN, **headers}, stream=True, timeout=(limit, limit)
        ) as response:
            response.raise_for_status()
            yield response
            # not iter_content: where the connection breaks, that loses the chunk it was filling
            while chunk := response.raw.read1(_CHUNK_BYTES):
                yield chunk

    came = until_silent(
        answers(), host_of(url), lambda item: len(item) if isinstance(item, bytes) else _CHUNK_BYTES
    )
    try:
        response = cast("requests.Response", next(came))
    except ValueError as error:  # a redirect to http://[bad/
        if isinstance(error, OSError) and not isinstance(error, requests.exceptions.InvalidURL):
            raise
        raise SourceError(
            f"{hide_password(url)} redirects to an invalid address ({hide_password(str(error))}): give another address",
            code="invalid-redirect",
        ) from None
    with contextlib.closing(came):
        yield response, cast("Iterator[bytes]", came)


def read_body(
    session: requests.Session, url: str, headers: Mapping[str, str]
) -> tuple[requests.Response, bytes]:
    """Return the response to a request, and its content. Raises what `open_url` does.

    Raises NetworkError for content of more than LARGEST_BODY_BYTES.
    """
    body = bytearray()
    with open_url(session, url, headers) as (response, chunks):
        for chunk in chunks:
            body += chunk
            if len(body) > LARGEST_BODY_BYTES:
                raise NetworkError(
                    f"{hide_password(url)} has more than {format_bytes(LARGEST_BODY_BYTES)}, which no such "
                    "page has: give another address",
                    code="page-too-large",
                )
    return response, bytes(body)


def http_session() -> requests.Session:
    """Return a session that trusts the certificates that the system trusts (certifi has no company's own)."""
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = "torchmill"
    paths = ssl.get_default_verify_paths()
    hashed = paths.capath and find_paths(
        Path(paths.capath), "????????.[0-9]"
    )  # which OpenSSL looks for: RHEL has none
    session.verify = paths.cafile or (paths.capath if hashed else True)
    return session


def describe_http_error(error: Exception) -> str:
    """Return what went wrong as a clause: the first cause of the chain that requests reports."""
    if (answer := getattr(error, "response", None)) is not None:
        return f"it answers {answer.status_code} {answer.reason}"
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return (getattr(cause, "strerror", None) or str(cause)).lower()


def connection_complaint(url: str) -> str | None:
    """Return why no connection to a URL's host is made in 5 seconds, or None; None with a proxy."""
    parts = urlsplit(url)
    has_proxy = not getproxies_environment().keys().isdisjoint(("https", "http", "all"))
    if parts.hostname is None or parts.scheme not in _PORTS or has_proxy:
        return None
    try:
        port = parts.port or _PORTS[parts.scheme]
        socket.create_connection((parts.hostname, port), timeout=_CONNECT_TIMEOUT_SECONDS).close()
    except TimeoutError:
        return f"no answer in {_CONNECT_TIMEOUT_SECONDS:.0f} s"
    except (OSError, ValueError) as error:  # the text of the latter may have a part of a password
        return (getattr(error, "strerror", None) or "it is not an address").lower()
    return None
