"""A fetched source tree, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.config.field_types import no_entries

_SHORT_DIGEST = 8  # hexadecimal digits of a digest or commit in messages


@dataclass(frozen=True, slots=True)
class Source:
    """A fetched source tree, as `invoke fetch` recorded it."""

    package: str
    version: str
    tag: str
    provider: str  # "git", "path", "debian", "pypi"
    origin: str  # URL, path or archive, for messages
    # The commit whose files the tree has, as git_proof.py has proven; None: nothing is proven.
    commit: str | None
    path: Path  # of the tree
    # The facts record for the release this commit, or this digest of the archive.
    verified: bool
    submodules: Mapping[str, str] = no_entries()  # path -> commit, proven as `commit` is
    build_backend: str | None = None  # of [build-system] in pyproject.toml
    contents: str = ""  # sha256 of the names, modes and contents of all files
    archive: str | None = None  # sha256 of the archive that was unpacked
    declared: str | None = None  # the commit that an archive or a folder names, without proof
    unproven: str = ""  # why no commit is proven, as a clause
    # A clause on the version that a file of the tree states, if it is not `version`.
    contradiction: str = ""
    # Why a build refuses the tree as it is now: it was changed after it was fetched.
    refusal: str = ""

    @property
    def identity(self) -> str:
        """Return a text that differs if the files do: the proven commit, or a digest of all."""
        return f"commit {self.commit}" if self.commit else f"contents {self.contents}"

    @property
    def title(self) -> str:
        """Return the identity in short, for messages.

        It is "commit 49444c3e", "no proven commit, contents 1a2b3c4d" or "no proven commit", and then
        the contradiction, if there is one.
        """
        doubt = f"; {self.contradiction}" if self.contradiction else ""
        if self.commit:
            return f"commit {self.commit[:_SHORT_DIGEST]}{doubt}"
        if self.contents:
            return f"no proven commit, contents {self.contents[:_SHORT_DIGEST]}{doubt}"
        return f"no proven commit{doubt}"
