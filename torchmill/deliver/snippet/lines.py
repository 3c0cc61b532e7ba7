"""A decision as requirements (PEP 508) and sources, which all tools have in some form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from packaging.version import Version

from torchmill.deliver.snippet import platforms
from torchmill.deliver.snippet.offers import FLAT, Offer, Place
from torchmill.deliver.snippet.words import Decision, Pin
from torchmill.matrix import python_key
from torchmill.model import Arch

Direct = Callable[[Pin], bool]  # whether a tool names the wheels of a pin by their address


def by_name(_: Pin) -> bool:
    """Tell that wheels are looked up by name and version."""
    return False


def by_address(pin: Pin) -> bool:
    """Tell that our own wheels are named by their address and hash."""
    return bool(pin.offers)


def requirements(decision: Decision, direct: Direct) -> tuple[str, ...]:
    """Return the lines of a project's dependencies, NumPy's at the end."""
    found: list[str] = []
    for package in decision.packages:
        pins = decision.of(package)
        named = [pin for pin in pins if not direct(pin)]
        for version in dict.fromkeys(pin.version for pin in named):
            marker = _marker(decision, [pin for pin in named if pin.version == version])
            found.append(_with(f"{package}=={version}", marker))
        for pin in pins:
            found += _addresses(decision, pin) if direct(pin) else ()
    return (*found, decision.numpy) if decision.numpy else tuple(found)


def sources(decision: Decision, package: str, direct: Direct) -> tuple[tuple[Place, str], ...]:
    """Return where a package comes from, each place with its marker, but for those that are asked anyway."""
    pins = [pin for pin in decision.of(package) if not direct(pin) and not pin.place.default]
    return tuple(
        (place, _marker(decision, [pin for pin in pins if pin.place == place]))
        for place in dict.fromkeys(pin.place for pin in pins)
    )


def places(decisions: Sequence[Decision], direct: Direct) -> tuple[Place, ...]:
    """Return the places that a project has to name."""
    pins = (pin for decision in decisions for pin in decision.pins)
    return tuple(dict.fromkeys(pin.place for pin in pins if not direct(pin) and not pin.place.default))


def mixed(decision: Decision) -> bool:
    """Tell whether one package has different versions here and there."""
    return any(len({pin.version for pin in decision.of(name)}) > 1 for name in decision.packages)


def shadowed(decision: Decision, pin: Pin) -> bool:
    """Tell whether what a pin asks for is also met by a labelled version of the same place.

    `==1.13.1` takes `1.13.1+cpu` too (PEP 440), and there is no way to say that it shall not.
    """
    if Version(pin.version).local:
        return False
    others = (one for one in decision.of(pin.package) if one.place == pin.place)
    return any(Version(one.version).local for one in others)


def python_range(pythons: Sequence[str]) -> str:
    """Return requires-python for exactly these: ">=3.10,<3.12", ">=3.10,!=3.11.*,<3.13"."""
    numbers = [python.rstrip("t") for python in pythons]
    major = numbers[0].partition(".")[0]
    minors = sorted({int(number.partition(".")[2]) for number in numbers})
    gaps = [f"!={major}.{one}.*" for one in range(minors[0], minors[-1]) if one not in minors]
    return ",".join([f">={major}.{minors[0]}", *gaps, f"<{major}.{minors[-1] + 1}"])


def header(decisions: Sequence[Decision], words: Sequence[str]) -> list[str]:
    """Return the comment above a snippet: what it is for, what is worth knowing, what to do with it."""
    first, *_ = decisions
    where = ", ".join(platforms.name(arch) for arch in first.platforms)
    variants = " or ".join(decision.variant for decision in decisions)
    pythons = ", ".join(first.pythons)
    notes = dict.fromkeys(note for decision in decisions for note in decision.notes)
    told = [f"{', '.join(first.packages)} ({variants}) for {where}; Python {pythons}", *notes, *words]
    return [f"# {line}" for line in told]


def _marker(decision: Decision, pins: Sequence[Pin]) -> str:
    return platforms.marker(_arches(pins), decision.platforms)


def _arches(pins: Sequence[Pin]) -> list[Arch]:
    return [pin.arch for pin in pins]


def _addresses(decision: Decision, pin: Pin) -> Iterator[str]:
    """Yield a line for each wheel of a pin; where there are several, the Python tells which."""
    here = platforms.marker([pin.arch], decision.platforms)
    for offer in pin.offers:
        yield _with(f"{pin.package} @ {address(offer)}", platforms.joined(here, python_marker(pin, offer)))


def python_marker(pin: Pin, offer: Offer) -> str:
    """Return the marker for the Pythons of one wheel of a pin; "" where it is the only one."""
    mine = [python for python in pin.pythons if python in offer.pythons]
    if len(pin.offers) == 1:
        return ""
    numbers = sorted({python.rstrip("t") for python in mine}, key=python_key)
    return " or ".join(f"python_version == '{number}'" for number in numbers)


def address(offer: Offer) -> str:
    """Return the address of a wheel with its hash, where that is known."""
    return f"{offer.url}#sha256={offer.sha256}" if offer.sha256 else offer.url


def flat(place: Place) -> bool:
    """Tell whether a place is a folder of wheels."""
    return place.kind == FLAT


def _with(requirement: str, marker: str) -> str:
    return f"{requirement} ; {marker}" if marker else requirement
