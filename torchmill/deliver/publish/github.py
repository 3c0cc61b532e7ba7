"""Upload wheels to a GitHub release by its REST API."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import requests

from torchmill.core import urls
from torchmill.core.errors import ConfigError, DeliveryError, NetworkError
from torchmill.core.urls import redact_url
from torchmill.deliver.publish.upload_set import UploadFile

API_TIMEOUT_SECONDS = 60  # seconds without an answer
_VERSION = "2022-11-28"
_PAGE = 100  # entries, the most there can be
_SERVER = 500  # the first status that says it is the server's fault
_REFUSED = 400


class GithubApi:
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
            response = self.session.get(self.url + path, timeout=API_TIMEOUT_SECONDS)
        return None if response.status_code == requests.codes.not_found else _judged(response, path)

    def pages(self, path: str, missing: str) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of a list, page by page; raises DeliveryError `missing` where there is none."""
        address: str | None = f"{self.url}{path}?per_page={_PAGE}"
        while address:
            with _told(self.url):
                response = self.session.get(address, timeout=API_TIMEOUT_SECONDS)
            if response.status_code == requests.codes.not_found:
                raise DeliveryError(missing, code="no-repository")
            yield from _judged(response, path)
            address = response.links.get("next", {}).get("url")

    def call(self, verb: str, path: str, said: Mapping[str, Any] | None = None) -> Any:
        """Return what a request answers."""
        with _told(self.url):
            response = self.session.request(verb, self.url + path, json=said, timeout=API_TIMEOUT_SECONDS)
        return _judged(response, path)

    def content(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of an asset."""
        with _told(self.url):
            headers = {"Accept": "application/octet-stream"}
            response = self.session.get(
                self.url + path, headers=headers, stream=True, timeout=API_TIMEOUT_SECONDS
            )
            if response.status_code >= _REFUSED:
                _judged(response, path)
            yield from response.iter_content(1 << 20)

    def upload(self, address: str, file: UploadFile) -> None:
        """Upload a file to a release, which is kept open for it. Raises DeliveryError and NetworkError."""
        kind = "application/json" if file.name.endswith(".json") else "application/octet-stream"
        headers = {"Content-Type": kind, "Content-Length": str(file.size)}
        with _told(self.url), file.path.open("rb") as body:
            response = self.session.post(
                f"{address}?name={quote(file.name)}",
                data=body,
                headers=headers,
                timeout=(API_TIMEOUT_SECONDS, 10 * API_TIMEOUT_SECONDS),
            )
        if response.status_code == requests.codes.unprocessable and "already_exists" in response.text:
            raise DeliveryError(
                f"{file.name} has appeared there meanwhile: run the command again", code="file-appeared"
            )
        made = _judged(response, file.name)
        if made["name"] != file.name:
            raise DeliveryError(
                f"GitHub keeps {file.name} as {made['name']}, where nobody finds it: remove it there",
                code="github-renamed",
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
            f"{redact_url(url)}: the connection broke ({type(error).__name__}): run the command again "
            f"to go on",
            code="connection-lost",
        ) from None


def _judged(response: requests.Response, what: str) -> Any:
    """Return what GitHub answers. Raises DeliveryError for a refusal, NetworkError for what passes."""
    if response.status_code < _REFUSED:
        try:
            return response.json() if response.content else None
        except ValueError:
            raise DeliveryError(
                f"{redact_url(response.url)} answers with something else than JSON: let GITHUB_API_URL name "
                "GitHub's API, or unset it",
                code="not-github",
            ) from None
    try:
        said = str(response.json().get("message", ""))
    except (ValueError, AttributeError):
        said = response.reason
    told = f"GitHub answers {response.status_code} ({said}) to {response.request.method} {what}"
    if response.status_code >= _SERVER or response.headers.get("x-ratelimit-remaining") == "0":
        raise NetworkError(f"{told}: run the command again later to go on", code="github-unavailable")
    raise DeliveryError(f"{told}: the token needs to write the repository's contents", code="github-refused")


PUBLIC = "https://api.github.com"
LARGEST = 2 * 2**30  # bytes; an asset must have fewer
MOST = 1000  # assets of a release
BODY = "Wheels built from source by torchmill."  # by it a draft that was left is known as ours

Release = Mapping[str, Any]


@dataclass(slots=True)
class GithubReleases:
    """The releases of a repository; one that is new is a draft until all its files are there."""

    repository: str  # "OWNER/NAME"
    tag: str | None  # None: each wheel's own
    api: GithubApi
    takes_documents: bool = True
    found: dict[str, Release | None] = field(default_factory=dict)  # by tag
    broken: dict[str, int] = field(default_factory=dict)  # asset of which only a part came -> its id

    @classmethod
    def from_address(cls, repository: str, tag: str | None, environ: Mapping[str, str]) -> GithubReleases:
        """Return the releases of a repository, with the token of the environment. Raises ConfigError."""
        token = environ.get("GH_TOKEN") or environ.get("GITHUB_TOKEN")
        if not token:
            raise ConfigError(
                "--to github: set GH_TOKEN or GITHUB_TOKEN to a token that may write the contents of "
                f"{repository}",
                code="no-token",
            )
        url = environ.get("GITHUB_API_URL") or PUBLIC
        urls.validate_url("GITHUB_API_URL", url, ("https", "http"), PUBLIC)
        return cls(repository, tag, GithubApi(url, token))

    @property
    def name(self) -> str:
        """Return how messages call it."""
        return f"github:{self.repository}" + (f"@{self.tag}" if self.tag else "")

    def complaint(self, file: UploadFile) -> str | None:
        """Return why a file is too large."""
        if file.size < LARGEST:
            return None
        return f"{file.name} has {file.size} bytes; GitHub takes less than {LARGEST} a file"

    def existing(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the files that their releases have; a part of a file counts as none."""
        digests = {}
        for tag in sorted({self._tag(file) for file in files}):
            mine = {file.name for file in files if self._tag(file) == tag}
            release = self.found[tag] = self._release(tag)
            assets = list(self._assets(release)) if release else []
            if len(mine | {asset["name"] for asset in assets}) > MOST:
                raise DeliveryError(
                    f"{self.name}: a release has {MOST} files at most: name another tag", code="release-full"
                )
            for asset in (one for one in assets if one["name"] in mine):
                if asset.get("state") == "uploaded":
                    digests[asset["name"]] = self._digest(asset)
                else:
                    self.broken[asset["name"]] = asset["id"]
        return digests

    def upload(self, file: UploadFile) -> None:
        """Upload a file to its release, which is made as a draft where there is none."""
        tag = self._tag(file)
        release = self.found.get(tag) or self._draft(tag)
        self.found[tag] = release
        if (broken := self.broken.pop(file.name, None)) is not None:
            self.api.call("DELETE", f"/repos/{self.repository}/releases/assets/{broken}")
        address = str(release["upload_url"]).partition("{")[0]  # a template of RFC 6570
        self.api.upload(address, file)

    def finish(self) -> None:
        """Show the drafts that are ours: all their files are there."""
        for release in self.found.values():
            if release and release["draft"] and str(release.get("body") or "").startswith(BODY):
                self.api.call("PATCH", f"/repos/{self.repository}/releases/{release['id']}", {"draft": False})

    def _tag(self, file: UploadFile) -> str:
        if self.tag:
            return self.tag
        wheel = file.wheel
        return f"{wheel.name}-{wheel.manifest.get('tag') or f'v{wheel.version.public}'}"

    def _release(self, tag: str) -> Release | None:
        """Return the release of a tag; drafts are found in the list of all alone."""
        found: Release | None = self.api.get(f"/repos/{self.repository}/releases/tags/{quote(tag, safe='')}")
        if found is not None:
            return found
        every = self.api.pages(
            f"/repos/{self.repository}/releases", f"{self.name} is not there for this token"
        )
        return next((one for one in every if one["draft"] and one["tag_name"] == tag), None)

    def _draft(self, tag: str) -> Release:
        said = {"tag_name": tag, "name": tag, "body": BODY, "draft": True}
        made: Release = self.api.call("POST", f"/repos/{self.repository}/releases", said)
        return made

    def _assets(self, release: Release) -> Iterator[Mapping[str, Any]]:
        where = f"/repos/{self.repository}/releases/{release['id']}/assets"
        return self.api.pages(where, f"{self.name}: the release is gone: run the command again")

    def _digest(self, asset: Mapping[str, Any]) -> str:
        """Return an asset's sha256: as GitHub says, or of its bytes where it says none (before June 2025)."""
        kind, _, said = str(asset.get("digest") or "").partition(":")
        if kind == "sha256":
            return said
        digest = hashlib.sha256()
        for chunk in self.api.content(f"/repos/{self.repository}/releases/assets/{asset['id']}"):
            digest.update(chunk)
        return digest.hexdigest()
