"""Download files over HTTP, resume broken downloads, and explain hosts that do not answer.

While a file is downloaded, the part that has arrived lies beside it as "NAME.part", and
"NAME.validator" holds the validator of the file's version: its ETag or its date. A later try sends
the validator, so that the server continues only the same version (RFC 9110, 13.1.5). "NAME.lock" is
locked meanwhile: another process that wants the file waits for it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

from torchmill.core import locks, retries
from torchmill.core.console import ProgressBar
from torchmill.core.digests import hash_file
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.lenient_paths import find_paths
from torchmill.core.silence import SilentError, silence_limit, watch_for_silence
from torchmill.core.system_errors import report_unwritable
from torchmill.core.units import format_bytes
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.http_failures import describe_http_error, judge_http

if TYPE_CHECKING:
    import requests

_CHUNK_BYTES = 1 << 18  # at most, of a file that arrives
_CONNECT_TIMEOUT_SECONDS = 5.0
# Limit for a page that is read into memory; the longest page of the package index has 5 MB.
LARGEST_BODY_BYTES = 64 << 20
# If the server compressed its answer, Content-Length and Range would count compressed bytes.
_UNCOMPRESSED = {"Accept-Encoding": "identity"}
_DEFAULT_PORTS = {"https": 443, "http": 80, "git": 9418}
# A try that brings so many bytes of a file is progress, after which the tries are counted anew.
_ADVANCE_BYTES = 1 << 20
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

    A file that is in the folder already is not downloaded again, but its digest is compared. A
    broken download is resumed if the server gives a validator, or if the digest is known, which
    shows whether two parts belong to one file. A try that fails in a way that may pass is repeated
    (core/retries.py). If another process downloads the file, it is waited for, and its file is
    returned.

    `network_hint` ends the messages about a host that does not answer, `refusal_hint` those about a
    host that refuses the file. `sha256` and `size` (bytes) are the values that an index lists. The
    digest must be equal; of the size, only that no more bytes come is checked.

    Raises NetworkError if the host cannot be reached or the connection breaks (the part that has
    arrived stays for the next try), SourceError if the host refuses the file or sends another one
    (which is deleted), HostError if the disk is full.
    """
    target = folder / (Path(unquote(urlsplit(url).path)).name or "archive")
    with report_unwritable(folder), _download_lock(target, bar):
        # Looked for with the lock held: another process may just have downloaded it.
        if not target.exists():
            _download(
                url,
                target,
                bar,
                network_hint=network_hint,
                refusal_hint=refusal_hint,
                sha256=sha256,
                size=size,
            )
        return _checked_file(target, sha256, network_hint)


def _download_lock(target: Path, bar: ProgressBar) -> AbstractContextManager[None]:
    """Hold the lock of a download, after other processes that download the same file."""

    def report(holder: str) -> None:
        bar.update(0, None, f"waiting for another process that downloads it{holder}")
        retries.write_line(f"{target.name}: waiting for another process that downloads it{holder}")

    return locks.wait_for_file(target.with_name(f"{target.name}.lock"), report)


def _checked_file(target: Path, sha256: str | None, network_hint: str) -> Path:
    """Return a complete file if it has a digest, or if none is known.

    Raises SourceError for another file, which is deleted.
    """
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
    *,
    network_hint: str,
    refusal_hint: str,
    sha256: str | None,
    size: int | None,
) -> None:
    """Download a file as `target`.part, and rename it to `target` when it is complete."""
    import requests
    import urllib3

    part = target.with_name(f"{target.name}.part")
    validator_file = target.with_name(f"{target.name}.validator")
    reached_size = _part_size(part)

    def advanced() -> bool:
        nonlocal reached_size
        before = reached_size
        reached_size = max(before, _part_size(part))
        return reached_size - before >= _ADVANCE_BYTES

    try:
        retries.repeat(
            partial(_receive, url, part, validator_file, bar, has_digest=bool(sha256), size=size),
            judge_http,
            f"{target.name} from {host_of(url)}",
            advanced=advanced,
        )
    except requests.HTTPError as error:
        raise SourceError(
            f"{hide_password(url)}: {describe_http_error(error)}: {refusal_hint}",
            code="download-refused",
        ) from None
    except requests.RequestException as error:
        raise NetworkError(
            f"cannot reach {host_of(url)} ({describe_http_error(error)}): {network_hint}",
            code="host-unreachable",
        ) from None
    except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError, SilentError):
        arrived = format_bytes(_part_size(part))
        raise NetworkError(
            f"the connection to {host_of(url)} broke after {arrived}: run the command again to "
            f"resume, or {network_hint}",
            code="connection-broken",
        ) from None
    validator_file.unlink(missing_ok=True)
    part.rename(target)


def _part_size(part: Path) -> int:
    """Return the bytes of a file that have arrived."""
    return part.stat().st_size if part.exists() else 0


def _receive(
    url: str,
    part: Path,
    validator_file: Path,
    bar: ProgressBar,
    *,
    has_digest: bool,
    size: int | None,
) -> None:
    """Receive a file, or what is missing of it, into a part.

    Raises SourceError if the server has another file by now, or sends too much, HostError if the
    disk is full, and what `open_url` raises.
    """
    import requests

    # With neither validator nor digest, nobody would notice that the server has another file now.
    is_resumable = part.exists() and (has_digest or validator_file.exists())
    offset = _part_size(part) if is_resumable else 0
    headers = _resume_headers(offset, validator_file)
    try:
        with (
            report_unwritable(part.parent),
            http_session() as session,
            open_url(session, url, headers) as (response, chunks),
        ):
            _note_validator(response, validator_file)
            _write_part(response, chunks, part, bar, size)
    except requests.HTTPError as error:
        response = error.response
        if response.status_code != requests.codes.requested_range_not_satisfiable:
            raise
        # The part may be complete: the last run ended before it was renamed. No range begins at the
        # end of a file, so the answer is 416 with the file's length (RFC 9110, 15.5.17). Any other
        # length is that of another file.
        if response.headers.get("Content-Range") != f"bytes */{offset}":
            part.unlink(missing_ok=True)
            raise SourceError(
                f"{hide_password(url)} has changed since the download began: run the command again "
                "to download all of it",
                code="download-changed",
            ) from None


def _resume_headers(offset: int, validator_file: Path) -> dict[str, str]:
    """Return the headers of a request for the bytes of a file from `offset` on; {} for all."""
    if not offset:
        return {}
    headers = {"Range": f"bytes={offset}-"}
    if validator_file.exists():
        # If the file has another validator by now, all of it comes, with status 200.
        headers["If-Range"] = validator_file.read_text(encoding="utf-8")
    return headers


def _note_validator(response: requests.Response, validator_file: Path) -> None:
    """Store the validator of the file that a server sends (RFC 9110, 8.8), for `_resume_headers`.

    That is the ETag, or the date if there is no ETag. If the ETag is weak, nothing is stored, that
    of an earlier try is deleted unless the part is continued, and the part can be resumed only if
    the file's digest is known: If-Range allows neither a weak ETag nor the date beside it (RFC
    9110, 13.1.5).
    """
    import requests

    validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if validator and not validator.startswith(_WEAK_TAG):
        validator_file.write_text(validator, encoding="utf-8")
    elif response.status_code != requests.codes.partial_content:
        # All of the file comes. A validator of an earlier try would not describe this part.
        validator_file.unlink(missing_ok=True)


def _write_part(
    response: requests.Response,
    chunks: Iterator[bytes],
    part: Path,
    bar: ProgressBar,
    size: int | None,
) -> None:
    """Append the content of a response to a part, or replace the part if all of the file comes.

    If more than `size` bytes come, raises SourceError and deletes the part.
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
    """Open a URL; yield the response, and an iterator over the parts of its content as they arrive.

    Raises requests.HTTPError for a refusal, SilentError if the host sends nothing or too slowly,
    SourceError if the URL is invalid or redirects to an invalid one, and the other errors of
    requests and urllib3. Reading the content raises the same errors.
    """
    import requests

    # Yields the response, and then the chunks of its content. Both come from one iterator, whose
    # thread is watched, because a host may also be silent before it answers.
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
        # The headers of a response are few bytes, but show that the host works: they count as a
        # whole chunk, which ends the silence before them.
        return len(item) if isinstance(item, bytes) else _CHUNK_BYTES

    items = watch_for_silence(receive(), host_of(url), count_bytes)
    try:
        response = cast("requests.Response", next(items))
    except ValueError as error:
        # The errors of requests are OSErrors; its InvalidURL is also a ValueError. A redirect to
        # http://[bad/ raises InvalidURL or a plain ValueError, whichever library parses it first.
        if isinstance(error, OSError) and not isinstance(error, requests.exceptions.InvalidURL):
            raise
        reason = hide_password(str(error))
        raise SourceError(
            f"{hide_password(url)}, or what it redirects to, is not a valid address ({reason}): "
            "give another one",
            code="invalid-redirect",
        ) from None
    with contextlib.closing(items):
        yield response, cast("Iterator[bytes]", items)


def read_body(
    session: requests.Session, url: str, headers: Mapping[str, str]
) -> tuple[requests.Response, bytes]:
    """Return the response to a GET request together with its whole content.

    A try that fails in a way that may pass is repeated. Raises what `open_url` does, and
    NetworkError if there are more than LARGEST_BODY_BYTES.
    """
    return retries.repeat(
        lambda: _read_body_once(session, url, headers), judge_http, hide_password(url)
    )


def _read_body_once(
    session: requests.Session, url: str, headers: Mapping[str, str]
) -> tuple[requests.Response, bytes]:
    """Return what `read_body` returns, by one request."""
    body = bytearray()
    with open_url(session, url, headers) as (response, chunks):
        for chunk in chunks:
            body += chunk
            if len(body) > LARGEST_BODY_BYTES:
                raise NetworkError(
                    f"{hide_password(url)} has more than {format_bytes(LARGEST_BODY_BYTES)}, too "
                    "much for such a page: give another address",
                    code="page-too-large",
                )
    return response, bytes(body)


def http_session() -> requests.Session:
    """Return a session that trusts the certificates of the system.

    By itself, requests trusts those of certifi, which lack the certificates of a company's own
    authority.
    """
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = "torchmill"
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        session.verify = paths.cafile
    elif paths.capath and find_paths(Path(paths.capath), "????????.[0-9]"):
        # OpenSSL finds certificates in a folder only by names that are hashes ("5ed36f99.0"). The
        # folder of RHEL has no such names, and would trust nobody.
        session.verify = paths.capath
    return session


def connection_complaint(url: str) -> str | None:
    """Return why the host of a URL takes no connection within 5 seconds, as a clause.

    None if it takes one, or if that cannot be known here: only a proxy may be able to connect, or
    the scheme has no known port. Raises ValueError for an address such as http://[bad/.
    """
    return _complaint(url, _connect)


def lasting_complaint(url: str) -> str | None:
    """Return what `connection_complaint` returns, after several tries if the failure may pass."""

    def connect_at_last(address: tuple[str, int]) -> None:
        retries.repeat(lambda: _connect(address), judge_http, host_of(url))

    return _complaint(url, connect_at_last)


def _connect(address: tuple[str, int]) -> None:
    """Connect to a host and a port. Raises OSError, and ValueError if it is no address."""
    socket.create_connection(address, timeout=_CONNECT_TIMEOUT_SECONDS).close()


def _complaint(url: str, connect: Callable[[tuple[str, int]], object]) -> str | None:
    """Return why `connect` fails for the host of a URL; see `connection_complaint`."""
    parts = urlsplit(url)
    has_proxy = not getproxies_environment().keys().isdisjoint(("https", "http", "all"))
    if parts.hostname is None or parts.scheme not in _DEFAULT_PORTS or has_proxy:
        return None
    try:
        connect((parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]))
    except TimeoutError:
        return f"no answer in {_CONNECT_TIMEOUT_SECONDS:.0f} s"
    except (OSError, ValueError) as error:
        # The text of a ValueError is not shown, because it may quote a part of a password.
        reason = getattr(error, "strerror", None) or "it is not an address"
        return reason.lower()
    return None
