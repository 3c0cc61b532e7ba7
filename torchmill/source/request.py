"""What is asked of a provider, and how it says how far it is."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from torchmill.errors import ConfigError
from torchmill.matrix import partners
from torchmill.model import Facts, Package, Release

DEBIAN, PYPI = "debian", "pypi"  # the words after --from that name no path
_SHA = re.compile(r"[0-9a-f]{40}")
_NOT_IN_A_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.lock$")


@dataclass(frozen=True, slots=True)
class Request:
    """One source that is wanted, and where it may come from."""

    package: Package
    release: Release
    ref: str | None = None  # a branch or a commit, in place of the release's tag
    mirror: str | None = None  # where the repositories are, in place of their own hosts
    origin: str | None = None  # a folder, an archive, its URL, "debian" or "pypi", in place of git

    @property
    def what(self) -> str:
        """Return how messages call it."""
        return f"{self.package.name} {self.ref or self.release.tag}"


def requests(
    facts: Facts, release: Release, names: Collection[str], *, ref: str, mirror: str, origin: str
) -> tuple[Request, ...]:
    """Return what is asked for: the sources of the named packages that go with a release, or its own.

    A package without a repository comes from PyPI unless it is said otherwise. Raises ConfigError for a name
    that is no package, and for a ref of several packages; UnknownReleaseError where a package has no such
    release.
    """
    wanted = partners(facts, release, names)
    if ref and len(wanted) > 1:
        raise ConfigError("--ref names a commit of one package: fetch one at a time")
    found = []
    for one in wanted:
        package = facts.packages[one.package]
        in_git = bool(package.repository)
        whence = origin or (None if in_git else PYPI)
        found.append(Request(package, one, ref or None, (in_git and mirror) or None, whence))
    return tuple(found)


class Bar(Protocol):
    """One thing that takes long."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how much is done, of how much where that is known, and of what."""

    def close(self) -> None:
        """Say that it is over, well or not."""


class Progress(Protocol):
    """Where bars are shown."""

    def task(self, title: str, total: int | None = None) -> Bar:
        """Begin a bar."""


class SilentBar:
    """A bar that nobody sees."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class Silent:
    """Progress that nobody sees."""

    def task(self, title: str, total: int | None = None) -> Bar:  # noqa: ARG002 (the protocol's)
        """Return a bar that nobody sees."""
        return SilentBar()


def is_commit(ref: str | None) -> bool:
    """Tell whether a ref is a whole commit id, which means the same everywhere and for ever."""
    return ref is not None and _SHA.fullmatch(ref) is not None


def validate(request: Request) -> None:
    """Raise ConfigError for words that cannot be meant, or cannot be meant together."""
    if request.origin is not None and request.mirror is not None:
        raise ConfigError("--from and --mirror exclude each other: a mirror holds git repositories; give one")
    if request.origin is not None and request.ref is not None:
        raise ConfigError(
            f"--ref {request.ref} names something in git, which --from does not ask; leave one out"
        )
    for name in (request.ref, request.release.tag):
        if name is not None and (not name or name.startswith("-") or _NOT_IN_A_REF.search(name)):
            raise ConfigError(
                f"'{name}' cannot be the name of a tag, branch or commit: check --tag and --ref"
            )
    if request.release.tag.startswith(".") or "/" in request.release.tag:
        raise ConfigError(
            f"the tag '{request.release.tag}' cannot name a folder: correct build_configs/releases"
        )
