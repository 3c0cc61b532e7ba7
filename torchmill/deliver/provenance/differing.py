"""Where two documents differ: each field by its path, with what both say. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

MOST = 8  # differences of one document that are named
LONGEST = 80  # letters of a value


@dataclass(frozen=True, slots=True)
class Judge:
    """What a document is held against."""

    who: str  # says what it should be: "the manifest"
    whole: bool = True  # else only fields that both have count: another release may write other ones


def differences(said: Any, wanted: Any, judge: Judge, path: str = "") -> list[str]:
    """Return a clause for each of the first MOST fields in which a document is not what it should be.

    `path` is where in the document the two are.
    """
    return list(islice(_told(said, wanted, judge, path), MOST))


def _told(said: Any, wanted: Any, judge: Judge, path: str) -> Iterator[str]:
    if isinstance(said, dict) and isinstance(wanted, dict):
        for name in sorted({*said, *wanted}):
            yield from _member(said, wanted, name, judge, f"{path}.{name}" if path else str(name))
    elif isinstance(said, list) and isinstance(wanted, list):
        yield from _lists(said, wanted, judge, path)
    elif type(said) is not type(wanted) or said != wanted:  # True is 1 in Python, and not in JSON
        yield f"{path or 'it'} is {_shown(said)}, {judge.who} says {_shown(wanted)}"


def _member(
    said: dict[str, Any], wanted: dict[str, Any], name: str, judge: Judge, path: str
) -> Iterator[str]:
    if name in said and name in wanted:
        yield from _told(said[name], wanted[name], judge, path)
    elif judge.whole and name in wanted:
        yield f"{path} is missing, {judge.who} says {_shown(wanted[name])}"
    elif judge.whole:
        yield f"{path} is {_shown(said[name])}, of which {judge.who} says nothing"


def _lists(said: list[Any], wanted: list[Any], judge: Judge, path: str) -> Iterator[str]:
    """Compare lists by what their entries are called, where all have names of their own, else one by one."""
    one, other = _named(said), _named(wanted)
    if one is not None and other is not None:
        for name in sorted({*one, *other}):
            yield from _member(one, other, name, judge, f"{path}[{name}]")
    elif len(said) != len(wanted):
        yield f"{path or 'it'} has {len(said)} entries, {judge.who} says {len(wanted)}"
    else:
        for number, (left, right) in enumerate(zip(said, wanted, strict=True)):
            yield from _told(left, right, judge, f"{path}[{number}]")


def _named(entries: Sequence[Any]) -> dict[str, Any] | None:
    """Return entries by their names; None where one has none, or two have the same."""
    found = {name: entry for entry in entries if (name := _name(entry))}
    return found if len(found) == len(entries) else None


def _name(entry: Any) -> str:
    """Return what an entry of a list is called: a text by itself, an object as documents name theirs."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return ""
    kind = entry["annotations"].get("kind") if isinstance(entry.get("annotations"), dict) else None
    names = (entry.get(key) for key in ("bom-ref", "ref", "name", "alg"))
    name = next((one for one in names if isinstance(one, str)), "")
    return f"{kind} {name}" if isinstance(kind, str) and name else name


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
