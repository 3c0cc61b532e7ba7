"""Decide for each platform of a project which wheels it uses, and from which places.

A *stock* has our wheels in one place, each an *offer*. A *pin* is the decision for one package on
one platform: a version, its wheels, and the place that installers fetch them from. Wheels that are
not ours are official wheels, in the indexes of the facts; a pin of them has no offers, because
their files are not known. The *base* is torch, the first of the releases of a request: the other
packages are built against it.
"""

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

# NumPy 2's first version, and a version after its last one: a requirement that does not exclude
# NumPy 2 admits at least one of them.
_NUMPY_2 = (Version("2.0.0"), Version("2.9999"))


class MissingWheel(NamedTuple):
    """A wheel that is neither in the stock nor in an official index."""

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
    pythons = _common_pythons(facts, stock, request, pins)
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
    """Return the pins of one platform, one for each release.

    The requested variant comes before `cpu`, and in each variant our wheels before official wheels.
    Raises DeliveryError if no variant has wheels of all releases.
    """
    base = request.releases[0]
    for variant in dict.fromkeys((request.variant, CPU)):
        our_pins: dict[str, PlatformPin] = {}
        for release in request.releases:
            our_pin = _our_pin(facts, stock, release, variant, arch)
            if our_pin is not None:
                our_pins[release.package] = our_pin
        missing = [release for release in request.releases if release.package not in our_pins]
        if not missing:
            return tuple(our_pins.values())
        if base.package in our_pins:
            # Official extensions are not built against our base, so they do not fit. An official
            # base would, and so might `cpu`, but the user has built a base, and must be told that
            # it cannot be used.
            requested = replace(request, releases=tuple(missing), variant=variant)
            hint = f"; or leave it out: --package {base.package}"
            raise _no_wheel(facts, stock, requested, arch, hint)
        # Our extensions can go with an official base. They are built against the base of the index
        # that installers ask by themselves, so that index is preferred to others then.
        pins = []
        for release in request.releases:
            pin = our_pins.get(release.package) or find_official(
                facts, release, variant, arch, prefer_default=bool(our_pins)
            )
            if pin is not None:
                pins.append(pin)
        if len(pins) == len(request.releases):
            return tuple(pins)
    raise _no_wheel(facts, stock, request, arch)


def _our_pin(
    facts: Facts, stock: WheelStock, release: Release, variant: str, arch: Arch
) -> PlatformPin | None:
    """Return the pin of our wheels of a release on a platform; None if there are none.

    Of several versions, the one whose label names the variant comes first, then the one that has
    wheels for the most Pythons, then the newest.
    """
    by_version: dict[Version, list[WheelOffer]] = {}
    for offer in stock.offers:
        matches = (offer.variant, offer.arch) == (variant, arch.name)
        if matches and is_offer_of(facts, offer, release):
            by_version.setdefault(offer.version, []).append(offer)
    if not by_version:
        return None

    def rank(version: Version) -> tuple[bool, int, Version]:
        # "cu118", or "cu118.torch2.1". With the dot, "rocm6.10" does not begin with "rocm6.1".
        labelled = f"{version.local}.".startswith(f"{variant}.")
        return labelled, len(_served_pythons(by_version[version])), version

    version = max(by_version, key=rank)
    # Of several builds for the same Pythons, installers take the highest build number.
    newest_by_pythons = {}
    for offer in sorted(by_version[version], key=lambda offer: offer.build):
        newest_by_pythons[offer.pythons] = offer
    offers = sorted(newest_by_pythons.values(), key=_pythons_key)
    pythons = tuple(sorted(_served_pythons(offers), key=python_key))
    return PlatformPin(
        package=release.package,
        version=str(version),
        variant=variant,
        arch=arch,
        pythons=pythons,
        place=stock.place,
        offers=tuple(offers),
    )


def _served_pythons(offers: Sequence[WheelOffer]) -> set[str]:
    """Return the Pythons that at least one of the wheels is for."""
    pythons: set[str] = set()
    for offer in offers:
        pythons.update(offer.pythons)
    return pythons


def _pythons_key(offer: WheelOffer) -> list[object]:
    """Return the key that sorts wheels by their Pythons."""
    return [python_key(python) for python in offer.pythons]


def _limit_pin(pin: PlatformPin, pythons: Sequence[str], request: SnippetRequest) -> PlatformPin:
    """Return a pin without the Pythons, and their wheels, that the project cannot have.

    `pythons` are those that it can have. If the request asks for it, the pin's wheels are named by
    URL and hash (`direct`), except official wheels, whose URLs are not known.
    """
    offers = tuple(offer for offer in pin.offers if set(offer.pythons) & set(pythons))
    served = tuple(python for python in pin.pythons if python in pythons)
    return replace(pin, pythons=served, offers=offers, direct=request.direct and bool(offers))


def _common_pythons(
    facts: Facts, stock: WheelStock, request: SnippetRequest, pins: Pins
) -> tuple[str, ...]:
    """Return the Pythons for which every pin has a wheel, oldest first.

    Pythons without the GIL are among them only if there are no others. `pins` must not be empty.
    Raises DeliveryError if no Python has all wheels.
    """
    common = set(pins[0].pythons)
    for pin in pins:
        common.intersection_update(pin.pythons)
    if common:
        with_gil = {python for python in common if not python.endswith("t")}
        return tuple(sorted(with_gil or common, key=python_key))
    our_pythons = _our_pythons(pins)
    served: list[str] = []
    missing: list[MissingWheel] = []
    for pin in pins:
        pythons = ", ".join(pin.pythons)
        served.append(f"{pin.package} on {platform_name(pin.arch)}: {pythons}")
        for python in sorted(our_pythons - set(pin.pythons), key=python_key):
            missing.append(MissingWheel(pin.package, pin.variant, python, pin.arch))
    if our_pythons:
        advice = build_advice(facts, request, missing)
    else:  # all wheels are official, and no build of ours adds to them
        advice = "choose other platforms, or another release"
    raise DeliveryError(
        f"no Python has all wheels of {stock.title} ({'; '.join(served)}): {advice}",
        code="no-common-python",
    )


def _our_pythons(pins: Pins) -> set[str]:
    """Return the Pythons that a wheel of ours is for, without those of official wheels only."""
    pythons: set[str] = set()
    for pin in pins:
        if pin.offers:
            pythons.update(pin.pythons)
    return pythons


def _no_wheel(
    facts: Facts, stock: WheelStock, request: SnippetRequest, arch: Arch, hint: str = ""
) -> DeliveryError:
    """Return the error for a request with releases that have no wheels on a platform.

    It advises to build them for the Pythons of our other wheels, or for the newest Python if there
    are no others. `hint` ends its message.
    """
    candidates = request.releases[0].pythons
    offers = [offer for offer in stock.offers if offer.variant == request.variant]
    our_pythons = _served_pythons(offers)
    pythons = [python for python in candidates if python in our_pythons]
    if not pythons:
        with_gil = [python for python in candidates if not python.endswith("t")]
        pythons = [with_gil[-1] if with_gil else candidates[-1]]
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
    """Return the commands that build those of the missing wheels that can be built.

    If none can be built, the reason is returned: "it cannot be built: …".
    """
    toolkits: dict[str, str | None] = {CPU: None}
    for toolkit in facts.toolkits:
        toolkits[toolkit.variant] = toolkit.version
    releases = {release.package: release for release in request.releases}
    cells = []
    for wheel in missing:
        if wheel.variant not in toolkits:  # a foreign label, which no session builds
            continue
        build = Build(
            package=wheel.package,
            session=facts.packages[wheel.package].session,
            python=wheel.python,
            variant=wheel.variant,
            arch=wheel.arch.name,
            cuda=toolkits[wheel.variant],
        )
        cells.append(make_cell(facts, releases[wheel.package], build))
    builds = [cell.build for cell in cells if cell.is_possible]
    if builds:
        return f"build with {_session_commands(facts, request, builds)}"
    reasons = [cell.reason for cell in cells if cell.reason]
    if reasons:
        return f"it cannot be built: {reasons[0]}"
    return "no session builds it"


def _session_commands(facts: Facts, request: SnippetRequest, builds: Sequence[Build]) -> str:
    """Return the command for the builds of this machine, and one for each other machine.

    A container can stand for another machine, but only with Linux in it. Any other session has to
    run on that machine itself, and does not name it there.
    """
    sessions_by_machine: dict[str, list[str]] = {}
    for build in builds:
        arch = facts.arches[build.arch]
        if arch.system == "linux" or arch.name == request.native:
            machine = ""
            session = build.identifier(request.native)
        else:
            machine = f", on {platform_name(arch)}"
            session = build.identifier(build.arch)
        sessions = sessions_by_machine.setdefault(machine, [])
        if session not in sessions:
            sessions.append(session)
    commands = []
    for machine, sessions in sessions_by_machine.items():
        commands.append(f"`nox -s {' '.join(sessions)}`{machine}")
    return ", and ".join(commands)


def decision_notes(
    facts: Facts, stock: WheelStock, request: SnippetRequest, pins: Pins, pythons: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each point in which the decision is not what was requested.

    The line has the command that builds the missing wheels.
    """
    for arch in request.platforms:
        platform_pins = [pin for pin in pins if pin.arch == arch]
        yield from _substitution_notes(facts, request, platform_pins, pythons)
    yield from _excluded_pythons(facts, request, pins, pythons)
    # A warning of a WheelStock begins with package and version. Only those of used wheels count.
    beginnings = tuple(f"{pin.package} {pin.version}:" for pin in pins if pin.offers)
    for warning in stock.warnings:
        if warning.startswith(beginnings):
            yield warning


def _substitution_notes(
    facts: Facts, request: SnippetRequest, pins: Pins, pythons: Sequence[str]
) -> Iterator[str]:
    """Yield a line if a platform gets another variant, or wheels that are not ours."""
    first = pins[0]
    platform = platform_name(first.arch)
    # Wheels for macOS are all of `cpu`, so nothing was replaced there.
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
    """Yield a line for each Python of our wheels that the project cannot have."""
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

    A wheel that is compiled against NumPy 1 fails with NumPy 2
    (https://numpy.org/doc/stable/dev/depending_on_numpy.html), and the METADATA of torch up to 2.2
    does not say so (build_configs/images.toml). One such wheel is enough, because a project has one
    NumPy for all platforms and Pythons.
    """
    for release, arch, python in product(releases, platforms, pythons):
        session = facts.packages[release.package].session
        # The rules on NumPy are the same for all variants.
        build = Build(release.package, session, python, CPU, arch.name)
        for rule in CellConstraints(facts, Cell(build, release)).rules():
            for line in rule.requires:
                requirement = Requirement(line)
                if requirement.name == "numpy" and not _admits_numpy_2(requirement):
                    return "numpy<2"
    return None


def _admits_numpy_2(requirement: Requirement) -> bool:
    """Tell whether a requirement on NumPy admits NumPy 2 or later; its marker is ignored."""
    candidates = list(_NUMPY_2)
    for specifier in requirement.specifier:
        # "==2.1.*" and ">=2.5" may admit only versions that they name
        candidates.append(Version(specifier.version.removesuffix(".*")))
    for version in candidates:
        if version.major >= _NUMPY_2[0].major and requirement.specifier.contains(version):
            return True
    return False
