"""A JSON object in a file that anybody may have written: whole and unambiguous, or told why it is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

LARGEST = 1 << 26  # bytes; a manifest of torch has 10 000, and one of gigabytes is an attack


def read(file: Path) -> dict[str, Any]:
    """Return the object in a file. Raises OSError where it cannot be read, ValueError with what is wrong."""
    if file.stat().st_size > LARGEST:
        raise ValueError(f"it is larger than {LARGEST} bytes")
    if not file.is_file():  # a pipe would be waited for
        raise ValueError("it is no file")
    return parsed(file.read_bytes())


def parsed(content: bytes) -> dict[str, Any]:
    """Return the object that some bytes are. Raises ValueError with what is wrong.

    A name that an object has twice is refused: programs differ in which of the two they believe.
    """
    try:
        found = json.loads(content, object_pairs_hook=_once, parse_constant=_refuse)
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}" if content.strip() else "it is empty") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - it is what was said that is wrong
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it says {twice!r} twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it says {constant}, which is no JSON")
