"""A decision as requirements (PEP 508), sources and TOML, which all package managers share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from packaging.version import Version

from torchmill.config.matrix import python_key
from torchmill.deliver.snippet import stock
from torchmill.deliver.snippet.stock import PlatformPin, SnippetDecision, WheelOffer, WheelPlace

Direct = Callable[[PlatformPin], bool]  # whether a tool names the wheels of a pin by their address


def never_direct(_: PlatformPin) -> bool:
    """Tell that wheels are looked up by name and version."""
    return False


def direct_if_ours(pin: PlatformPin) -> bool:
    """Tell that our own wheels are named by their address and hash."""
    return bool(pin.offers)


def requirement_lines(decision: SnippetDecision, direct: Direct) -> tuple[str, ...]:
    """Return the lines of a project's dependencies, NumPy's at the end."""
    found: list[str] = []
    for package in decision.packages:
        pins = decision.of_package(package)
        named = [pin for pin in pins if not direct(pin)]
        for version in dict.fromkeys(pin.version for pin in named):
            marker = _marker(decision, [pin for pin in named if pin.version == version])
            found.append(_with(f"{package}=={version}", marker))
        for pin in pins:
            found += _addresses(decision, pin) if direct(pin) else ()
    return (*found, decision.numpy) if decision.numpy else tuple(found)


def source_lines(
    decision: SnippetDecision, package: str, direct: Direct
) -> tuple[tuple[WheelPlace, str], ...]:
    """Return where a package comes from, each place with its marker, but for those that are asked anyway."""
    pins = [pin for pin in decision.of_package(package) if not direct(pin) and not pin.place.default]
    return tuple(
        (place, _marker(decision, [pin for pin in pins if pin.place == place]))
        for place in dict.fromkeys(pin.place for pin in pins)
    )


def places_to_name(decisions: Sequence[SnippetDecision], direct: Direct) -> tuple[WheelPlace, ...]:
    """Return the places that a project has to name."""
    pins = (pin for decision in decisions for pin in decision.pins)
    return tuple(dict.fromkeys(pin.place for pin in pins if not direct(pin) and not pin.place.default))


def is_shadowed(decision: SnippetDecision, pin: PlatformPin) -> bool:
    """Tell whether what a pin asks for is also met by a labelled version of the same place.

    `==1.13.1` takes `1.13.1+cpu` too (PEP 440), and there is no way to say that it shall not.
    """
    if Version(pin.version).local:
        return False
    others = (one for one in decision.of_package(pin.package) if one.place == pin.place)
    return any(Version(one.version).local for one in others)


def python_range(pythons: Sequence[str]) -> str:
    """Return requires-python for exactly these: ">=3.10,<3.12", ">=3.10,!=3.11.*,<3.13"."""
    numbers = [python.rstrip("t") for python in pythons]
    major = numbers[0].partition(".")[0]
    minors = sorted({int(number.partition(".")[2]) for number in numbers})
    gaps = [f"!={major}.{one}.*" for one in range(minors[0], minors[-1]) if one not in minors]
    return ",".join([f">={major}.{minors[0]}", *gaps, f"<{major}.{minors[-1] + 1}"])


def snippet_header(decisions: Sequence[SnippetDecision], words: Sequence[str]) -> list[str]:
    """Return the comment above a snippet: what it is for, what is worth knowing, what to do with it."""
    first, *_ = decisions
    where = ", ".join(stock.platform_name(arch) for arch in first.platforms)
    variants = " or ".join(decision.variant for decision in decisions)
    pythons = ", ".join(first.pythons)
    notes = dict.fromkeys(note for decision in decisions for note in decision.notes)
    lines = [f"{', '.join(first.packages)} ({variants}) for {where}; Python {pythons}", *notes, *words]
    return [f"# {line}" for line in lines]


def _marker(decision: SnippetDecision, pins: Sequence[PlatformPin]) -> str:
    return stock.platforms_marker([pin.arch for pin in pins], decision.platforms)


def _addresses(decision: SnippetDecision, pin: PlatformPin) -> Iterator[str]:
    """Yield a line for each wheel of a pin; where there are several, the Python tells which."""
    here = stock.platforms_marker([pin.arch], decision.platforms)
    for offer in pin.offers:
        yield _with(
            f"{pin.package} @ {wheel_address(offer)}", stock.join_markers(here, python_marker(pin, offer))
        )


def python_marker(pin: PlatformPin, offer: WheelOffer) -> str:
    """Return the marker for the Pythons of one wheel of a pin; "" where it is the only one."""
    mine = [python for python in pin.pythons if python in offer.pythons]
    if len(pin.offers) == 1:
        return ""
    numbers = sorted({python.rstrip("t") for python in mine}, key=python_key)
    return " or ".join(f"python_version == '{number}'" for number in numbers)


def wheel_address(offer: WheelOffer) -> str:
    """Return the address of a wheel with its hash, where that is known."""
    return f"{offer.url}#sha256={offer.sha256}" if offer.sha256 else offer.url


def _with(requirement: str, marker: str) -> str:
    return f"{requirement} ; {marker}" if marker else requirement


def toml_string(value: str) -> str:
    """Return a string in quotes."""
    # JSON and TOML escape alike, but for DEL, which JSON leaves as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_array(values: Sequence[str]) -> str:
    """Return a list of strings, one per line."""
    return "\n".join(["[", *(f"    {toml_string(value)}," for value in values), "]"])


def toml_inline(table: Mapping[str, str]) -> str:
    """Return a small table in one line."""
    return "{ " + ", ".join(f"{key} = {toml_string(value)}" for key, value in table.items()) + " }"


def toml_inlines(tables: Sequence[Mapping[str, str]]) -> str:
    """Return a list of small tables, one per line."""
    return "\n".join(["[", *(f"    {toml_inline(table)}," for table in tables), "]"])


def project_table(decisions: Sequence[SnippetDecision], direct: Direct) -> list[str]:
    """Return the lines of the table: dependencies, or an extra for each variant where there are several."""
    first, *_ = decisions
    pythons = [python for python in first.pythons if all(python in one.pythons for one in decisions)]
    lines = [
        "[project]",
        'name = "my-project"',
        'version = "0.1.0"',
        f"requires-python = {toml_string(python_range(pythons))}",
    ]
    if len(decisions) == 1:
        return [*lines, f"dependencies = {toml_array(requirement_lines(first, direct))}"]
    lines += ["", "[project.optional-dependencies]"]
    return [*lines, *(f"{one.variant} = {toml_array(requirement_lines(one, direct))}" for one in decisions)]


def extra_option(decisions: Sequence[SnippetDecision], command: str) -> str:
    """Return how an extra is chosen; "" where there is none to choose."""
    if len(decisions) == 1:
        return ""
    return ": " + " or ".join(f"`{command} {one.variant}`" for one in decisions)
