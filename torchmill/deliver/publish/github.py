"""The releases of a GitHub repository as a target, by GitHub's REST API.

A release belongs to a tag and has assets: the files that were uploaded to it. Without a tag in the
argument of --to, the wheels of each version of a package go into a release of their own.
"""

import contextlib
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, ClassVar, Self
from urllib.parse import quote

import requests
from packaging.utils import canonicalize_name

from torchmill.core import retries, urls
from torchmill.core.errors import ConfigError, DeliveryError, NetworkError
from torchmill.core.retries import PassingFailure
from torchmill.deliver.publish.upload_set import PublishTarget, StoredFile, UploadFile, digest_parts
from torchmill.fetch.download import http_session
from torchmill.fetch.http_failures import judge_http, judge_response
from torchmill.plan.published import GITHUB_LARGEST
from torchmill.wheel import finished_wheel

API_TIMEOUT_SECONDS = 60  # without an answer
UPLOAD_TIMEOUT_SECONDS = 600  # until GitHub has stored an upload and answers
PUBLIC = "https://api.github.com"
MAX_ASSETS = 1000  # of a release

_API_VERSION = "2022-11-28"
_PAGE_ENTRIES = 100  # the most that GitHub gives
_READ_BYTES = 1 << 20
# PATCH sets fields of a release, and so the same fields again.
_REPEATABLE_VERBS = {"GET", "DELETE", "PATCH"}

# The text of a release that torchmill creates. By it, the next run recognizes a draft that a run
# which was stopped has left.
BODY = "Wheels built from source by torchmill."

Release = Mapping[str, Any]


def github_token(environ: Mapping[str, str]) -> str:
    """Return the token for GitHub in an environment, "" if it has none."""
    return environ.get("GH_TOKEN") or environ.get("GITHUB_TOKEN") or ""


class GithubApi:
    """A connection to a server of the API, with a token or anonymous.

    The token goes with each request, also to a whole URL that GitHub named. requests leaves it out
    where a redirection leads to another host, such as that of the assets' contents.
    """

    def __init__(self, url: str, token: str) -> None:
        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {token}"
            return request

        self.url = url.rstrip("/")
        self.session = http_session()
        self.session.headers["Accept"] = "application/vnd.github+json"
        self.session.headers["X-GitHub-Api-Version"] = _API_VERSION
        if token:
            # If the session only had the header, requests would replace it by a login in .netrc.
            self.session.auth = authorize

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return the connection to GITHUB_API_URL, or to GitHub, with the token if there is one.

        Raises ConfigError for a URL that cannot be one.
        """
        url = environ.get("GITHUB_API_URL") or PUBLIC
        urls.validate_url("GITHUB_API_URL", url, ("https", "http"), PUBLIC)
        return cls(url, github_token(environ))

    def send(self, verb: str, path: str, **options: Any) -> requests.Response:
        """Return the response to a request, even if it is a refusal. Raises NetworkError for none.

        `path` may also be a whole URL, as GitHub's answers have them. A request that leads to the
        same state however often it is sent is repeated if its failure may pass.
        """
        url = path if "://" in path else self.url + path
        options.setdefault("timeout", API_TIMEOUT_SECONDS)

        def send_once() -> requests.Response:
            with _connection(self.url):
                response = self.session.request(verb, url, **options)
            if verb in _REPEATABLE_VERBS and _judge_response(response) is not None:
                raise requests.HTTPError(response=response)
            return response

        if verb not in _REPEATABLE_VERBS:
            return send_once()
        try:
            return retries.repeat(send_once, _judge, f"GitHub, {verb}")
        except requests.HTTPError as error:
            return error.response

    def pages(self, path: str, missing: str) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of a list that GitHub gives page by page.

        Raises DeliveryError with the message `missing` if the list does not exist.
        """
        url: str | None = f"{path}?per_page={_PAGE_ENTRIES}"
        while url:
            response = self.send("GET", url)
            if response.status_code == requests.codes.not_found:
                raise DeliveryError(missing, code="no-repository")
            yield from _parse_response(response, path)
            url = response.links.get("next", {}).get("url")

    def call(self, verb: str, path: str, fields: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON that answers a request, None if the answer is empty.

        Raises DeliveryError for a refusal, NetworkError for a failure that passes.
        """
        return _parse_response(self.send(verb, path, json=fields), path)

    def delete(self, path: str) -> None:
        """Delete what is at a path, if it is still there.

        Raises DeliveryError for a refusal, NetworkError.
        """
        response = self.send("DELETE", path)
        # It is gone if an earlier try, or somebody else, has deleted it. GitHub also answers "not
        # found" if the token may not delete it.
        if response.status_code == requests.codes.not_found:
            is_gone = self.send("GET", path).status_code == requests.codes.not_found
            if is_gone:
                return
        _parse_response(response, path)

    def content(self, path: str) -> Generator[bytes, None, None]:
        """Yield the content of an asset, in parts; the connection is free again at the end.

        Raises DeliveryError for a refusal, NetworkError.
        """
        headers = {"Accept": "application/octet-stream"}
        # A streamed response keeps its connection until it is closed, also if nobody reads it to
        # its end: https://requests.readthedocs.io/en/latest/user/advanced/#body-content-workflow
        with self.send("GET", path, headers=headers, stream=True) as response:
            if not response.ok:
                _parse_response(response, path)
            with _connection(self.url):
                yield from response.iter_content(_READ_BYTES)

    def upload(self, url: str, file: UploadFile) -> None:
        """Upload a file to a release's URL for uploads. Raises DeliveryError and NetworkError."""
        is_json = file.name.endswith(".json")
        headers = {
            "Content-Type": "application/json" if is_json else "application/octet-stream",
            "Content-Length": str(file.size),
        }
        with file.path.open("rb") as body:
            # requests streams the file, because it is given open.
            response = self.send(
                "POST",
                f"{url}?name={quote(file.name)}",
                data=body,
                headers=headers,
                timeout=(API_TIMEOUT_SECONDS, UPLOAD_TIMEOUT_SECONDS),
            )
        refused = response.status_code == requests.codes.unprocessable
        if refused and "already_exists" in response.text:
            raise DeliveryError(
                f"{file.name} has appeared there in the meantime: run the command again",
                code="file-appeared",
            )
        asset = _parse_response(response, file.name)
        # GitHub replaces characters that it does not allow in names.
        if asset["name"] != file.name:
            raise DeliveryError(
                f"GitHub renamed {file.name} to {asset['name']}, so that nobody finds it: remove "
                "it there",
                code="github-renamed",
            )


@contextmanager
def _connection(url: str) -> Iterator[None]:
    """Raise NetworkError if a connection cannot be made or breaks."""
    try:
        yield
    except requests.RequestException as error:
        network_error = NetworkError(
            f"{urls.redact_url(url)}: the connection broke ({type(error).__name__}): run the "
            "command again to go on",
            code="connection-lost",
        )
        if judge_http(error) is not None:
            network_error.retry_after = 0.0
        raise network_error from None


def _judge(error: Exception) -> PassingFailure | None:
    """Return how a failure of a request may pass; None if it will not."""
    if isinstance(error, requests.HTTPError):
        return _judge_response(error.response)
    return retries.judge_error(error)


def _judge_response(response: requests.Response) -> PassingFailure | None:
    """Return how a refusal may pass; None if it will not, or if the response is none.

    Beyond a limit, GitHub answers 403 or 429, with the seconds to wait or the time of the limit's
    end (https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api).
    """
    if response.status_code != requests.codes.forbidden:
        return judge_response(response)
    headers = response.headers
    if "Retry-After" in headers:
        return PassingFailure("it limits the requests", retries.requested_pause(headers))
    end = headers.get("x-ratelimit-reset", "")
    if headers.get("x-ratelimit-remaining") == "0" and end.isdecimal():
        now = time.time()
        with contextlib.suppress(TypeError, ValueError):  # by the server's clock, if it tells it
            now = parsedate_to_datetime(headers.get("Date", "")).timestamp()
        return PassingFailure("it limits the requests", max(0.0, int(end) - now))
    return None


def _parse_response(response: requests.Response, subject: str) -> Any:
    """Return the JSON of a response; messages name the `subject` of the request.

    Raises DeliveryError for a refusal, NetworkError for a failure that passes.
    """
    if response.ok:
        try:
            return response.json() if response.content else None
        except ValueError:
            raise DeliveryError(
                f"{urls.redact_url(response.url)} does not answer with JSON: set GITHUB_API_URL to "
                "the address of GitHub's API, or unset it",
                code="not-github",
            ) from None
    try:
        reason = str(response.json().get("message", ""))
    except (ValueError, AttributeError):
        reason = response.reason
    status = response.status_code
    answer = f"GitHub answers {status} ({reason}) to {response.request.method} {subject}"
    limited = response.headers.get("x-ratelimit-remaining") == "0"
    failure = _judge_response(response)
    if status >= requests.codes.server_error or limited or failure is not None:
        error = NetworkError(
            f"{answer}: run the command again later to go on", code="github-unavailable"
        )
        error.retry_after = failure.pause if failure is not None else None
        raise error
    hint = "look at the release there"
    # GitHub also answers "not found" if the token may not see a repository.
    codes = requests.codes
    if status in {codes.unauthorized, codes.forbidden, codes.not_found}:
        hint = "the token needs write access to the repository's contents"
    raise DeliveryError(f"{answer}: {hint}", code="github-refused")


@dataclass(slots=True)
class GithubReleases(PublishTarget):
    """The releases of a repository; a new release is a draft until all its files are uploaded."""

    repository: str  # "OWNER/NAME"
    tag: str | None  # None: a release for each version of each package
    takes_documents: ClassVar[bool] = True
    removes_files: ClassVar[bool] = True
    size_limit: ClassVar[int] = GITHUB_LARGEST
    api: GithubApi
    # The releases that were looked up, by tag; None: there is none.
    releases: dict[str, Release | None] = field(default_factory=dict)
    # The ids of assets whose upload broke off, by name. GitHub keeps them until they are deleted.
    broken: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_address(cls, repository: str, tag: str | None, environ: Mapping[str, str]) -> Self:
        """Return the releases of a repository, with the token of an environment.

        Raises ConfigError if there is no token.
        """
        if not github_token(environ):
            raise ConfigError(
                "--to github: set GH_TOKEN or GITHUB_TOKEN to a token with write access to the "
                f"contents of {repository}",
                code="no-token",
            )
        return cls(repository, tag, GithubApi.from_environment(environ))

    @property
    def name(self) -> str:
        """Return the argument of --to."""
        suffix = f"@{self.tag}" if self.tag else ""
        return f"github:{self.repository}{suffix}"

    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the releases' assets that have the names of these files.

        An asset that arrived only in part does not count: `upload` replaces it. Raises DeliveryError
        if a release would have more than MAX_ASSETS files, or for a refusal, NetworkError.
        """
        names_by_tag: dict[str, set[str]] = {}
        for file in files:
            names_by_tag.setdefault(self._tag_of(file), set()).add(file.name)
        digests = {}
        for tag, names in sorted(names_by_tag.items()):
            # A release that was made a moment ago may not be listed yet.
            release = self._find_release(tag) or self.releases.get(tag)
            self.releases[tag] = release
            assets = self._assets(release["id"]) if release else []
            if len(names | {asset["name"] for asset in assets}) > MAX_ASSETS:
                raise DeliveryError(
                    f"{self.name}: a release holds at most {MAX_ASSETS} files: name another tag",
                    code="release-full",
                )
            for asset in assets:
                if asset["name"] not in names:
                    continue
                if asset.get("state") == "uploaded":
                    digests[asset["name"]] = self._digest(asset)
                else:
                    self.broken[asset["name"]] = asset["id"]
        return digests

    def upload(self, file: UploadFile) -> None:
        """Upload a file to its release, which is created as a draft if there is none.

        `existing_digests` must have looked for the file before.
        """
        tag = self._tag_of(file)
        release = self.releases.get(tag)
        if release is None:
            release = self._create_release(tag)
            self.releases[tag] = release
        broken = self.broken.pop(file.name, None)
        if broken is not None:
            self.api.delete(self._asset_path(broken))
        url, _, _ = str(release["upload_url"]).partition("{")  # it is a template of RFC 6570
        self.api.upload(url, file)

    def _create_release(self, tag: str) -> Release:
        """Return a new release of a tag, or the one that another run has made by now.

        GitHub makes as many drafts for a tag as it is asked for. If two runs do so at the same
        time, or if an answer is lost and the request repeated, all of them go on with the oldest
        release, and delete the empty drafts that torchmill has made beside it.
        """
        path = f"/repos/{self.repository}/releases"
        fields = {"tag_name": tag, "name": tag, "body": BODY, "draft": True}
        made: Release = retries.repeat(
            lambda: self.api.call("POST", path, fields), retries.judge_error, f"release {tag}"
        )
        releases = {made["id"]: made}
        for release in self._all_releases():
            if release["tag_name"] == tag:
                releases[release["id"]] = release
        # A release that is published wins: users may have found it.
        oldest, *others = sorted(
            releases.values(), key=lambda release: (release["draft"], release["id"])
        )
        for release in others:
            is_ours = release["draft"] and str(release.get("body") or "").startswith(BODY)
            if is_ours and not release["assets"]:
                self.api.delete(f"{path}/{release['id']}")
        return oldest

    def finish(self) -> None:
        """Publish the drafts that torchmill created, because all their files are uploaded."""
        for release in self.releases.values():
            if not release or not release["draft"]:
                continue
            if str(release.get("body") or "").startswith(BODY):
                path = f"/repos/{self.repository}/releases/{release['id']}"
                self.api.call("PATCH", path, {"draft": False})

    def _tag_of(self, file: UploadFile) -> str:
        """Return the tag of the release that a file belongs to."""
        if self.tag:
            return self.tag
        source_tag = finished_wheel.source_tag(file.wheel.version, file.wheel.manifest)
        return f"{file.wheel.name}-{source_tag}"

    def _find_release(self, tag: str) -> Release | None:
        """Return the release of a tag, None if there is none."""
        path = f"/repos/{self.repository}/releases/tags/{quote(tag, safe='')}"
        response = self.api.send("GET", path)
        if response.status_code != requests.codes.not_found:
            release: Release = _parse_response(response, path)
            return release
        # GitHub finds no draft by its tag, but lists drafts among all releases.
        for release in self._all_releases():
            if release["draft"] and release["tag_name"] == tag:
                return release
        return None

    def _all_releases(self) -> Iterator[Release]:
        return self.api.pages(
            f"/repos/{self.repository}/releases", f"{self.name} is not visible to this token"
        )

    def stored_files(self) -> Iterator[StoredFile]:
        """Yield the assets of the tag's release, or without a tag, of each package's releases."""
        for release in self._all_releases():
            tag = release["tag_name"]
            if self.tag not in {None, tag}:
                continue
            for asset in self._assets(release["id"]):
                package = canonicalize_name(asset["name"].partition("-")[0])
                belongs = bool(self.tag) or tag.startswith(f"{package}-")
                if belongs and asset.get("state") == "uploaded":
                    path = self._asset_path(asset["id"])
                    yield StoredFile(
                        asset["name"],
                        digest=partial(self._digest, asset),
                        read=partial(self._read_asset, path),
                        remove=partial(self.api.delete, path),
                    )

    def _assets(self, release: int) -> list[Mapping[str, Any]]:
        """Return the assets of the release with an id."""
        path = f"/repos/{self.repository}/releases/{release}/assets"
        missing = f"{self.name}: the release is gone: run the command again"
        return list(self.api.pages(path, missing))

    def _asset_path(self, asset: int) -> str:
        return f"/repos/{self.repository}/releases/assets/{asset}"

    def _digest(self, asset: Mapping[str, Any]) -> str:
        """Return the sha256 of an asset.

        GitHub has no digest of assets that were uploaded before June 2025: these are read.
        """
        algorithm, _, digest = str(asset.get("digest") or "").partition(":")
        if algorithm == "sha256":
            return digest
        path = self._asset_path(asset["id"])
        content = retries.repeat(
            lambda: digest_parts(self.api.content(path)), retries.judge_error, asset["name"]
        )
        return content.sha256

    def _read_asset(self, path: str) -> list[bytes]:
        """Return the content of a small asset, in parts."""
        return retries.repeat(
            lambda: list(self.api.content(path)), retries.judge_error, "GitHub, GET"
        )
