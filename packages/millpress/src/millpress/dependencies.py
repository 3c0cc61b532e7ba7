"""Compare what the wheels of one version require.

A resolver reads the metadata of one wheel of a version and takes it for all of them, so the wheels
for other Pythons and systems should declare the same requirements.
"""

from collections.abc import Iterable
from email.message import Message
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from millpress import wheel_file
from millpress.errors import WheelError

# What a wheel requires, each requirement in a normalized spelling: "numpy>=1.21", "Python >=3.10",
# "extra opt-einsum".
DeclaredNeeds = frozenset[str]


class WheelNeeds(NamedTuple):
    """A wheel and what it requires."""

    file: str  # its file name
    needs: DeclaredNeeds


def project_of(requirement: object) -> str:
    """Return the normalized name of the project that a requirement is on.

    Returns "" if `packaging` cannot parse the requirement, as with some that old setuptools wrote,
    or if it is not a text: a dependency group in pyproject.toml may also have tables.
    """
    try:
        return canonicalize_name(Requirement(str(requirement)).name)
    except InvalidRequirement:
        return ""


def requirements_on(metadata: Message, name: str) -> list[str]:
    """Return the requirements on the project `name`, as METADATA spells them."""
    project = canonicalize_name(name)
    lines = metadata.get_all("Requires-Dist", [])
    return [line for line in lines if project_of(line) == project]


def declared_needs(
    requires_python: str | None, requires: Iterable[str], extras: Iterable[str]
) -> DeclaredNeeds:
    """Return Requires-Python, Requires-Dist and Provides-Extra in a comparable spelling."""
    needs = {_normalize_requirement(line) for line in requires}
    needs |= {f"extra {canonicalize_name(extra)}" for extra in extras}
    if requires_python is not None:
        # as text, not by SpecifierSet: one that cannot be parsed is to be compared, too
        specifiers = "".join(requires_python.split()).split(",")
        python = ",".join(sorted(specifiers))
        if python:
            needs.add(f"Python {python}")
    return frozenset(needs)


def needs_difference(first: WheelNeeds, second: WheelNeeds) -> str:
    """Return a sentence if two wheels require different things, else ""."""
    clauses = []
    additional_needs = second.needs - first.needs
    if additional_needs:
        clauses.append(f"also {', '.join(sorted(additional_needs))}")
    missing_needs = first.needs - second.needs
    if missing_needs:
        clauses.append(f"not {', '.join(sorted(missing_needs))}")
    if not clauses:
        return ""
    return (
        f"{second.file} has other requirements than {first.file}: {', but '.join(clauses)}; "
        "uv reads one of them and takes it for all: build them alike, with markers for what differs"
    )


def sibling_wheels(wheel: Path) -> list[Path]:
    """Return the other wheels of the same project and version in a wheel's folder."""
    stem = "-".join(wheel.name.split("-")[:2])
    return sorted(path for path in wheel.parent.glob(f"{stem}-*.whl") if path != wheel)


def sibling_differences(wheel: Path, others: Iterable[Path]) -> list[str]:
    """Return a sentence for each other wheel that requires other packages or Pythons.

    Wheels that cannot be read are left out.
    """
    needs = _read_needs(wheel)
    if needs is None:
        return []
    sentences = []
    for other in others:
        other_needs = _read_needs(other)
        if other_needs is None:
            continue
        sentence = needs_difference(
            WheelNeeds(wheel.name, needs), WheelNeeds(other.name, other_needs)
        )
        if sentence:
            sentences.append(sentence)
    return sentences


def _normalize_requirement(line: str) -> str:
    """Return a requirement as `packaging` spells it, or unchanged if it cannot be parsed."""
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return line
    requirement.name = canonicalize_name(requirement.name)
    return str(requirement)


def _read_needs(wheel: Path) -> DeclaredNeeds | None:
    """Return what METADATA requires; None if it cannot be read."""
    try:
        headers = wheel_file.parse_headers(wheel_file.read_metadata(wheel))
    except WheelError:
        return None
    requires = headers.get_all("Requires-Dist", [])
    extras = headers.get_all("Provides-Extra", [])
    return declared_needs(headers.get("Requires-Python"), requires, extras)
