"""What wheels say that they need, in one spelling: those of one version must say the same."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

Needs = frozenset[str]


def of(requires_python: str | None, requires: Iterable[str], extras: Iterable[str]) -> Needs:
    """Return Requires-Python, Requires-Dist and Provides-Extra, so spelled that the same is equal."""
    python = ",".join(sorted("".join((requires_python or "").split()).split(",")))
    lines = {_spelled(line) for line in requires} | {f"extra {canonicalize_name(one)}" for one in extras}
    return frozenset(lines | ({f"Python {python}"} if python else set()))


def difference(one: tuple[str, Needs], other: tuple[str, Needs]) -> str:
    """Return a sentence where two wheels, each with its file's name, need different things; else ""."""
    (first, mine), (second, theirs) = one, other
    more, less = sorted(theirs - mine), sorted(mine - theirs)
    parts = [f"also {', '.join(more)}"] if more else []
    parts += [f"not {', '.join(less)}"] if less else []
    if not parts:
        return ""
    return (
        f"{second} says otherwise than {first} what it needs: {', but '.join(parts)}; uv asks one of them, "
        "and believes it of all: build them alike, with markers for what differs"
    )


def _spelled(line: str) -> str:
    try:
        found = Requirement(line)
    except InvalidRequirement:
        return line
    found.name = canonicalize_name(found.name)
    return str(found)
