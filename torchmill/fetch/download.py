"""Download files over HTTP, resume broken downloads, and explain hosts that do not answer."""

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
from torchmill.core.digests import hash_file
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.lenient_paths import find_paths
from torchmill.core.silence import SilentError, silence_limit, until_silent
from torchmill.core.system_errors import report_unwritable
from torchmill.core.units import format_bytes
from torchmill.core.urls import hide_password, host_of

if TYPE_CHECKING:
    import requests

_CHUNK_BYTES = 1 << 18
_CONNECT_TIMEOUT_SECONDS = 5.0
# Limit for a page that is read into memory; the longest page of the package index has 5 MB.
LARGEST_BODY_BYTES = 64 << 20
# If the server compressed its answer, Content-Length and Range would count compressed bytes.
_UNCOMPRESSED = {"Accept-Encoding": "identity"}
_DEFAULT_PORTS = {"https": 443, "http": 80, "git": 9418}
_WEAK_TAG = "W/"  # begins an ETag that does not promise the same bytes (RFC 9110, 8.8.1)


def download_file(
    url: str,
    folder: Path,
    bar: ProgressBar,
    *,
    network_hint: str,
    refusal_hint: str,
    sha256: str | None = None,
    size: int | None = None,
) -> Path:
    """Return the path of a complete file, downloaded from an http(s) URL into `folder`.

    A broken download is resumed if the server identifies the version of its file, or if the digest
    is known; then the digest shows whether the parts belong together.

    `network_hint` and `refusal_hint` end the messages about a host that does not answer, and about
    one that does not give the file. `sha256` and `size` (bytes) are what an index lists.

    Raises NetworkError if the host cannot be reached or the connection breaks (the part that has
    arrived stays for the next try), SourceError if the host refuses the file or sends another one
    (which is deleted), HostError if the disk is full.
    """
    target = folder / (Path(unquote(urlsplit(url).path)).name or "archive")
    if not target.exists():
        _download(url, target, bar, network_hint, refusal_hint, sha256=sha256, size=size)
    if sha256 is None:
        return target
    actual = hash_file(target)
    if actual != sha256:
        target.unlink()
        raise SourceError(
            f"{target.name} is not the expected file (its sha256 is {actual}, not {sha256}) and "
            f"was deleted: run the command again, or {network_hint}",
            code="wrong-digest",
        )
    return target


def _download(
    url: str,
    target: Path,
    bar: ProgressBar,
    network_hint: str,
    refusal_hint: str,
    *,
    sha256: str | None,
    size: int | None,
) -> None:
    """Download a file beside its target and rename it when it is complete."""
    import requests
    import urllib3

    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    # the ETag or date of the version that the part is of
    version_file = target.with_name(f"{target.name}.mark")
    # without either, the part could be of another version of the file
    is_resumable = part.exists() and (bool(sha256) or version_file.exists())
    offset = part.stat().st_size if is_resumable else 0
    headers = _resume_headers(offset, version_file)
    try:
        with (
            report_unwritable(target.parent),
            http_session() as session,
            open_url(session, url, headers) as (response, chunks),
        ):
            _note_version(response, version_file)
            _write_part(response, chunks, part, bar, size)
    except requests.HTTPError as error:
        response = error.response
        if response.status_code != requests.codes.requested_range_not_satisfiable:
            raise SourceError(
                f"{hide_password(url)}: {describe_http_error(error)}: {refusal_hint}",
                code="download-refused",
            ) from None
        # No range begins at the end of a file, so a part that is complete already is answered with
        # 416 and the file's length (RFC 9110, 15.5.17). Any other length is another file.
        if response.headers.get("Content-Range") != f"bytes */{offset}":
            part.unlink(missing_ok=True)
            raise SourceError(
                f"{hide_password(url)} has changed since the download began: run the command again "
                "to download all of it",
                code="download-changed",
            ) from None
    except requests.RequestException as error:
        raise NetworkError(
            f"cannot reach {host_of(url)} ({describe_http_error(error)}): {network_hint}",
            code="host-unreachable",
        ) from None
    except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, SilentError):
        arrived = format_bytes(part.stat().st_size if part.exists() else 0)
        raise NetworkError(
            f"the connection to {host_of(url)} broke after {arrived}: run the command again to "
            f"resume, or {network_hint}",
            code="connection-broken",
        ) from None
    version_file.unlink(missing_ok=True)
    part.rename(target)


def _resume_headers(offset: int, version_file: Path) -> dict[str, str]:
    """Return the headers that ask for a file from a byte on (0: for all of it)."""
    if not offset:
        return {}
    headers = {"Range": f"bytes={offset}-"}
    if version_file.exists():
        # a file that has changed since then comes whole, with status 200
        headers["If-Range"] = version_file.read_text(encoding="utf-8")
    return headers


def _note_version(response: requests.Response, version_file: Path) -> None:
    """Write down which version of a file a server sends, if it says so."""
    tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if tag and not tag.startswith(_WEAK_TAG):
        version_file.write_text(tag, encoding="utf-8")


def _write_part(
    response: requests.Response,
    chunks: Iterator[bytes],
    part: Path,
    bar: ProgressBar,
    size: int | None,
) -> None:
    """Append the content of a response to a part, or replace the part if all of the file comes.

    Raises SourceError, and deletes the part, if more than `size` bytes come.
    """
    import requests

    is_continued = response.status_code == requests.codes.partial_content
    with part.open("ab" if is_continued else "wb") as file:
        done = file.tell()
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        for chunk in chunks:
            file.write(chunk)
            done += len(chunk)
            if size is not None and done > size:
                part.unlink()
                raise SourceError(
                    f"{host_of(response.url)} sends more than the {size} bytes that {part.stem} "
                    "is listed with: nothing of it is kept; tell whoever runs that host",
                    code="download-too-long",
                )
            bar.update(done, total, "downloading")


@contextlib.contextmanager
def open_url(
    session: requests.Session, url: str, headers: Mapping[str, str]
) -> Iterator[tuple[requests.Response, Iterator[bytes]]]:
    """Give the response to a GET request and an iterator over its content as it arrives.

    Raises requests.HTTPError for a refusal, SilentError if the host sends nothing or too slowly,
    SourceError if it redirects to something that is no URL, and whatever else requests and urllib3
    raise. Reading the content raises the same errors.
    """
    import requests

    def receive() -> Iterator[bytes | requests.Response]:
        limit = silence_limit()
        all_headers = {**_UNCOMPRESSED, **headers}
        with session.get(url, headers=all_headers, stream=True, timeout=(limit, limit)) as response:
            response.raise_for_status()
            yield response
            # Not iter_content: if the connection breaks, that loses the chunk it was filling.
            while chunk := response.raw.read1(_CHUNK_BYTES):
                yield chunk

    def count_bytes(item: bytes | requests.Response) -> int:
        return len(item) if isinstance(item, bytes) else _CHUNK_BYTES

    items = until_silent(receive(), host_of(url), count_bytes)
    try:
        response = cast("requests.Response", next(items))
    except ValueError as error:
        # requests' own errors are OSError, and InvalidURL is a ValueError too. A redirect to
        # http://[bad/ raises one or the other, depending on who parses it first.
        if isinstance(error, OSError) and not isinstance(error, requests.exceptions.InvalidURL):
            raise
        reason = hide_password(str(error))
        raise SourceError(
            f"{hide_password(url)} redirects to an invalid address ({reason}): give "
            "another address",
            code="invalid-redirect",
        ) from None
    with contextlib.closing(items):
        yield response, cast("Iterator[bytes]", items)


def read_body(
    session: requests.Session, url: str, headers: Mapping[str, str]
) -> tuple[requests.Response, bytes]:
    """Return the response to a GET request together with its whole content.

    Raises what `open_url` does, and NetworkError if there are more than LARGEST_BODY_BYTES.
    """
    body = bytearray()
    with open_url(session, url, headers) as (response, chunks):
        for chunk in chunks:
            body += chunk
            if len(body) > LARGEST_BODY_BYTES:
                raise NetworkError(
                    f"{hide_password(url)} has more than {format_bytes(LARGEST_BODY_BYTES)}, which "
                    "no such page has: give another address",
                    code="page-too-large",
                )
    return response, bytes(body)


def http_session() -> requests.Session:
    """Return a session that trusts the system's certificates.

    requests would use those of certifi, in which a company's own certificates are missing.
    """
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = "torchmill"
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        session.verify = paths.cafile
    elif paths.capath and find_paths(Path(paths.capath), "????????.[0-9]"):
        # OpenSSL finds certificates in a folder only under such hashed names; RHEL's has none
        session.verify = paths.capath
    return session


def describe_http_error(error: Exception) -> str:
    """Return the reason of an error, as a clause: the first cause in the chain of requests."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"it answers {response.status_code} {response.reason}"
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    reason = getattr(cause, "strerror", None) or str(cause)
    return reason.lower()


def connection_complaint(url: str) -> str | None:
    """Return why no connection to a URL's host can be made within 5 seconds; None if it can.

    None also if a proxy is configured, because only the proxy can tell, and for schemes without a
    port that is known here.
    """
    parts = urlsplit(url)
    has_proxy = not getproxies_environment().keys().isdisjoint(("https", "http", "all"))
    if parts.hostname is None or parts.scheme not in _DEFAULT_PORTS or has_proxy:
        return None
    try:
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        address = (parts.hostname, port)
        socket.create_connection(address, timeout=_CONNECT_TIMEOUT_SECONDS).close()
    except TimeoutError:
        return f"no answer in {_CONNECT_TIMEOUT_SECONDS:.0f} s"
    except (OSError, ValueError) as error:
        # a ValueError's own text may quote a part of a password, so it is not shown
        reason = getattr(error, "strerror", None) or "it is not an address"
        return reason.lower()
    return None
