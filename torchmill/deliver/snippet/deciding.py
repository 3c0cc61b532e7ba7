"""For each platform of a project: which wheels, and where from. Nothing is touched.

All packages of a platform come from one place: torchvision of the official index does not load with a torch
that was compiled here, for they differ in the ABI of C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packaging.version import Version

from torchmill.deliver.snippet import official, platforms
from torchmill.deliver.snippet.building import Lacking, advice
from torchmill.deliver.snippet.notes import noted
from torchmill.deliver.snippet.numpy import bound
from torchmill.deliver.snippet.offers import Offer, is_of
from torchmill.deliver.snippet.words import Decision, Pin, Request, Stock
from torchmill.errors import DeliveryError
from torchmill.matrix import CPU, python_key
from torchmill.model import Arch, Facts, Release


def decide(facts: Facts, stock: Stock, request: Request) -> Decision:
    """Return which wheels of which places serve a project.

    Raises DeliveryError where a platform has none, or no Python is served everywhere, with what to build.
    """
    found = [pin for arch in request.platforms for pin in _on(facts, stock, request, arch)]
    pythons = _everywhere(facts, request, stock, found)
    order = {release.package: number for number, release in enumerate(request.releases)}
    return Decision(
        variant=request.variant,
        platforms=request.platforms,
        pins=tuple(_limited(pin, pythons) for pin in sorted(found, key=lambda pin: order[pin.package])),
        pythons=pythons,
        numpy=bound(facts, request.releases, pythons, request.platforms),
        notes=tuple(noted(facts, stock, request, found, pythons)),
    )


def _on(facts: Facts, stock: Stock, request: Request, arch: Arch) -> tuple[Pin, ...]:
    """Return the pins of one platform; where the variant is not to be had, those of `cpu`.

    Raises DeliveryError where there are none.
    """
    base, *_ = request.releases
    for variant in dict.fromkeys((request.variant, CPU)):
        ours = tuple(_own(facts, stock, release, variant, arch) for release in request.releases)
        if ours[0] is not None:
            lacking = tuple(one for one, pin in zip(request.releases, ours, strict=True) if pin is None)
            if lacking:
                wanted = replace(request, releases=lacking, variant=variant)
                raise _absent(facts, stock, wanted, arch, f"; or leave it out: --package {base.package}")
            return tuple(pin for pin in ours if pin is not None)
        theirs = tuple(_theirs(facts, base, release, variant, arch) for release in request.releases)
        if None not in theirs:
            return tuple(pin for pin in theirs if pin is not None)
    raise _absent(facts, stock, request, arch)


def _own(facts: Facts, stock: Stock, release: Release, variant: str, arch: Arch) -> Pin | None:
    """Return the pin of our wheels: those with the label of the variant, then those for most Pythons."""
    by_version: dict[Version, list[Offer]] = {}
    for one in stock.offers:
        if (one.variant, one.arch) == (variant, arch.name) and is_of(facts, one, release):
            by_version.setdefault(one.version, []).append(one)
    if not by_version:
        return None

    def worth(version: Version) -> tuple[bool, int, Version]:
        pythons = {python for one in by_version[version] for python in one.pythons}
        return (version.local or "").startswith(variant), len(pythons), version

    version = max(by_version, key=worth)
    newest = {one.pythons: one for one in sorted(by_version[version], key=lambda one: one.build)}
    offers = tuple(sorted(newest.values(), key=lambda one: [python_key(each) for each in one.pythons]))
    pythons = tuple(sorted({each for one in offers for each in one.pythons}, key=python_key))
    return Pin(release.package, str(version), variant, arch, pythons, stock.place, offers)


def _theirs(facts: Facts, base: Release, release: Release, variant: str, arch: Arch) -> Pin | None:
    found = official.found(facts, base, release, variant, arch)
    if found is None:
        return None
    return Pin(release.package, found.version, variant, arch, found.pythons, found.place)


def _limited(pin: Pin, pythons: Sequence[str]) -> Pin:
    """Return a pin without the wheels of Pythons that the project cannot have."""
    offers = tuple(one for one in pin.offers if set(one.pythons) & set(pythons))
    return replace(pin, pythons=tuple(one for one in pin.pythons if one in pythons), offers=offers)


def _everywhere(facts: Facts, request: Request, stock: Stock, pins: Sequence[Pin]) -> tuple[str, ...]:
    """Return the Pythons for which each pin has a wheel; those without the GIL only if there is no other."""
    common = set.intersection(*(set(pin.pythons) for pin in pins))
    if not common:
        said = "; ".join(
            f"{pin.package} on {platforms.name(pin.arch)}: {', '.join(pin.pythons)}" for pin in pins
        )
        ours = {python for pin in pins if pin.offers for python in pin.pythons}
        lacking = [
            Lacking(pin.package, pin.variant, python, pin.arch)
            for pin in pins
            for python in sorted(ours - set(pin.pythons), key=python_key)
        ]
        raise DeliveryError(
            f"no Python has all wheels of {stock.where} ({said}): {advice(facts, request, lacking)}"
        )
    usual = {python for python in common if not python.endswith("t")}
    return tuple(sorted(usual or common, key=python_key))


def _absent(facts: Facts, stock: Stock, request: Request, arch: Arch, more: str = "") -> DeliveryError:
    """Return the error for releases that have no wheel on a platform."""
    names = " and ".join(str(release) for release in request.releases)
    base, *_ = request.releases
    ours = {python for one in stock.offers if one.variant == request.variant for python in one.pythons}
    pythons = [python for python in base.pythons if python in ours] or [base.pythons[-1]]
    lacking = [
        Lacking(release.package, request.variant, python, arch)
        for python in pythons
        for release in request.releases
    ]
    return DeliveryError(
        f"no wheel of {names} ({request.variant}) for {platforms.name(arch)}, neither in {stock.where} nor "
        f"in an official index: {advice(facts, request, lacking)}{more}"
    )
