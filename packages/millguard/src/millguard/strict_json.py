"""Read JSON objects that somebody else may have written."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the object in a JSON text.

    Raises ValueError for anything else; for a name that an object has twice, because programs
    differ in which of the two they believe; for NaN and Infinity, which are not JSON; and for a
    nest that is too deep to read.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_names, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of the text, not of a type
    return value


def _unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("it has a name twice")
    return members


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
