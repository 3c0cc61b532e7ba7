"""Download one file over HTTP, resuming after a broken connection; report a full disk as such."""

import contextlib
import errno
import http.client
import shutil
from base64 import b64encode
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from torchmill.core import files
from torchmill.core.errors import HostError, NetworkError, SourceError
from torchmill.core.units import format_bytes
from torchmill.fetch.source.request import FetchBar, hide_password, host_of

_FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_full_error(where: Path) -> HostError:
    """Return the error for a disk without room."""
    existing = next(folder for folder in (where, *where.parents) if folder.exists())
    free = format_bytes(shutil.disk_usage(existing).free)
    return HostError(
        f"the disk of {where} is full ({free} free): make room (`invoke status` shows what builds keep, "
        "`invoke clean` removes it), and run the command again to go on"
    )


@contextlib.contextmanager
def report_disk_full(where: Path) -> Iterator[None]:
    """Raise HostError where what is done inside fills the disk of `where`."""
    try:
        yield
    except shutil.Error as error:  # copytree gathers what went wrong, as text
        if "No space left" in str(error) or "quota exceeded" in str(error):
            raise disk_full_error(where) from None
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full_error(where) from None
        raise


_SILENCE = 20.0  # seconds after which a host counts as gone
_CHUNK = 1 << 18


def download_file(
    url: str, folder: Path, bar: FetchBar, *, otherwise: str, refused: str, sha256: str | None = None
) -> Path:
    """Return the file of an http(s) URL, complete, in `folder`, with the `sha256` that an index says of it.

    None: no index says one, and nothing is checked. Not every host says which version of a file it has; where
    its digest is known, a download goes on from these, too.
    Raises NetworkError that ends with `otherwise` (what has come is kept for the next try), SourceError that
    ends with `refused` where the host does not give the file, SourceError where it is another file, which is
    deleted, or HostError.
    """
    target = folder / (Path(unquote(urlsplit(url).path)).name or "archive")
    if not target.exists():
        _bring(url, target, bar, otherwise=otherwise, refused=refused, sha256=sha256)
    if sha256 is not None and (seen := files.hash_file(target)) != sha256:
        target.unlink()
        raise SourceError(
            f"{target.name} is not what the index says (sha256 {seen}, expected {sha256}): it was deleted; "
            f"run the command again, or {otherwise}"
        )
    return target


def _bring(
    url: str, target: Path, bar: FetchBar, *, otherwise: str, refused: str, sha256: str | None
) -> None:
    """Download what is not there yet, from where it stopped, if that can be."""
    folder, name = target.parent, target.name
    part, mark = folder / f"{name}.part", folder / f"{name}.mark"
    folder.mkdir(parents=True, exist_ok=True)
    begun = part.stat().st_size if part.exists() and (sha256 or mark.exists()) else 0
    try:
        with report_disk_full(folder), _open(url, begun, mark) as response:
            _receive(response, part, mark, bar)
    except HTTPError as error:
        raise _refused(error, url, part, refused) from None
    except URLError as error:
        raise NetworkError(f"{host_of(url)} cannot be reached ({error.reason}): {otherwise}") from None
    except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise NetworkError(
            f"the connection to {host_of(url)} broke ({error}): run the command again to go on from there, "
            f"or {otherwise}"
        ) from None
    mark.unlink(missing_ok=True)
    part.rename(target)


def _open(url: str, begun: int, mark: Path) -> http.client.HTTPResponse:
    headers = {"User-Agent": "torchmill"}
    if begun:
        headers["Range"] = f"bytes={begun}-"
        if mark.exists():  # a file that has changed since comes whole
            headers["If-Range"] = mark.read_text(encoding="utf-8")
    response: http.client.HTTPResponse = urlopen(_asked(url, headers), timeout=_SILENCE)  # noqa: S310 (http and https only: the caller has looked)
    return response


def _asked(url: str, headers: Mapping[str, str]) -> HttpRequest:
    """Return the request for a URL; a user in it is named to its host, and to no other that it leads to."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    request = HttpRequest(urlunsplit(parts._replace(netloc=host)), headers=dict(headers))  # noqa: S310
    if user:
        name, _, password = user.partition(":")
        said = b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {said}")
    return request


def _receive(response: http.client.HTTPResponse, part: Path, mark: Path, bar: FetchBar) -> None:
    resumed = response.status == HTTPStatus.PARTIAL_CONTENT
    tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if tag and not tag.startswith("W/"):
        mark.write_text(tag, encoding="utf-8")
    with part.open("ab" if resumed else "wb") as file:
        done = file.tell()
        total = done + response.length if response.length is not None else None
        _copy(response, file, done, total, bar)


def _copy(
    response: http.client.HTTPResponse, file: IO[bytes], done: int, total: int | None, bar: FetchBar
) -> None:
    while chunk := response.read(_CHUNK):
        file.write(chunk)
        done += len(chunk)
        bar.update(done, total, "downloading")
    if total is not None and done < total:
        raise ConnectionError(f"{done} of {total} bytes came")


def _refused(error: HTTPError, url: str, part: Path, advice: str) -> SourceError:
    if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        part.unlink(missing_ok=True)
        return SourceError(
            f"{hide_password(url)} is not the file it was: run the command again to download it anew"
        )
    return SourceError(f"{hide_password(url)} answers {error.code} {error.reason}: {advice}")
