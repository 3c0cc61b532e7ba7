"""What to fetch and from where, and what to do when the usual way to a source is closed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchmill.config.model import Facts, Package, Release
from torchmill.core.errors import ConfigError

DEBIAN, PYPI = "debian", "pypi"  # the words after --from that name no path
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_NOT_IN_A_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.lock$")


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One source to fetch, and where it may come from."""

    package: Package
    release: Release
    ref: str | None = None  # a branch or a commit, in place of the release's tag
    mirror: str | None = None  # where the repositories are, in place of their own hosts
    origin: str | None = None  # a folder, an archive, its URL, "debian" or "pypi", in place of git
    sha256: str = ""  # of an archive or what its URL gives; "": not known
    discard: bool = False  # what was fetched before, and whatever was changed in it

    @property
    def what(self) -> str:
        """Return its name in messages."""
        return f"{self.package.name} {self.ref or self.release.tag}"

    def validate(self) -> None:
        """Raise ConfigError for options that are invalid, or exclude each other."""
        if self.origin is not None and self.mirror is not None:
            raise ConfigError(
                "--from and --mirror exclude each other: a mirror holds git repositories; give one",
                code="conflicting-options",
            )
        if self.origin is not None and self.ref is not None:
            raise ConfigError(
                f"--ref {self.ref} names something in git, which --from does not ask; leave one out",
                code="conflicting-options",
            )
        if self.sha256 and self.origin in {None, DEBIAN, PYPI}:
            raise ConfigError(
                "--sha256 is that of an archive: give it with --from PATH|URL", code="conflicting-options"
            )
        if self.sha256 and not _SHA256.fullmatch(self.sha256):
            raise ConfigError(
                f"--sha256 {self.sha256}: give the 64 hexadecimal digits that `sha256sum` prints",
                code="invalid-digest",
            )
        for name in (self.ref, self.release.tag):
            if name is not None and (not name or name.startswith("-") or _NOT_IN_A_REF.search(name)):
                raise ConfigError(
                    f"'{name}' cannot be the name of a tag, branch or commit: check --tag and --ref",
                    code="invalid-ref",
                )
        if self.release.tag.startswith(".") or "/" in self.release.tag:
            raise ConfigError(
                f"the tag '{self.release.tag}' cannot name a folder: correct build_configs/releases",
                code="invalid-ref",
            )

    def ways_out(self) -> str:
        """Return what a user may do when the usual way to a source is closed."""
        ways = ["name a mirror of the repositories (`--mirror URL`)"] if self.package.repository else []
        ways.append("give a folder or an archive (`--from PATH|URL`)")
        if self.release.version in self.package.debian and self.origin != DEBIAN:
            ways.append("take it from Debian's source archive (`--from debian`)")
        if self.package.pypi and self.origin != PYPI:
            ways.append("take it from PyPI (`--from pypi`)")
        return " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))


def source_requests(
    facts: Facts,
    releases: Sequence[Release],
    *,
    ref: str,
    mirror: str,
    origin: str,
    sha256: str = "",
    discard: bool = False,
) -> tuple[SourceRequest, ...]:
    """Return the requests for the sources of some releases.

    A package without a repository comes from PyPI unless `origin` says otherwise. Raises ConfigError for a
    ref, or a digest, of several packages.
    """
    if sha256 and len(releases) > 1:
        raise ConfigError("--sha256 is of one archive: fetch one package at a time", code="ref-of-several")
    if ref and len(releases) > 1:
        raise ConfigError("--ref names a commit of one package: fetch one at a time", code="ref-of-several")
    requests = []
    for each in releases:
        package = facts.packages[each.package]
        in_git = bool(package.repository)
        source = origin or (None if in_git else PYPI)
        requests.append(SourceRequest(package, each, ref or None, (in_git and mirror) or None, source, sha256, discard))
    return tuple(requests)
