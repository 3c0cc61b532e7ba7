"""What the official indexes have for a platform, as far as the facts know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchmill.deliver.snippet import platforms
from torchmill.deliver.snippet.offers import INDEX, Place
from torchmill.matrix import CPU, python_key
from torchmill.model import Arch, Elsewhere, Facts, Release
from torchmill.rules import within


@dataclass(frozen=True, slots=True)
class Official:
    """The wheels of a release for a platform in an index of others."""

    version: str
    place: Place
    pythons: tuple[str, ...]


def found(facts: Facts, base: Release, release: Release, variant: str, arch: Arch) -> Official | None:
    """Return the official wheels of a release that goes with `base`; None where none are known."""
    for one in _fitting(facts, base, release, variant, arch):
        if pythons := _pythons(facts, release, arch):
            place = Place(
                one.name.format(variant=variant), one.url.format(variant=variant), INDEX, one.default
            )
            return Official(release.version + one.label.format(variant=variant), place, pythons)
    return None


def _fitting(facts: Facts, base: Release, release: Release, variant: str, arch: Arch) -> Iterator[Elsewhere]:
    official = {toolkit.variant for toolkit in facts.toolkits if toolkit.version in base.cuda_official}
    kind = CPU if variant == CPU else "cuda" if variant in official else ""
    for one in facts.elsewhere:
        fits = release.package in one.packages and within(one.release, base.version)
        if fits and kind in one.variants and arch.name in one.arches:
            yield one


def _pythons(facts: Facts, release: Release, arch: Arch) -> tuple[str, ...]:
    mine = (pythons for tag, pythons in release.wheels.items() if platforms.of_tag(facts, tag) == arch)
    return tuple(sorted({python for pythons in mine for python in pythons}, key=python_key))
