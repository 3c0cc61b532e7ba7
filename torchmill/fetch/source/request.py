"""Requests for sources: the package, the release, and the place to fetch from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.core.errors import ConfigError

# The words after --from that are neither a path nor a URL.
DEBIAN = "debian"
PYPI = "pypi"
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
# Characters and sequences that git-check-ref-format(1) forbids.
_NOT_IN_A_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.lock$")


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One source to fetch, and the place to fetch it from."""

    package: Package
    release: Release
    ref: str | None = None  # a branch or a commit, in place of the release's tag
    # A host or folder that has copies of git repositories, and is used in place of their own hosts.
    mirror: str | None = None
    # The text after --from: a folder, an archive, its URL, "debian" or "pypi"; None: git.
    origin: str | None = None
    sha256: str = ""  # of the archive that `origin` names; "": unknown
    discard: bool = False  # delete the tree that was fetched before, with all changes in it

    @property
    def title(self) -> str:
        """Return the name of the source in messages: "torch v2.4.1"."""
        return f"{self.package.name} {self.ref or self.release.tag}"

    def validate(self) -> None:
        """Raise ConfigError for options that are invalid, or exclude each other."""
        self._refuse_conflicts()
        if self.sha256 and not _SHA256.fullmatch(self.sha256):
            raise ConfigError(
                f"--sha256 {self.sha256}: give the 64 hexadecimal digits that `sha256sum` prints",
                code="invalid-digest",
            )
        for name in (self.ref, self.release.tag):
            if name is None:
                continue
            # git would take a leading "-" for an option
            if not name or name.startswith("-") or _NOT_IN_A_REF.search(name):
                raise ConfigError(
                    f"'{name}' cannot be the name of a tag, branch or commit: check --tag "
                    "and --ref",
                    code="invalid-ref",
                )
        if self.release.tag.startswith(".") or "/" in self.release.tag:
            raise ConfigError(
                f"the tag '{self.release.tag}' cannot name a folder: correct "
                "build_configs/releases",
                code="invalid-ref",
            )

    def _refuse_conflicts(self) -> None:
        """Raise ConfigError if options exclude each other."""
        conflict = ""
        if self.origin is not None and self.mirror is not None:
            conflict = (
                "--from and --mirror exclude each other: a mirror holds git repositories; give one"
            )
        elif self.ref is not None and not self.package.source.repository:
            conflict = (
                f"--ref {self.ref} names something in git, and {self.package.name} has no git "
                "repository: leave it out"
            )
        elif self.origin is not None and self.ref is not None:
            conflict = (
                f"--ref {self.ref} names something in git, which --from does not use; leave one out"
            )
        elif self.sha256 and self.origin in {None, DEBIAN, PYPI}:
            conflict = "--sha256 is for an archive: give it with --from PATH|URL"
        if conflict:
            raise ConfigError(conflict, code="conflicting-options")

    def alternatives(self) -> str:
        """Return what a user may do if the source cannot be fetched as requested, as a clause."""
        options = []
        if self.package.source.repository:
            options.append("name a mirror of the repositories (`--mirror URL`)")
        options.append("give a folder or an archive (`--from PATH|URL`)")
        if self.release.version in self.package.source.debian.sources and self.origin != DEBIAN:
            options.append("take it from Debian's source archive (`--from debian`)")
        if self.package.source.pypi and self.origin != PYPI:
            options.append("take it from PyPI (`--from pypi`)")
        if len(options) == 1:
            return options[0]
        return f"{', '.join(options[:-1])} or {options[-1]}"


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
    """Return a request for the source of each release.

    The options come from the command line; "" is an option that was not given. A package without
    a git repository comes from PyPI unless `origin` names another place, and its request has no
    mirror. Raises ConfigError if a ref or a digest is given for several packages.
    """
    if (sha256 or ref) and len(releases) > 1:
        mistake = "--sha256 is for one archive" if sha256 else "--ref names a commit of one package"
        raise ConfigError(f"{mistake}: fetch one package at a time", code="ref-of-several")
    requests = []
    for release in releases:
        package = facts.packages[release.package]
        package_origin = origin or None
        package_mirror = mirror or None
        if not package.source.repository:
            package_origin = origin or PYPI
            package_mirror = None  # the mirror is for the other packages
        request = SourceRequest(
            package,
            release,
            ref=ref or None,
            mirror=package_mirror,
            origin=package_origin,
            sha256=sha256,
            discard=discard,
        )
        requests.append(request)
    return tuple(requests)
