"""The wheels of one version must require the same: a resolver reads the metadata of one, for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

FIELDS = ("Requires-Python", "Requires-Dist", "Provides-Extra")


def of(wheel: Path) -> list[Path]:
    """Return the other wheels of the same version in the folder where a wheel lies, or will lie."""
    stem = "-".join(wheel.name.split("-")[:2])
    every = wheel.parent.glob("*.whl")
    return sorted(path for path in every if path.name.startswith(f"{stem}-") and path != wheel)


def differences(wheel: Path, others: Iterable[Path]) -> list[str]:
    """Return a sentence for each other wheel that requires something else, or supports other Pythons."""
    mine = _read(wheel)
    return [sentence for other in others for sentence in _told(wheel, mine, other, _read(other))]


def _told(
    wheel: Path, mine: Mapping[str, frozenset[str]], other: Path, theirs: Mapping[str, frozenset[str]]
) -> Iterator[str]:
    for field in FIELDS:
        if mine and theirs and mine[field] != theirs[field]:
            only = [f"only here: {one}" for one in sorted(mine[field] - theirs[field])]
            only += [f"only there: {one}" for one in sorted(theirs[field] - mine[field])]
            yield (
                f"{field} of {wheel.name} is not that of {other.name} ({'; '.join(only)}): uv takes the "
                "metadata of any wheel for the version: build both alike, or keep them in different indexes"
            )


def _read(wheel: Path) -> dict[str, frozenset[str]]:
    """Return what METADATA says in each field, in one spelling; {} where it cannot be read."""
    try:
        with ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            message = Parser().parsestr(archive.read(name).decode("utf-8"))
    except (OSError, BadZipFile, StopIteration, UnicodeDecodeError):
        return {}
    return {field: frozenset(_spelled(field, message)) for field in FIELDS}


def _spelled(field: str, message: Message) -> Iterator[str]:
    for value in message.get_all(field, []):
        if field == "Provides-Extra":
            yield canonicalize_name(value)
        elif field == "Requires-Python":
            yield ",".join(sorted(part.strip() for part in value.split(",")))
        else:
            yield _requirement(value)


def _requirement(value: str) -> str:
    try:
        found = Requirement(value)
    except InvalidRequirement:
        return value
    found.name = canonicalize_name(found.name)
    return str(found)
