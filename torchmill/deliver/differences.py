"""Compare a JSON document with the expected document, field by field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

MAX_DIFFERENCES = 8  # of one document that are reported
MAX_VALUE_CHARACTERS = 80  # of a value that is quoted

# The fields by which the entries of a list are named, in SBOMs and statements.
_NAME_FIELDS = ("bom-ref", "ref", "name", "alg")


@dataclass(frozen=True, slots=True)
class ExpectedSource:
    """The source from which an expected document follows."""

    name: str  # as messages call it: "the manifest"
    # The documents that can be composed from it, by suffix (".cdx.json"); none if it is only named
    # in messages.
    documents: Mapping[str, bytes] = field(default_factory=dict)


def document_differences(
    actual: Any, expected: Any, source: ExpectedSource, path: str = ""
) -> list[str]:
    """Return a clause for each of the first MAX_DIFFERENCES fields that are not as expected.

    `path` is the place of both values in their documents: "subject", or "" for whole documents.
    Entries of lists are matched by their names, so that one missing entry is one difference.

    >>> document_differences({"a": 1}, {"a": 2}, ExpectedSource("the manifest"))
    ['a is 1, the manifest says 2']
    """
    return list(islice(_differences(actual, expected, source, path), MAX_DIFFERENCES))


def _differences(actual: Any, expected: Any, source: ExpectedSource, path: str) -> Iterator[str]:
    """Yield the differences of two values of any types, as clauses."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        prefix = f"{path}." if path else ""
        yield from _member_differences(actual, expected, source, prefix=prefix, suffix="")
    elif isinstance(actual, list) and isinstance(expected, list):
        yield from _list_differences(actual, expected, source, path)
    # In Python True equals 1, and 1.0 equals 1. In a document they are different values.
    elif type(actual) is not type(expected) or actual != expected:
        actual_text, expected_text = _format_pair(actual, expected)
        yield f"{path or 'it'} is {actual_text}, {source.name} says {expected_text}"


def _list_differences(
    actual: list[Any], expected: list[Any], source: ExpectedSource, path: str
) -> Iterator[str]:
    """Yield the differences of two lists.

    Entries are matched by their names if all have one, otherwise by their positions.
    """
    actual_entries: Mapping[Any, Any] | None = _entries_by_name(actual)
    expected_entries: Mapping[Any, Any] | None = _entries_by_name(expected)
    if actual_entries is None or expected_entries is None:
        if len(actual) != len(expected):
            count = f"{path or 'it'} has {len(actual)} entries"
            yield f"{count}, {source.name} says {len(expected)}"
            return
        actual_entries = dict(enumerate(actual))
        expected_entries = dict(enumerate(expected))
    yield from _member_differences(
        actual_entries, expected_entries, source, prefix=f"{path}[", suffix="]"
    )


def _member_differences(
    actual: Mapping[Any, Any],
    expected: Mapping[Any, Any],
    source: ExpectedSource,
    *,
    prefix: str,
    suffix: str,
) -> Iterator[str]:
    """Yield the differences of two mappings.

    `prefix` and `suffix` enclose the name of a member in its path.
    """
    for name in sorted({*actual, *expected}):
        path = f"{prefix}{name}{suffix}"
        if name in actual and name in expected:
            yield from _differences(actual[name], expected[name], source, path)
        elif name in expected:
            yield f"{path} is missing, {source.name} says {_format_value(expected[name])}"
        else:
            value = _format_value(actual[name])
            yield f"{path} is {value}, which {source.name} does not mention"


def _entries_by_name(entries: list[Any]) -> dict[str, Any] | None:
    """Return a list's entries by their names; None if one has no name or two have the same."""
    by_name = {}
    for entry in entries:
        name = _entry_name(entry)
        if not name or name in by_name:
            return None
        by_name[name] = entry
    return by_name


def _entry_name(entry: Any) -> str:
    """Return the name of a list's entry, "" if it has none.

    A text is its own name. An object has its name in one of _NAME_FIELDS.
    """
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return ""
    names = [entry[key] for key in _NAME_FIELDS if isinstance(entry.get(key), str)]
    if not names:
        return ""
    name: str = names[0]
    # Several inputs of a statement have one name and differ in their kind.
    annotations = entry.get("annotations")
    kind = annotations.get("kind") if isinstance(annotations, dict) else None
    if isinstance(kind, str) and name:
        return f"{kind} {name}"
    return name


def _format_pair(actual: Any, expected: Any) -> tuple[str, str]:
    """Return two different values as texts, cut so that their first difference is in them."""
    actual_text = repr(actual)
    expected_text = repr(expected)
    common = 0
    for actual_character, expected_character in zip(actual_text, expected_text, strict=False):
        if actual_character != expected_character:
            break
        common += 1
    if common < MAX_VALUE_CHARACTERS:
        return _cut_text(actual_text), _cut_text(expected_text)
    start = common - MAX_VALUE_CHARACTERS // 4  # a little of what is equal, to recognize the place
    return f"…{_cut_text(actual_text[start:])}", f"…{_cut_text(expected_text[start:])}"


def _format_value(value: Any) -> str:
    return _cut_text(repr(value))


def _cut_text(text: str) -> str:
    if len(text) <= MAX_VALUE_CHARACTERS:
        return text
    return f"{text[:MAX_VALUE_CHARACTERS]}…"
