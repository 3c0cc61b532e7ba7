"""A fetched source tree, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.config.field_types import no_entries


@dataclass(frozen=True, slots=True)
class Source:
    """A fetched source tree, as `invoke fetch` recorded it."""

    package: str
    version: str
    tag: str
    provider: str  # "git", "path", "debian", "pypi"
    origin: str  # URL, path or archive, for people
    commit: (
        str | None
    )  # that the files were proven to be, by git's objects; None: nothing proves any
    path: Path
    verified: bool  # the commit, or the digest of the archive, is the one that the facts record for the release
    submodules: Mapping[str, str] = no_entries()  # path -> commit; proven as `commit` is
    build_backend: str | None = None  # of [build-system] in its pyproject.toml
    contents: str = ""  # sha256 over names, modes and contents of all files
    archive: str | None = None  # sha256 of the archive that it was unpacked from
    declared: str | None = (
        None  # the commit that an archive or a folder names, which nothing proves
    )
    unproven: str = ""  # why no commit is proven, as a clause
    refusal: str = (
        ""  # why a build refuses it as it lies there now: it was changed after it was fetched
    )

    @property
    def identity(self) -> str:
        """Return what tells its files from others: the commit if that is proven, else the digest of its contents."""
        return f"commit {self.commit}" if self.commit else f"contents {self.contents}"

    @property
    def title(self) -> str:
        """Return what is known of its files, for people: "commit 49444c3e", "no proven commit, contents 1a2b3c4d"."""
        if self.commit:
            return f"commit {self.commit[:8]}"
        return f"no proven commit{f', contents {self.contents[:8]}' if self.contents else ''}"
