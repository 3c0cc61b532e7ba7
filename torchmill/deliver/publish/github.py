"""Upload wheels to a GitHub release by its REST API."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self
from urllib.parse import quote

import requests
from packaging.utils import canonicalize_name

from torchmill.core import urls
from torchmill.core.errors import ConfigError, DeliveryError, NetworkError
from torchmill.deliver.publish.upload_set import PublishTarget, StoredFile, UploadFile, digest_parts
from torchmill.fetch.download import http_session
from torchmill.plan.published import GITHUB_LARGEST
from torchmill.wheel import wheel_file

API_TIMEOUT_SECONDS = 60  # seconds without an answer
_VERSION = "2022-11-28"
_PAGE = 100  # entries, the most there can be
PUBLIC = "https://api.github.com"
MOST = 1000  # assets of a release
BODY = "Wheels built from source by torchmill."  # by it a draft that was left is known as ours
Release = Mapping[str, Any]


def github_token(environ: Mapping[str, str]) -> str:
    """Return the token that an environment has for GitHub, "" for none."""
    return environ.get("GH_TOKEN") or environ.get("GITHUB_TOKEN") or ""


class GithubApi:
    """A server of the API, and who asks it: without a token, nobody in particular."""

    def __init__(self, url: str, token: str) -> None:
        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {token}"
            return request

        self.url = url.rstrip("/")
        self.session = http_session()
        self.session.headers.update(
            {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": _VERSION}
        )
        if token:
            self.session.auth = authorize  # as a header alone, .netrc would replace it

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return the server that an environment names, with its token if it has one. Raises ConfigError."""
        url = environ.get("GITHUB_API_URL") or PUBLIC
        urls.validate_url("GITHUB_API_URL", url, ("https", "http"), PUBLIC)
        return cls(url, github_token(environ))

    def send(self, verb: str, path: str, **options: Any) -> requests.Response:
        """Return the response to a request, whatever it is. Raises NetworkError where none comes."""
        with _connection(self.url):
            address = path if "://" in path else self.url + path
            return self.session.request(verb, address, **{"timeout": API_TIMEOUT_SECONDS} | options)

    def pages(self, path: str, missing: str) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of a list, page by page; raises DeliveryError `missing` where there is none."""
        address: str | None = f"{path}?per_page={_PAGE}"
        while address:
            response = self.send("GET", address)
            if response.status_code == requests.codes.not_found:
                raise DeliveryError(missing, code="no-repository")
            yield from _parse_response(response, path)
            address = response.links.get("next", {}).get("url")

    def call(self, verb: str, path: str, fields: Mapping[str, Any] | None = None) -> Any:
        """Return what a request answers."""
        return _parse_response(self.send(verb, path, json=fields), path)

    def content(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of an asset."""
        response = self.send(
            "GET", path, headers={"Accept": "application/octet-stream"}, stream=True
        )
        if not response.ok:
            _parse_response(response, path)
        with _connection(self.url):
            yield from response.iter_content(1 << 20)

    def upload(self, address: str, file: UploadFile) -> None:
        """Upload a file to a release, which is kept open for it. Raises DeliveryError and NetworkError."""
        kind = "application/json" if file.name.endswith(".json") else "application/octet-stream"
        headers = {"Content-Type": kind, "Content-Length": str(file.size)}
        timeout = (API_TIMEOUT_SECONDS, 10 * API_TIMEOUT_SECONDS)
        with file.path.open("rb") as body:
            place = f"{address}?name={quote(file.name)}"
            response = self.send("POST", place, data=body, headers=headers, timeout=timeout)
        if (
            response.status_code == requests.codes.unprocessable
            and "already_exists" in response.text
        ):
            raise DeliveryError(
                f"{file.name} has appeared there in the meantime: run the command again",
                code="file-appeared",
            )
        asset = _parse_response(response, file.name)
        if asset["name"] != file.name:
            raise DeliveryError(
                f"GitHub keeps {file.name} as {asset['name']}, where nobody finds it: remove it there",
                code="github-renamed",
            )


@contextmanager
def _connection(url: str) -> Iterator[None]:
    """Raise NetworkError where a connection is not made, or breaks."""
    try:
        yield
    except requests.RequestException as error:
        raise NetworkError(
            f"{urls.redact_url(url)}: the connection broke ({type(error).__name__}): run the command again to go on",
            code="connection-lost",
        ) from None


def _parse_response(response: requests.Response, what: str) -> Any:
    """Return what GitHub answers. Raises DeliveryError for a refusal, NetworkError for what passes."""
    if response.ok:
        try:
            return response.json() if response.content else None
        except ValueError:
            raise DeliveryError(
                f"{urls.redact_url(response.url)} does not answer with JSON: set GITHUB_API_URL to the address of "
                "GitHub's API, or unset it",
                code="not-github",
            ) from None
    try:
        said = str(response.json().get("message", ""))
    except (ValueError, AttributeError):
        said = response.reason
    told = f"GitHub answers {response.status_code} ({said}) to {response.request.method} {what}"
    if (
        response.status_code >= requests.codes.server_error
        or response.headers.get("x-ratelimit-remaining") == "0"
    ):
        raise NetworkError(
            f"{told}: run the command again later to go on", code="github-unavailable"
        )
    denied = response.status_code in {
        requests.codes.unauthorized,
        requests.codes.forbidden,
        requests.codes.not_found,
    }
    cure = (
        "the token needs write access to the repository's contents"
        if denied
        else "look at the release there"
    )
    raise DeliveryError(f"{told}: {cure}", code="github-refused")


@dataclass(slots=True)
class GithubReleases(PublishTarget):
    """The releases of a repository; one that is new is a draft until all its files are there."""

    repository: str  # "OWNER/NAME"
    tag: str | None  # None: each wheel's own
    size_limit: ClassVar[int] = GITHUB_LARGEST
    api: GithubApi
    found: dict[str, Release | None] = field(default_factory=dict)  # by tag
    broken: dict[str, int] = field(
        default_factory=dict
    )  # asset of which only a part came -> its id

    @classmethod
    def from_address(cls, repository: str, tag: str | None, environ: Mapping[str, str]) -> Self:
        """Return the releases of a repository, with the token of the environment. Raises ConfigError."""
        if not github_token(environ):
            raise ConfigError(
                "--to github: set GH_TOKEN or GITHUB_TOKEN to a token with write access to the contents of "
                f"{repository}",
                code="no-token",
            )
        return cls(repository, tag, GithubApi.from_environment(environ))

    @property
    def name(self) -> str:
        """Return how messages call it."""
        return f"github:{self.repository}" + (f"@{self.tag}" if self.tag else "")

    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the files that their releases have; a part of a file counts as none."""
        digests = {}
        for tag in sorted({self._tag(file) for file in files}):
            mine = {file.name for file in files if self._tag(file) == tag}
            release = self.found[tag] = self._release(tag)
            assets = self._assets(release["id"]) if release else []
            if len(mine | {asset["name"] for asset in assets}) > MOST:
                raise DeliveryError(
                    f"{self.name}: a release holds at most {MOST} files: name another tag",
                    code="release-full",
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
        if (release := self.found.get(tag)) is None:
            fields = {"tag_name": tag, "name": tag, "body": BODY, "draft": True}
            release = self.found[tag] = self.api.call(
                "POST", f"/repos/{self.repository}/releases", fields
            )
        if (broken := self.broken.pop(file.name, None)) is not None:
            self.api.call("DELETE", f"/repos/{self.repository}/releases/assets/{broken}")
        address = str(release["upload_url"]).partition("{")[0]  # a template of RFC 6570
        self.api.upload(address, file)

    def finish(self) -> None:
        """Show the drafts that are ours: all their files are there."""
        for release in self.found.values():
            if release and release["draft"] and str(release.get("body") or "").startswith(BODY):
                self.api.call(
                    "PATCH", f"/repos/{self.repository}/releases/{release['id']}", {"draft": False}
                )

    def _tag(self, file: UploadFile) -> str:
        if self.tag:
            return self.tag
        return f"{file.wheel.name}-{wheel_file.source_tag(file.wheel.version, file.wheel.manifest)}"

    def _release(self, tag: str) -> Release | None:
        """Return the release of a tag; drafts are found in the list of all alone."""
        path = f"/repos/{self.repository}/releases/tags/{quote(tag, safe='')}"
        response = self.api.send("GET", path)
        if response.status_code != requests.codes.not_found:
            found: Release = _parse_response(response, path)
            return found
        return next(
            (one for one in self._releases() if one["draft"] and one["tag_name"] == tag), None
        )

    def _releases(self) -> Iterator[Release]:
        return self.api.pages(
            f"/repos/{self.repository}/releases", f"{self.name} is not visible to this token"
        )

    def stored_files(self) -> Iterator[StoredFile]:
        """Yield the files of the release that is named, or of each package's own ones."""
        for release in self._releases():
            tag = release["tag_name"]
            for asset in self._assets(release["id"]) if self.tag in {None, tag} else ():
                own = tag.startswith(f"{canonicalize_name(asset['name'].partition('-')[0])}-")
                if asset.get("state") == "uploaded" and (self.tag or own):
                    address = f"/repos/{self.repository}/releases/assets/{asset['id']}"
                    read, remove = (
                        partial(self.api.content, address),
                        partial(self.api.call, "DELETE", address),
                    )
                    yield StoredFile(asset["name"], partial(self._digest, asset), read, remove)

    def _assets(self, release: int) -> list[Mapping[str, Any]]:
        path = f"/repos/{self.repository}/releases/{release}/assets"
        return list(
            self.api.pages(path, f"{self.name}: the release is gone: run the command again")
        )

    def _digest(self, asset: Mapping[str, Any]) -> str:
        """Return an asset's sha256: as GitHub says, or of its bytes where it says none (before June 2025)."""
        kind, _, said = str(asset.get("digest") or "").partition(":")
        if kind == "sha256":
            return said
        return digest_parts(
            self.api.content(f"/repos/{self.repository}/releases/assets/{asset['id']}")
        )[0]
