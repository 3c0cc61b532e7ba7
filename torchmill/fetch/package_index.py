"""Read the files of a project from a package index (PEP 503, 691, 700).

An index has one page for each project, in JSON or HTML, with links to the project's files and their
digests.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, unquote, urldefrag, urljoin, urlsplit

import requests
import urllib3
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from torchmill.core import urls
from torchmill.core.errors import ConfigError, NetworkError
from torchmill.core.process import program_output
from torchmill.core.silence import SilentError
from torchmill.fetch.download import read_body
from torchmill.fetch.http_failures import describe_http_error

# What `read_body` raises if an index cannot be read. Its other errors have messages for the user.
READ_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError, SilentError, OSError)
# On a page, so that to read one takes seconds. With 50 bytes a tag, the longest page of the package
# index, which has 5 MB, would have a quarter of that.
MOST_TAGS = 400_000
DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_INDEX_HINT = "check the network, or set PIP_INDEX_URL to another index"
_LOGIN_HINT = (
    "correct user and password (~/.netrc; for uploads also TWINE_USERNAME and TWINE_PASSWORD)"
)


_LONGEST_NAME = 255  # bytes, on the disks of all systems
_LONGEST_BOUNDS = 1000  # characters of Requires-Python


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of a project, as an index lists it."""

    name: str
    url: str
    requires_python: str | None
    uploaded: str | None  # "2022-12-15T15:31:25Z"; None: the index does not say
    yanked: bool  # withdrawn: installed only by users who ask for exactly this version
    sha256: str | None = None
    size: int | None = None  # bytes
    provenance: str | None = None  # the address of its attestations (PEP 740)


def configured_index(environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the index that pip uses on this machine; PyPI's if none is configured.

    If PIP_INDEX_URL does not name it, pip is run, which takes about a second.
    Raises NetworkError if what is configured is not the URL of a server.
    """
    index = environment.get("PIP_INDEX_URL")
    if not index:
        # -P: the working folder, which may be anybody's clone, must not supply a module `pip`
        argv = (sys.executable, "-P", "-m", "pip", "config", "get", "global.index-url")
        index = program_output(*argv, env=environment).strip() or DEFAULT_INDEX
    try:
        urls.validate_url(
            "the index that pip uses,", index, ("https", "http"), "https://HOST/simple"
        )
    except ConfigError as error:
        raise NetworkError(str(error), code="index-unreadable") from None
    return index


def project_files(session: requests.Session, index: str, project: str) -> tuple[IndexFile, ...]:
    """Return the files of a project, in the order of the index.

    Raises NetworkError if the index cannot be read, or has no page of this project.
    """
    files = find_project_files(session, index, project, _INDEX_HINT)
    if files is None:
        raise _unreadable(index, project, "it answers 404", _INDEX_HINT)
    return files


def find_project_files(
    session: requests.Session, index: str, project: str, hint: str
) -> tuple[IndexFile, ...] | None:
    """Return the files of a project; None if the index has no such project.

    Raises NetworkError, whose message ends with `hint`, if the index cannot be read, or answers
    with something else than a project's page.
    """
    page_url = f"{index.rstrip('/')}/{project}/"
    try:
        response, body = read_body(session, page_url, {"Accept": _ACCEPT})
    except READ_ERRORS as error:
        response_with_error = getattr(error, "response", None)
        status = getattr(response_with_error, "status_code", None)
        if status == requests.codes.not_found:
            return None
        if status in {requests.codes.unauthorized, requests.codes.forbidden}:
            hint = _LOGIN_HINT
        raise _unreadable(index, project, describe_http_error(error), hint) from None
    # The links of a page are relative to the address it came from, to which the index may have
    # redirected. A strange page raises LookupError if it names an encoding that does not exist, and
    # RecursionError if its JSON is nested a thousand times.
    try:
        if "json" in response.headers.get("Content-Type", ""):
            entries = json.loads(body).get("files", ())
            return tuple(_read_entries(entries, response.url))
        html = body.decode(response.encoding or "utf-8", "replace")
        return parse_html_page(html, response.url)
    except (KeyError, TypeError, AttributeError, ValueError, LookupError, RecursionError):
        raise _unreadable(index, project, "it is not an index page", hint) from None


def _unreadable(index: str, project: str, reason: str, hint: str) -> NetworkError:
    """Return the error for a project's page that cannot be read."""
    page = f"{urls.redact_url(index).rstrip('/')}/{project}/"
    return NetworkError(f"{page} cannot be read ({reason}): {hint}", code="index-unreadable")


def parse_html_page(html: str, url: str) -> tuple[IndexFile, ...]:
    """Return the files that a project's HTML page lists; `url` is the address of the page.

    A link that is no URL is left out. Raises NetworkError if the page has more than MOST_TAGS.
    """
    page = _LinkCollector()
    page.feed(html)
    return tuple(_read_entries(page.entries, url))


def source_archives(
    files: Iterable[IndexFile], project: str
) -> Iterator[tuple[Version, IndexFile]]:
    """Yield the source archives among a project's files, each with its version.

    They come in the order of `files`, withdrawn ones and pre-releases included. A version may have
    several.
    """
    for file in files:
        with contextlib.suppress(InvalidSdistFilename):
            name, version = parse_sdist_filename(file.name)
            if name == canonicalize_name(project):
                yield version, file


def offered_versions(files: Iterable[IndexFile], project: str) -> set[Version]:
    """Return the versions of the wheels and source archives among a project's files."""
    files = tuple(files)
    versions = {version for version, _ in source_archives(files, project)}
    for file in files:
        with contextlib.suppress(InvalidWheelFilename):
            _, version, _, _ = parse_wheel_filename(file.name)
            versions.add(version)
    return versions


def _read_entries(entries: Iterable[Mapping[str, Any]], base: str) -> Iterator[IndexFile]:
    """Yield the files of a page, whose address is `base`.

    `entries` have the form of JSON. They have the digest in `hashes`, or as links of HTML in the
    fragment of the URL. Raises KeyError, TypeError, ValueError or AttributeError for anything
    else.
    """
    for entry in entries:
        url, fragment = urldefrag(urljoin(base, entry["url"]))
        sha256 = entry.get("hashes", {}).get("sha256")
        if not sha256:
            sha256 = dict(parse_qsl(fragment)).get("sha256", "")
        requires_python = entry.get("requires-python") or None
        if not isinstance(entry["filename"], str) or not isinstance(requires_python, str | None):
            raise TypeError("a file of an index has a name, and its bounds of Pythons are a text")
        if len(entry["filename"]) > _LONGEST_NAME or len(requires_python or "") > _LONGEST_BOUNDS:
            continue  # no disk takes such a name, and no Python has such a version
        yield IndexFile(
            name=entry["filename"],
            url=url,
            requires_python=requires_python,
            uploaded=entry.get("upload-time"),
            yanked=bool(entry.get("yanked")),
            # careless indexes write digests in capitals, and 0 or null for an unknown size
            sha256=sha256.lower() or None,
            size=int(entry.get("size") or 0) or None,
            provenance=entry.get("provenance") or None,
        )


class _LinkCollector(HTMLParser):
    """Collects the links of an HTML page in the form that a JSON page has.

    PEP 503 has no upload time; some mirrors give it in the attribute data-upload-time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []
        self._tags = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Add the file that a link leads to."""
        self._tags += 1
        if self._tags > MOST_TAGS:
            raise NetworkError(
                f"a page of an index has more than {MOST_TAGS} tags, too many for such a page: "
                "give another address",
                code="page-too-large",
            )
        attributes = dict(attrs)
        link = attributes.get("href")
        if tag != "a" or not link:
            return
        try:
            path = urlsplit(link).path
        except ValueError:  # http://[bad/
            return
        entry = {
            "filename": unquote(path.rpartition("/")[2]),
            "url": link,
            # The value of the attribute is the reason, and may be missing.
            "yanked": "data-yanked" in attributes,
            "requires-python": attributes.get("data-requires-python"),
            "upload-time": attributes.get("data-upload-time"),
            "provenance": attributes.get("data-provenance"),
        }
        self.entries.append(entry)
