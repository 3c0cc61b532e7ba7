"""The wheels on offer, as a snippet needs to know them: from a folder of wheels, or from an index's pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchmill.deliver.distributions import Distribution
from torchmill.deliver.snippet import platforms
from torchmill.matrix import CPU, python_key
from torchmill.model import Facts, Release

if TYPE_CHECKING:
    from torchmill.upstream.index import File

FLAT, INDEX = "flat", "index"  # a folder of wheels; pages (PEP 503)
UNLABELLED = "unlabelled"  # the variant of a wheel that does not tell it


@dataclass(frozen=True, slots=True)
class Place:
    """Where installers find wheels."""

    name: str  # "torchmill"
    url: str
    kind: str  # FLAT or INDEX
    default: bool = False  # installers look there anyway

    @property
    def local(self) -> bool:
        """Tell whether it is a folder of this machine."""
        return self.url.startswith("file:")


@dataclass(frozen=True, slots=True)
class Offer:
    """A wheel of a package for one platform."""

    package: str
    version: Version
    variant: str  # "cpu", "cu118"; another label where that is all that is told
    paired: str  # what else stands in the label: "torch2.11.0"; ""
    arch: str
    pythons: tuple[str, ...]  # oldest first
    file: str
    url: str
    sha256: str | None
    build: tuple[int, str] | tuple[()] = ()


def from_folder(facts: Facts, wheels: Iterable[Distribution]) -> tuple[Offer, ...]:
    """Return what the wheels of a folder are, those of unknown packages and platforms left out."""
    found = (_offers(facts, one.file, one.path.as_uri(), one.sha256, one.manifest) for one in wheels)
    return tuple(offer for offers in found for offer in offers)


def from_pages(facts: Facts, files: Iterable[File]) -> tuple[Offer, ...]:
    """Return what the files of an index are; those that are yanked are left out."""
    found = (_offers(facts, one.name, one.url, one.sha256, {}) for one in files if not one.yanked)
    return tuple(offer for offers in found for offer in offers)


def is_of(facts: Facts, offer: Offer, release: Release) -> bool:
    """Tell whether a wheel is of a release, and goes with the base that this release goes with."""
    after = (facts.packages[release.package].after or "").replace("-", ".")
    same = offer.package == release.package and Version(offer.version.public) == Version(release.version)
    return same and offer.paired in {"", f"{after}{release.torch}"}


def _offers(
    facts: Facts, file: str, url: str, sha256: str | None, manifest: Mapping[str, Any]
) -> Iterator[Offer]:
    """Yield a wheel once for each platform it is for; manylinux has many names for one."""
    try:
        package, version, build, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return
    if package not in facts.packages:
        return
    arches = {arch.name: arch for tag in tags if (arch := platforms.of_tag(facts, tag.platform))}
    for arch in arches.values():
        variant, paired = _variant(facts, version, arch.system, manifest)
        yield Offer(
            package=package,
            version=version,
            variant=variant,
            paired=paired,
            arch=arch.name,
            pythons=_pythons(facts, package, version, tags),
            file=file,
            url=url,
            sha256=sha256,
            build=build,
        )


def _variant(facts: Facts, version: Version, system: str, manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Return the variant of a wheel, by its label or what is told of its build, and the rest of its label."""
    variants = {CPU, *(toolkit.variant for toolkit in facts.toolkits)}
    first, _, rest = (version.local or "").partition(".")
    if first in variants:
        return first, rest
    if system == "macos" and not first:
        return CPU, ""
    if manifest:
        toolkit = facts.toolkit(manifest.get("toolkit"))
        return (toolkit.variant if toolkit else CPU), ""
    return version.local or UNLABELLED, ""


def _pythons(facts: Facts, package: str, version: Version, tags: Iterable[Tag]) -> tuple[str, ...]:
    """Return the Pythons of a wheel: "cp310-cp310" is for 3.10, "py3-none" for all of its release."""
    found: set[str] = set()
    for tag in tags:
        if tag.interpreter.startswith("cp") and tag.abi != "abi3":
            number = tag.interpreter.removeprefix("cp")
            found.add(f"{number[0]}.{number[1:]}{'t' if tag.abi.endswith('t') else ''}")
        else:
            releases = (one for one in facts.releases[package] if one.version == version.base_version)
            found |= {python for one in releases for python in one.pythons}
    return tuple(sorted(found, key=python_key))
