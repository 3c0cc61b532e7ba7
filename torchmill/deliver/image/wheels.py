"""The wheels of dist/ that go into a runtime image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from torchmill.deliver import distributions
from torchmill.deliver.image.request import Request
from torchmill.errors import DeliveryError
from torchmill.matrix import paired
from torchmill.model import Facts, Release
from torchmill.naming import python_tag

VISION = "vision"  # the session of the package that stands beside torch


def releases(facts: Facts, request: Request) -> tuple[Release, ...]:
    """Return what a runtime image holds: the release, and that of torchvision which goes with it."""
    vision = [one.name for one in facts.packages.values() if one.session == VISION]
    partners = [paired(facts, name, request.release) for name in vision]
    return (request.release, *(one for one in partners if one is not None))


def requirements(facts: Facts, request: Request) -> tuple[str, ...]:
    """Return what is asked of an index: "torch==1.13.1+cpu". A local version must be pinned with `==`."""
    return tuple(f"{one.package}=={one.version}+{request.variant}" for one in releases(facts, request))


def chosen(facts: Facts, request: Request, dist: Path) -> tuple[Path, ...]:
    """Return the wheels for a runtime image: torch's, and torchvision's where there is one.

    Raises DeliveryError where torch's is missing, saying which session builds it, or where one is no wheel.
    """
    found = [next(_fitting(dist, one, request), None) for one in releases(facts, request)]
    if found[0] is None:
        cell = f"wheel-{request.pythons[0]}-{request.variant}"
        raise DeliveryError(
            f"{dist} has no {request.release} ({request.variant}) for Python {request.pythons[0]} on "
            f"{request.arch}: build it (`nox -s {cell}`), or name an index that has it with --index URL"
        )
    wheels = tuple(path for path in found if path is not None)
    for path in wheels:
        distributions.read(path)
    return wheels


def lacking(facts: Facts, request: Request, brought: Sequence[Path]) -> tuple[Release, ...]:
    """Return the releases that a runtime image should hold, and of which there is no wheel."""
    names = {distributions.named(path)[0] for path in brought}
    return tuple(one for one in releases(facts, request) if canonicalize_name(one.package) not in names)


def _fitting(dist: Path, release: Release, request: Request) -> Iterator[Path]:
    """Yield the wheels of a release that a request's Python installs, the newest build first."""
    plain = set(python_tag(request.pythons[0]).split("-"))
    found = []
    for path in distributions.files(dist):
        name, version, build, tags = distributions.named(path)
        label = (version.local or "").partition(".")[0]
        same = name == canonicalize_name(release.package) and version.public == release.version
        fits = any(
            {tag.interpreter, tag.abi} <= plain | {"py3", "none", "abi3"}
            and tag.platform.endswith(f"_{request.arch}")
            and "linux" in tag.platform
            for tag in tags
        )
        if same and label == request.variant and fits:
            found.append((build or (0, ""), path))
    yield from (path for _, path in sorted(found, reverse=True))
