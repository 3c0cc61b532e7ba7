"""TOML as people write it: short strings in lists of one per line, small tables in a line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def text(value: str) -> str:
    """Return a string in quotes."""
    # JSON and TOML escape alike, but for DEL, which JSON leaves as it is
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def array(values: Sequence[str]) -> str:
    """Return a list of strings, one per line."""
    return _lines([text(value) for value in values])


def inline(table: Mapping[str, str]) -> str:
    """Return a small table in one line."""
    return "{ " + ", ".join(f"{key} = {text(value)}" for key, value in table.items()) + " }"


def inlines(tables: Sequence[Mapping[str, str]]) -> str:
    """Return a list of small tables, one per line."""
    return _lines([inline(table) for table in tables])


def _lines(values: Sequence[str]) -> str:
    return "\n".join(["[", *(f"    {value}," for value in values), "]"])
