"""Decide for each platform of a project which wheels it uses, and from which places."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config.build import CPU, Arch, Build
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.versions import python_key
from torchmill.core.errors import DeliveryError
from torchmill.deliver.snippet.model import (
    PlatformPin,
    SnippetDecision,
    SnippetRequest,
    WheelOffer,
    WheelStock,
)
from torchmill.deliver.snippet.platforms import platform_name
from torchmill.deliver.snippet.stock import find_official, is_offer_of
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import make_cell
from torchmill.plan.rules import CellConstraints

Pins = Sequence[PlatformPin]

# Versions of NumPy 2. A wheel that is compiled against any of these works with NumPy 1 and 2.
_NUMPY_2 = ("2.0.0", "2.0.2", "2.4.0")


class MissingWheel(NamedTuple):
    """A wheel that nobody has."""

    package: str
    variant: str
    python: str
    arch: Arch


def decide(facts: Facts, stock: WheelStock, request: SnippetRequest) -> SnippetDecision:
    """Return the wheels that a project uses, and their places.

    Raises DeliveryError if a platform has no wheels, or if no Python has wheels on all platforms;
    the message names what to build.
    """
    pins: list[PlatformPin] = []
    for arch in request.platforms:
        pins += _platform_pins(facts, stock, request, arch)
    pythons = _common_pythons(facts, request, stock, pins)
    packages = [release.package for release in request.releases]
    pins_by_package = sorted(pins, key=lambda pin: packages.index(pin.package))
    return SnippetDecision(
        variant=request.variant,
        platforms=request.platforms,
        pins=tuple(_limit_pin(pin, pythons, request) for pin in pins_by_package),
        pythons=pythons,
        numpy=numpy_requirement(facts, request.releases, pythons, request.platforms),
        notes=tuple(decision_notes(facts, stock, request, pins, pythons)),
    )


def _platform_pins(
    facts: Facts, stock: WheelStock, request: SnippetRequest, arch: Arch
) -> tuple[PlatformPin, ...]:
    """Return the pins of one platform; if it has no wheels of the variant, those of `cpu`.

    Wheels of ours come first. Raises DeliveryError if there are no wheels for all releases.
    """
    base = request.releases[0]
    for variant in dict.fromkeys((request.variant, CPU)):
        our_pins = [_our_pin(facts, stock, release, variant, arch) for release in request.releases]
        if our_pins[0] is not None:
            # Extensions of other makers are not built against a base of ours.
            missing = [
                release
                for release, pin in zip(request.releases, our_pins, strict=True)
                if pin is None
            ]
            if missing:
                requested = replace(request, releases=tuple(missing), variant=variant)
                hint = f"; or leave it out: --package {base.package}"
                raise _no_wheel(facts, stock, requested, arch, hint)
            return tuple(pin for pin in our_pins if pin is not None)
        # With the official base, there may be extensions of ours, which were built against it.
        usual = any(our_pins)
        pins = []
        for release, our_pin in zip(request.releases, our_pins, strict=True):
            pin = our_pin or find_official(facts, release, variant, arch, usual=usual)
            if pin is not None:
                pins.append(pin)
        if len(pins) == len(request.releases):
            return tuple(pins)
    raise _no_wheel(facts, stock, request, arch)


def _our_pin(
    facts: Facts, stock: WheelStock, release: Release, variant: str, arch: Arch
) -> PlatformPin | None:
    """Return the pin of our wheels of a release on a platform; None if there are none.

    If there are several versions, those with the label of the variant come first, then those for
    most Pythons.
    """
    by_version: dict[Version, list[WheelOffer]] = {}
    for offer in stock.offers:
        matches = (offer.variant, offer.arch) == (variant, arch.name)
        if matches and is_offer_of(facts, offer, release):
            by_version.setdefault(offer.version, []).append(offer)
    if not by_version:
        return None

    def rank(version: Version) -> tuple[bool, int, Version]:
        labelled = (version.local or "").startswith(variant)
        return labelled, len(_served_pythons(by_version[version])), version

    version = max(by_version, key=rank)
    # Of several builds for the same Pythons, installers take the highest build number.
    newest = {}
    for offer in sorted(by_version[version], key=lambda offer: offer.build):
        newest[offer.pythons] = offer
    offers = sorted(newest.values(), key=_pythons_key)
    pythons = tuple(sorted(_served_pythons(offers), key=python_key))
    return PlatformPin(
        release.package, str(version), variant, arch, pythons, stock.place, tuple(offers)
    )


def _served_pythons(offers: Sequence[WheelOffer]) -> set[str]:
    """Return the Pythons that any of some wheels is for."""
    pythons: set[str] = set()
    for offer in offers:
        pythons.update(offer.pythons)
    return pythons


def _pythons_key(offer: WheelOffer) -> list[object]:
    """Return the key that sorts wheels by their Pythons."""
    return [python_key(python) for python in offer.pythons]


def _limit_pin(pin: PlatformPin, pythons: Sequence[str], request: SnippetRequest) -> PlatformPin:
    """Return a pin without the Pythons that the project cannot have, named as the request asks."""
    offers = tuple(offer for offer in pin.offers if set(offer.pythons) & set(pythons))
    served = tuple(python for python in pin.pythons if python in pythons)
    return replace(pin, pythons=served, offers=offers, direct=request.direct and bool(offers))


def _common_pythons(
    facts: Facts, request: SnippetRequest, stock: WheelStock, pins: Pins
) -> tuple[str, ...]:
    """Return the Pythons for which every pin has a wheel, oldest first.

    Pythons without the GIL are among them only if there are no others. Raises DeliveryError if
    there are none at all.
    """
    common = set.intersection(*(set(pin.pythons) for pin in pins))
    if common:
        with_gil = {python for python in common if not python.endswith("t")}
        return tuple(sorted(with_gil or common, key=python_key))
    served = [
        f"{pin.package} on {platform_name(pin.arch)}: {', '.join(pin.pythons)}" for pin in pins
    ]
    our_pythons = _our_pythons(pins)
    missing: list[MissingWheel] = []
    for pin in pins:
        absent = sorted(our_pythons - set(pin.pythons), key=python_key)
        missing += [MissingWheel(pin.package, pin.variant, python, pin.arch) for python in absent]
    advice = build_advice(facts, request, missing)
    raise DeliveryError(
        f"no Python has all wheels of {stock.title} ({'; '.join(served)}): {advice}",
        code="no-common-python",
    )


def _our_pythons(pins: Pins) -> set[str]:
    """Return the Pythons that wheels of ours are for."""
    pythons: set[str] = set()
    for pin in pins:
        if pin.offers:
            pythons.update(pin.pythons)
    return pythons


def _no_wheel(
    facts: Facts, stock: WheelStock, request: SnippetRequest, arch: Arch, hint: str = ""
) -> DeliveryError:
    """Return the error for releases that have no wheel on a platform; `hint` ends its message."""
    base = request.releases[0]
    offers = [offer for offer in stock.offers if offer.variant == request.variant]
    our_pythons = _served_pythons(offers)
    pythons = [python for python in base.pythons if python in our_pythons] or [base.pythons[-1]]
    missing = [
        MissingWheel(release.package, request.variant, python, arch)
        for python, release in product(pythons, request.releases)
    ]
    names = " and ".join(str(release) for release in request.releases)
    advice = build_advice(facts, request, missing)
    return DeliveryError(
        f"no wheel of {names} ({request.variant}) for {platform_name(arch)}, neither in "
        f"{stock.title} nor in an official index: {advice}{hint}",
        code="no-wheel",
    )


def build_advice(facts: Facts, request: SnippetRequest, missing: Sequence[MissingWheel]) -> str:
    """Return the command that builds the missing wheels that can be built, or why none can."""
    toolkits: dict[str, str | None] = {CPU: None}
    for toolkit in facts.toolkits:
        toolkits[toolkit.variant] = toolkit.version
    releases = {release.package: release for release in request.releases}
    cells = []
    for wheel in missing:
        if wheel.variant not in toolkits:  # a foreign label, which no session builds
            continue
        build = Build(
            wheel.package,
            facts.packages[wheel.package].session,
            wheel.python,
            wheel.variant,
            wheel.arch.name,
            toolkits[wheel.variant],
        )
        cells.append(make_cell(facts, releases[wheel.package], build))
    builds = [cell.build for cell in cells if cell.possible]
    if not builds:
        reasons = [cell.reason for cell in cells if cell.reason]
        return f"it cannot be built: {reasons[0]}" if reasons else "no session builds it"
    arch = facts.arches[builds[0].arch]
    # A container can stand for another machine, but only with Linux in it. Any other session has to
    # run on that machine itself, and does not name it there.
    on_other_machine = arch.system != "linux" and arch.name != request.native
    if on_other_machine:
        names = [build.identifier(build.arch) for build in builds]
    else:
        names = [build.identifier(request.native) for build in builds]
    command = f"build with `nox -s {' '.join(dict.fromkeys(names))}`"
    if on_other_machine:
        return f"{command}, on {platform_name(arch)}"
    return command


def decision_notes(
    facts: Facts, stock: WheelStock, request: SnippetRequest, pins: Pins, pythons: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each deviation from the request, with the command that avoids it."""
    for arch in request.platforms:
        platform_pins = [pin for pin in pins if pin.arch == arch]
        yield from _substitution_notes(facts, request, platform_pins, pythons)
    yield from _excluded_pythons(facts, request, pins, pythons)
    used = tuple(f"{pin.package} {pin.version}:" for pin in pins if pin.offers)
    for warning in stock.warnings:
        if warning.startswith(used):
            yield warning


def _substitution_notes(
    facts: Facts, request: SnippetRequest, pins: Pins, pythons: Sequence[str]
) -> Iterator[str]:
    """Yield a line if a platform gets another variant, or wheels that are not ours."""
    first = pins[0]
    platform = platform_name(first.arch)
    if first.variant != request.variant and first.arch.system != "macos":
        yield f"{platform}: no {request.variant} wheel exists, so this is the {first.variant} one"
    if not first.offers:
        missing = [
            MissingWheel(pin.package, pin.variant, python, pin.arch)
            for python, pin in product(pythons, pins)
            if not pin.offers
        ]
        advice = build_advice(facts, request, missing)
        yield f"{platform}: wheels of {first.place.url}; for ours, {advice}"


def _excluded_pythons(
    facts: Facts, request: SnippetRequest, pins: Pins, pythons: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each Python that some wheels of ours are for and the project cannot have."""
    our_pythons = {python for python in _our_pythons(pins) if not python.endswith("t")}
    for python in sorted(our_pythons - set(pythons), key=python_key):
        without = [pin for pin in pins if python not in pin.pythons]
        wheels = ", ".join(f"{pin.package} on {platform_name(pin.arch)}" for pin in without)
        missing = [MissingWheel(pin.package, pin.variant, python, pin.arch) for pin in without]
        advice = build_advice(facts, request, missing)
        yield f"not for Python {python}: no wheel of {wheels}; {advice}"


def numpy_requirement(
    facts: Facts, releases: Sequence[Release], pythons: Sequence[str], platforms: Sequence[Arch]
) -> str | None:
    """Return the requirement on NumPy that a project needs with these releases: "numpy<2", or None.

    A wheel that is compiled against NumPy 1 fails with NumPy 2, and its METADATA seldom says so.
    """
    for release, arch, python in product(releases, platforms, pythons):
        session = facts.packages[release.package].session
        build = Build(release.package, session, python, CPU, arch.name)
        for rule in CellConstraints(facts, Cell(build, release)).rules():
            for line in rule.requires:
                requirement = Requirement(line)
                if requirement.name == "numpy" and not _admits_numpy_2(requirement):
                    return "numpy<2"
    return None


def _admits_numpy_2(requirement: Requirement) -> bool:
    return any(requirement.specifier.contains(version) for version in _NUMPY_2)
