"""A client of package indexes (PEP 503, 691, 700): the files of a project."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, unquote, urldefrag, urljoin

import requests
import urllib3
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from torchmill.core import urls
from torchmill.core.errors import ConfigError, NetworkError
from torchmill.core.process import program_output
from torchmill.core.silence import SilentError
from torchmill.fetch.download import describe_http_error, read_body

# what reading from an index may raise, beside what is ours to show as it is
READ_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError, SilentError, OSError)
DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of a project."""

    name: str
    url: str
    requires_python: str | None
    uploaded: str | None  # "2022-12-15T15:31:25Z"; None: the index does not say
    yanked: bool  # withdrawn: installed only by those who ask for exactly this version
    sha256: str | None = None  # of its content, as the index says
    size: int | None = None  # bytes


def configured_index(environment: Mapping[str, str] = os.environ) -> str:
    """Return the index that pip uses here, PyPI where nothing is configured.

    Raises NetworkError for what is no address of a server.
    """
    argv = (sys.executable, "-P", "-m", "pip", "config", "get", "global.index-url")
    index = (
        environment.get("PIP_INDEX_URL")
        or program_output(*argv, env=environment).strip()
        or DEFAULT_INDEX
    )
    try:
        urls.validate_url(
            "the index that pip uses,", index, ("https", "http"), "https://HOST/simple"
        )
    except ConfigError as error:
        raise NetworkError(str(error), code="index-unreadable") from None
    return index


def project_files(session: requests.Session, index: str, project: str) -> tuple[IndexFile, ...]:
    """Return the files of a project, in the order of the index.

    Raises NetworkError where the index does not answer, or not with a page.
    """
    cure = "check the network, or set PIP_INDEX_URL to another index"
    found = find_project_files(session, index, project, cure)
    if found is None:
        raise _unreadable(index, project, "it answers 404", cure)
    return found


def find_project_files(
    session: requests.Session, index: str, project: str, cure: str
) -> tuple[IndexFile, ...] | None:
    """Return the files of a project; None if the index has no such project.

    Raises NetworkError, which ends with `cure`, where it does not answer, or not with a page of an index.
    """
    try:
        response, body = read_body(session, f"{index.rstrip('/')}/{project}/", {"Accept": _ACCEPT})
    except READ_ERRORS as error:
        answered = getattr(error, "response", None)
        if answered is not None and answered.status_code == requests.codes.not_found:
            return None
        if answered is not None and answered.status_code in {
            requests.codes.unauthorized,
            requests.codes.forbidden,
        }:
            cure = "correct user and password (~/.netrc; for uploads also TWINE_USERNAME and TWINE_PASSWORD)"
        raise _unreadable(index, project, describe_http_error(error), cure) from None
    try:
        if "json" in response.headers.get("Content-Type", ""):
            return tuple(_from_json(json.loads(body).get("files", ()), response.url))
        return parse_html_page(body.decode(response.encoding or "utf-8", "replace"), response.url)
    except (KeyError, TypeError, AttributeError, ValueError, LookupError, RecursionError):
        raise _unreadable(index, project, "it is not an index page", cure) from None


def _unreadable(index: str, project: str, why: str, cure: str) -> NetworkError:
    page = f"{urls.redact_url(index).rstrip('/')}/{project}/"
    return NetworkError(f"{page} cannot be read ({why}): {cure}", code="index-unreadable")


def parse_html_page(html: str, url: str) -> tuple[IndexFile, ...]:
    """Return the files that a project's page in HTML lists; its links are relative to its own address."""
    page = _Links()
    page.feed(html)
    return tuple(_from_json(page.entries, url))


def source_archives(
    files: Iterable[IndexFile], project: str
) -> Iterator[tuple[Version, IndexFile]]:
    """Yield the source archives of a project with their versions; other files are left out."""
    for file in files:
        with contextlib.suppress(InvalidSdistFilename):
            name, version = parse_sdist_filename(file.name)
            if name == canonicalize_name(project):
                yield version, file


def _from_json(entries: Iterable[Mapping[str, Any]], base: str) -> Iterable[IndexFile]:
    for entry in entries:
        url, mark = urldefrag(urljoin(base, entry["url"]))
        digest = entry.get("hashes", {}).get("sha256") or dict(parse_qsl(mark)).get("sha256", "")
        if not isinstance(entry["filename"], str):
            raise TypeError("a file of an index has a name")
        yield IndexFile(
            name=entry["filename"],
            url=url,
            requires_python=entry.get("requires-python") or None,
            uploaded=entry.get("upload-time"),
            yanked=bool(entry.get("yanked")),
            sha256=digest.lower() or None,
            size=int(entry.get("size") or 0) or None,
        )


class _Links(HTMLParser):
    """Collect the links of a page as JSON says them; a mirror may give the upload time in data-upload-time."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the file that a link leads to."""
        attributes = dict(attrs)
        if tag == "a" and (link := attributes.get("href")):
            about = {
                key: attributes.get(f"data-{key}") for key in ("requires-python", "upload-time")
            }
            name = unquote(urldefrag(link).url.rpartition("/")[2])
            self.entries.append(
                {"filename": name, "url": link, "yanked": "data-yanked" in attributes, **about}
            )
