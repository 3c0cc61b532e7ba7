"""METADATA in one spelling: all wheels of a version say the same, whatever Python and tools made them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.pack.stage import StagedWheel

PYTHON = re.compile(r"Programming Language :: Python :: 3\.\d+")
LAST = ("Requires-Python", "Provides-Extra", "Requires-Dist")  # in this order, as older tools did not


def unify(staged: StagedWheel, pythons: Iterable[str]) -> None:
    """Write the METADATA of a staged wheel as `unified` has it."""
    path = staged.dist_info / "METADATA"
    head, blank, text = path.read_text(encoding="utf-8").partition("\n\n")
    whole = unified(head.rstrip("\n"), pythons)  # without a text, the last header ends in a line's end
    path.write_text(whole + (blank or "\n") + text, encoding="utf-8", newline="\n")


def unified(head: str, pythons: Iterable[str]) -> str:
    """Return the headers of METADATA in one spelling and order.

    Requirements are spelled as `packaging` does. Where classifiers name Pythons, those that the release
    supports are named: a setup.py may name the one that runs it.
    """
    fields = [_spelled(field) for field in _fields(head) if field != "Platform: UNKNOWN"]
    first = [field for field in fields if not field.startswith(tuple(f"{name}:" for name in LAST))]
    last = [field for name in LAST for field in fields if field.startswith(f"{name}:")]
    return "\n".join([*_classified(first, pythons), *last])


def _fields(head: str) -> Iterator[str]:
    """Yield each header with the lines that continue it."""
    field: list[str] = []
    for line in head.split("\n"):
        if field and not line.startswith((" ", "\t")):
            yield "\n".join(field)
            field = []
        field.append(line)
    if field:
        yield "\n".join(field)


def _spelled(field: str) -> str:
    name, _, value = field.partition(":")
    try:
        if name == "Requires-Dist":
            return f"{name}: {Requirement(value.strip())}"
        if name == "Requires-Python":
            listed = sorted(map(str, SpecifierSet(value.strip())), reverse=True)
            return f"{name}: {','.join(listed)}"
    except (InvalidRequirement, InvalidSpecifier):  # setuptools of old wrote some that no one reads any more
        return field
    return f"{name}: {canonicalize_name(value.strip())}" if name == "Provides-Extra" else field


def _classified(fields: Sequence[str], pythons: Iterable[str]) -> list[str]:
    """Return the fields with a classifier for each of the Pythons in the place of those that name one."""
    named = [field for field in fields if PYTHON.fullmatch(_value(field))]
    if not named:
        return list(fields)
    numbers = sorted({python.rstrip("t") for python in pythons}, key=Version)
    ours = [f"Classifier: Programming Language :: Python :: {number}" for number in numbers]
    place = fields.index(named[0])
    others = [field for field in fields[place:] if field not in named]
    return [*fields[:place], *(ours or named), *others]


def _value(field: str) -> str:
    name, _, value = field.partition(":")
    return value.strip() if name == "Classifier" else ""
