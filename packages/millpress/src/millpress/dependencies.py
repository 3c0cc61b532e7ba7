"""Compare what wheels of one version require."""

from collections.abc import Iterable
from email.message import Message
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    canonicalize_name,
)

from millpress import wheel_file
from millpress.errors import WheelError

DeclaredNeeds = frozenset[str]


def requirements_on(metadata: Message, name: str) -> list[str]:
    """Return the requirements on the project `name`, as METADATA spells them."""
    return [
        line
        for line in metadata.get_all("Requires-Dist", [])
        if project_of(line) == canonicalize_name(name)
    ]


def declared_needs(
    requires_python: str | None, requires: Iterable[str], extras: Iterable[str]
) -> DeclaredNeeds:
    """Return Requires-Python, Requires-Dist and Provides-Extra in a spelling that can be compared."""
    python = ",".join(sorted("".join((requires_python or "").split()).split(",")))
    needs = {_normalize_requirement(line) for line in requires}
    needs |= {f"extra {canonicalize_name(extra)}" for extra in extras}
    return frozenset(needs | ({f"Python {python}"} if python else set()))


def needs_difference(one: tuple[str, DeclaredNeeds], other: tuple[str, DeclaredNeeds]) -> str:
    """Return a sentence where two wheels, each with its file's name, need different things; else ""."""
    (first, own), (second, theirs) = one, other
    parts = [("also", theirs - own), ("not", own - theirs)]
    clauses = ", but ".join(f"{word} {', '.join(sorted(needs))}" for word, needs in parts if needs)
    advice = (
        "uv reads one of them and takes it for all: build them alike, with markers for what differs"
    )
    return f"{second} has other requirements than {first}: {clauses}; {advice}" if clauses else ""


def project_of(requirement: object) -> str:
    """Return the project that a requirement is on; "" for what nothing parses: old setuptools wrote some."""
    try:
        return canonicalize_name(Requirement(str(requirement)).name)
    except InvalidRequirement:
        return ""


def _normalize_requirement(line: str) -> str:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return line
    requirement.name = canonicalize_name(requirement.name)
    return str(requirement)


def sibling_wheels(wheel: Path) -> list[Path]:
    """Return the other wheels of the same version in a wheel's folder."""
    stem = "-".join(wheel.name.split("-")[:2])
    return sorted(path for path in wheel.parent.glob(f"{stem}-*.whl") if path != wheel)


def sibling_differences(wheel: Path, others: Iterable[Path]) -> list[str]:
    """Return a sentence for each other wheel that requires other packages, or supports other Pythons.

    A resolver reads the metadata of one wheel of a version, and takes it for all. Wheels that cannot be read
    are left out.
    """
    needs = {each.name: _read_needs(each) for each in (wheel, *others)}
    readable = [(name, declared) for name, declared in needs.items() if declared is not None]
    if needs[wheel.name] is None:
        return []
    return list(filter(None, (needs_difference(readable[0], other) for other in readable[1:])))


def _read_needs(wheel: Path) -> DeclaredNeeds | None:
    """Return what METADATA requires; None where it cannot be read."""
    try:
        headers = wheel_file.parse_headers(wheel_file.read_metadata(wheel))
    except WheelError:
        return None
    requires, extras = (headers.get_all(name, []) for name in ("Requires-Dist", "Provides-Extra"))
    return declared_needs(headers.get("Requires-Python"), requires, extras)
