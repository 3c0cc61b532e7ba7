"""Requests to GitHub's REST API: with a token, page by page, every refusal one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import requests

from torchmill.address import shown
from torchmill.deliver.publish.parcel import File
from torchmill.errors import DeliveryError, NetworkError

PATIENCE = 60  # seconds without an answer
_VERSION = "2022-11-28"
_PAGE = 100  # entries, the most there can be
_SERVER = 500  # the first status that says it is the server's fault
_REFUSED = 400


class Api:
    """A server of the API, and who asks it."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self.session = requests.Session()
        said = {"X-GitHub-Api-Version": _VERSION, "User-Agent": "torchmill"}
        self.session.headers.update({"Accept": "application/vnd.github+json", **said})
        self.session.auth = _Bearer(token)  # as a header alone, .netrc would replace it

    def get(self, path: str) -> Any:
        """Return what is at a path, None where nothing is."""
        with _told(self.url):
            response = self.session.get(self.url + path, timeout=PATIENCE)
        return None if response.status_code == requests.codes.not_found else _judged(response, path)

    def pages(self, path: str, missing: str) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of a list, page by page; raises DeliveryError `missing` where there is none."""
        address: str | None = f"{self.url}{path}?per_page={_PAGE}"
        while address:
            with _told(self.url):
                response = self.session.get(address, timeout=PATIENCE)
            if response.status_code == requests.codes.not_found:
                raise DeliveryError(missing)
            yield from _judged(response, path)
            address = response.links.get("next", {}).get("url")

    def call(self, verb: str, path: str, said: Mapping[str, Any] | None = None) -> Any:
        """Return what a request answers."""
        with _told(self.url):
            response = self.session.request(verb, self.url + path, json=said, timeout=PATIENCE)
        return _judged(response, path)

    def content(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of an asset."""
        with _told(self.url):
            headers = {"Accept": "application/octet-stream"}
            response = self.session.get(self.url + path, headers=headers, stream=True, timeout=PATIENCE)
            if response.status_code >= _REFUSED:
                _judged(response, path)
            yield from response.iter_content(1 << 20)

    def upload(self, address: str, file: File) -> None:
        """Upload a file to a release, which is kept open for it. Raises DeliveryError and NetworkError."""
        kind = "application/json" if file.name.endswith(".json") else "application/octet-stream"
        headers = {"Content-Type": kind, "Content-Length": str(file.size)}
        with _told(self.url), file.path.open("rb") as body:
            response = self.session.post(
                f"{address}?name={quote(file.name)}",
                data=body,
                headers=headers,
                timeout=(PATIENCE, 10 * PATIENCE),
            )
        if response.status_code == requests.codes.unprocessable and "already_exists" in response.text:
            raise DeliveryError(f"{file.name} has appeared there meanwhile: run the command again")
        made = _judged(response, file.name)
        if made["name"] != file.name:
            raise DeliveryError(
                f"GitHub keeps {file.name} as {made['name']}, where nobody finds it: remove it there"
            )


class _Bearer(requests.auth.AuthBase):
    def __init__(self, token: str) -> None:
        self.token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Name the token."""
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Raise NetworkError where a connection is not made, or breaks."""
    try:
        yield
    except requests.RequestException as error:
        raise NetworkError(
            f"{shown(url)}: the connection broke ({type(error).__name__}): run the command again to go on"
        ) from None


def _judged(response: requests.Response, what: str) -> Any:
    """Return what GitHub answers. Raises DeliveryError for a refusal, NetworkError for what passes."""
    if response.status_code < _REFUSED:
        try:
            return response.json() if response.content else None
        except ValueError:
            raise DeliveryError(
                f"{shown(response.url)} answers with something else than JSON: let GITHUB_API_URL name "
                "GitHub's API, or unset it"
            ) from None
    try:
        said = str(response.json().get("message", ""))
    except (ValueError, AttributeError):
        said = response.reason
    told = f"GitHub answers {response.status_code} ({said}) to {response.request.method} {what}"
    if response.status_code >= _SERVER or response.headers.get("x-ratelimit-remaining") == "0":
        raise NetworkError(f"{told}: run the command again later to go on")
    raise DeliveryError(f"{told}: the token needs to write the repository's contents")
