"""Decide for each platform of a project which wheels it uses and where they come from."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config.build import CPU, Arch, Build
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.versions import python_key
from torchmill.core.errors import DeliveryError
from torchmill.deliver.snippet.stock import (
    PlatformPin,
    SnippetDecision,
    SnippetRequest,
    WheelOffer,
    WheelStock,
    find_official,
    is_offer_of,
    platform_name,
)
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import make_cell
from torchmill.plan.rules import CellConstraints

Pins = Sequence[PlatformPin]
Lacking = tuple[
    str, str, str, Arch
]  # package, variant, Python and platform of a wheel that is not there
_TWO = (
    "2.0.0",
    "2.0.2",
    "2.4.0",
)  # of NumPy 2: what is compiled against any of these works with 1 and 2


def build_advice(facts: Facts, request: SnippetRequest, lacking: Sequence[Lacking]) -> str:
    """Return the command that builds what can be built of some wheels, or why nothing can."""
    toolkits: dict[str, str | None] = {CPU: None} | {
        one.variant: one.version for one in facts.toolkits
    }
    releases = {one.package: one for one in request.releases}
    cells = []
    for package, variant, python, arch in lacking:
        if variant in toolkits:  # no session builds another
            build = Build(
                package,
                facts.packages[package].session,
                python,
                variant,
                arch.name,
                toolkits[variant],
            )
            cells.append(make_cell(facts, releases[package], build))
    possible = [one.build for one in cells if one.possible]
    if not possible:
        reasons = [one.reason for one in cells if one.reason]
        return f"it cannot be built: {reasons[0]}" if reasons else "no session builds it"
    where = facts.arches[possible[0].arch]
    # a container can be another machine, but only with Linux in it
    elsewhere = where.system != "linux" and where.name != request.native
    names = dict.fromkeys(
        one.identifier(one.arch if elsewhere else request.native) for one in possible
    )
    return f"build with `nox -s {' '.join(names)}`" + (
        f", on {platform_name(where)}" if elsewhere else ""
    )


def decision_notes(
    facts: Facts, stock: WheelStock, request: SnippetRequest, pins: Pins, pythons: Sequence[str]
) -> Iterator[str]:
    """Yield a line for whatever is not as it was asked for, with what would have to be built."""
    for arch in request.platforms:
        yield from _substitute(facts, request, [pin for pin in pins if pin.arch == arch], pythons)
    yield from _left_out(facts, request, pins, pythons)
    used = {f"{pin.package} {pin.version}:" for pin in pins if pin.offers}
    yield from (warning for warning in stock.warnings if warning.startswith(tuple(used)))


def _substitute(
    facts: Facts, request: SnippetRequest, pins: Pins, pythons: Sequence[str]
) -> Iterator[str]:
    """Yield what is taken on a platform for want of a wheel of ours, or of the variant."""
    first, *_ = pins
    where = platform_name(first.arch)
    if first.variant != request.variant and first.arch.system != "macos":
        yield f"{where}: no {request.variant} wheel exists, so this is the {first.variant} one"
    if not first.offers:
        official = [pin for pin in pins if not pin.offers]
        lacking = [
            (pin.package, pin.variant, python, pin.arch) for python in pythons for pin in official
        ]
        yield f"{where}: wheels of {first.place.url}; for ours, {build_advice(facts, request, lacking)}"


def _left_out(
    facts: Facts, request: SnippetRequest, pins: Pins, pythons: Sequence[str]
) -> Iterator[str]:
    """Yield which of our Pythons a project cannot have, and for want of which wheels."""
    ours = {
        python for pin in pins if pin.offers for python in pin.pythons if not python.endswith("t")
    }
    for python in sorted(ours - set(pythons), key=python_key):
        without = [pin for pin in pins if python not in pin.pythons]
        where = ", ".join(f"{pin.package} on {platform_name(pin.arch)}" for pin in without)
        lacking = [(pin.package, pin.variant, python, pin.arch) for pin in without]
        yield f"not for Python {python}: no wheel of {where}; {build_advice(facts, request, lacking)}"


def numpy_requirement(
    facts: Facts, releases: Sequence[Release], pythons: Sequence[str], platforms: Sequence[Arch]
) -> str | None:
    """Return the requirement that a project needs beside these releases, "numpy<2"; None: it needs none.

    A wheel that is compiled against NumPy 1 fails with NumPy 2, and its METADATA seldom says so.
    """
    for release, arch, python in product(releases, platforms, pythons):
        build = Build(
            release.package, facts.packages[release.package].session, python, CPU, arch.name
        )
        rules = CellConstraints(facts, Cell(build, release)).rules()
        lines = (Requirement(line) for rule in rules for line in rule.requires)
        if any(one.name == "numpy" and not any(map(one.specifier.contains, _TWO)) for one in lines):
            return "numpy<2"
    return None


def decide(facts: Facts, stock: WheelStock, request: SnippetRequest) -> SnippetDecision:
    """Return which wheels of which places serve a project.

    Raises DeliveryError where a platform has none, or no Python is served everywhere, with what to build.
    """
    found = [pin for arch in request.platforms for pin in _on(facts, stock, request, arch)]
    pythons = _everywhere(facts, request, stock, found)
    order = {release.package: number for number, release in enumerate(request.releases)}
    return SnippetDecision(
        variant=request.variant,
        platforms=request.platforms,
        pins=tuple(
            _limited(pin, pythons, request)
            for pin in sorted(found, key=lambda pin: order[pin.package])
        ),
        pythons=pythons,
        numpy=numpy_requirement(facts, request.releases, pythons, request.platforms),
        notes=tuple(decision_notes(facts, stock, request, found, pythons)),
    )


def _on(
    facts: Facts, stock: WheelStock, request: SnippetRequest, arch: Arch
) -> tuple[PlatformPin, ...]:
    """Return the pins of one platform; where the variant is not available, those of `cpu`.

    Raises DeliveryError where there are none.
    """
    base, *_ = request.releases
    for variant in dict.fromkeys((request.variant, CPU)):
        ours = tuple(_own(facts, stock, release, variant, arch) for release in request.releases)
        if ours[0] is not None:
            lacking = tuple(
                one for one, pin in zip(request.releases, ours, strict=True) if pin is None
            )
            if lacking:
                wanted = replace(request, releases=lacking, variant=variant)
                raise _absent(
                    facts, stock, wanted, arch, f"; or leave it out: --package {base.package}"
                )
            return tuple(pin for pin in ours if pin is not None)
        # Beside the official base there may be extensions of ours, which were built against it.
        beside = any(ours)
        pins = [
            pin or find_official(facts, release, variant, arch, usual=beside)
            for release, pin in zip(request.releases, ours, strict=True)
        ]
        complete = tuple(pin for pin in pins if pin is not None)
        if len(complete) == len(pins):
            return complete
    raise _absent(facts, stock, request, arch)


def _own(
    facts: Facts, stock: WheelStock, release: Release, variant: str, arch: Arch
) -> PlatformPin | None:
    """Return the pin of our wheels: those with the label of the variant, then those for most Pythons."""
    by_version: dict[Version, list[WheelOffer]] = {}
    for one in stock.offers:
        if (one.variant, one.arch) == (variant, arch.name) and is_offer_of(facts, one, release):
            by_version.setdefault(one.version, []).append(one)
    if not by_version:
        return None

    def worth(version: Version) -> tuple[bool, int, Version]:
        pythons = {python for one in by_version[version] for python in one.pythons}
        return (version.local or "").startswith(variant), len(pythons), version

    version = max(by_version, key=worth)
    newest = {one.pythons: one for one in sorted(by_version[version], key=lambda one: one.build)}
    offers = tuple(
        sorted(newest.values(), key=lambda one: [python_key(each) for each in one.pythons])
    )
    pythons = tuple(sorted({each for one in offers for each in one.pythons}, key=python_key))
    return PlatformPin(release.package, str(version), variant, arch, pythons, stock.place, offers)


def _limited(pin: PlatformPin, pythons: Sequence[str], request: SnippetRequest) -> PlatformPin:
    """Return a pin as it is asked for, without the wheels of Pythons that the project cannot have."""
    offers = tuple(one for one in pin.offers if set(one.pythons) & set(pythons))
    served, direct = (
        tuple(one for one in pin.pythons if one in pythons),
        request.direct and bool(offers),
    )
    return replace(pin, pythons=served, offers=offers, direct=direct)


def _everywhere(
    facts: Facts, request: SnippetRequest, stock: WheelStock, pins: Pins
) -> tuple[str, ...]:
    """Return the Pythons for which each pin has a wheel; those without the GIL only if there is no other."""
    common = set.intersection(*(set(pin.pythons) for pin in pins))
    if not common:
        served = "; ".join(
            f"{pin.package} on {platform_name(pin.arch)}: {', '.join(pin.pythons)}" for pin in pins
        )
        ours = {python for pin in pins if pin.offers for python in pin.pythons}
        lacking = [
            (pin.package, pin.variant, python, pin.arch)
            for pin in pins
            for python in sorted(ours - set(pin.pythons), key=python_key)
        ]
        raise DeliveryError(
            f"no Python has all wheels of {stock.title} ({served}): {build_advice(facts, request, lacking)}",
            code="no-common-python",
        )
    return tuple(
        sorted({python for python in common if not python.endswith("t")} or common, key=python_key)
    )


def _absent(
    facts: Facts, stock: WheelStock, request: SnippetRequest, arch: Arch, more: str = ""
) -> DeliveryError:
    """Return the error for releases that have no wheel on a platform."""
    names = " and ".join(str(release) for release in request.releases)
    base, *_ = request.releases
    ours = {
        python for one in stock.offers if one.variant == request.variant for python in one.pythons
    }
    pythons = [python for python in base.pythons if python in ours] or [base.pythons[-1]]
    lacking = [
        (release.package, request.variant, python, arch)
        for python in pythons
        for release in request.releases
    ]
    return DeliveryError(
        f"no wheel of {names} ({request.variant}) for {platform_name(arch)}, neither in {stock.title} nor "
        f"in an official index: {build_advice(facts, request, lacking)}{more}",
        code="no-wheel",
    )
