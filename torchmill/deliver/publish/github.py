"""Releases of a repository on GitHub, by its REST API (https://docs.github.com/rest/releases)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from torchmill import address
from torchmill.deliver.publish.api import Api
from torchmill.deliver.publish.parcel import File
from torchmill.errors import ConfigError, DeliveryError

PUBLIC = "https://api.github.com"
LARGEST = 2 * 2**30  # bytes; an asset must have fewer
MOST = 1000  # assets of a release
BODY = "Wheels built from source by torchmill."  # by it a draft that was left is known as ours

Release = Mapping[str, Any]


@dataclass(slots=True)
class Releases:
    """The releases of a repository; one that is new is a draft until all its files are there."""

    repository: str  # "OWNER/NAME"
    tag: str | None  # None: each wheel's own
    api: Api
    takes_documents: bool = True
    found: dict[str, Release | None] = field(default_factory=dict)  # by tag
    broken: dict[str, int] = field(default_factory=dict)  # asset of which only a part came -> its id

    @classmethod
    def of(cls, repository: str, tag: str | None, environ: Mapping[str, str]) -> Releases:
        """Return the releases of a repository, with the token of the environment. Raises ConfigError."""
        token = environ.get("GH_TOKEN") or environ.get("GITHUB_TOKEN")
        if not token:
            raise ConfigError(
                "--to github: set GH_TOKEN or GITHUB_TOKEN to a token that may write the contents of "
                f"{repository}"
            )
        url = environ.get("GITHUB_API_URL") or PUBLIC
        address.checked("GITHUB_API_URL", url, ("https", "http"), PUBLIC)
        return cls(repository, tag, Api(url, token))

    @property
    def name(self) -> str:
        """Return how messages call it."""
        return f"github:{self.repository}" + (f"@{self.tag}" if self.tag else "")

    def complaint(self, file: File) -> str | None:
        """Return why a file is too large."""
        if file.size < LARGEST:
            return None
        return f"{file.name} has {file.size} bytes; GitHub takes less than {LARGEST} a file"

    def there(self, files: Sequence[File]) -> Mapping[str, str]:
        """Return the sha256 of the files that their releases have; a part of a file counts as none."""
        digests = {}
        for tag in sorted({self._tag(file) for file in files}):
            mine = {file.name for file in files if self._tag(file) == tag}
            release = self.found[tag] = self._release(tag)
            assets = list(self._assets(release)) if release else []
            if len(mine | {asset["name"] for asset in assets}) > MOST:
                raise DeliveryError(f"{self.name}: a release has {MOST} files at most: name another tag")
            for asset in (one for one in assets if one["name"] in mine):
                if asset.get("state") == "uploaded":
                    digests[asset["name"]] = self._digest(asset)
                else:
                    self.broken[asset["name"]] = asset["id"]
        return digests

    def put(self, file: File) -> None:
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

    def _tag(self, file: File) -> str:
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
