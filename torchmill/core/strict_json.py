"""Read JSON that somebody else may have written, and refuse everything doubtful.

`read_json_object` raises errors, for documents that users or strangers give. `load_object` reads
torchmill's own records, which count as empty if they cannot be read.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

# A manifest of torch has 10 kB; gigabytes are an attack.
LARGEST_JSON_BYTES = 1 << 26


def read_document(file: Path) -> bytes:
    """Return the content of a JSON file.

    Raises OSError if it cannot be read, ValueError if it is larger than LARGEST_JSON_BYTES or not a
    regular file.
    """
    # Both are checked before the file is opened, because it may come from a stranger.
    if file.stat().st_size > LARGEST_JSON_BYTES:
        raise ValueError(f"it is larger than {LARGEST_JSON_BYTES} bytes")
    if not file.is_file():  # reading a pipe would wait for ever
        raise ValueError("it is not a file")
    return file.read_bytes()


def read_json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises as `read_document` and `parse_json_object` do."""
    return parse_json_object(read_document(file))


def load_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing or holds anything else."""
    try:
        return read_json_object(file)
    except (OSError, ValueError):
        return {}


def parse_json(text: str | bytes, **hooks: Any) -> Any:
    """Return the value of a JSON text; `hooks` are further arguments for `json.loads`.

    Raises ValueError if the text is not JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_json_object(content: str | bytes) -> dict[str, Any]:
    """Return the object in a JSON text.

    Raises ValueError, with a clause that says what is wrong ("it is empty"), for any other text.
    An object that has a name twice is refused: programs differ in which of the two values they
    take, so the text could mean one thing to a checker and another to its user.
    """
    try:
        value = parse_json(
            content, object_pairs_hook=_unique_names, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        reason = f"it is not JSON: {error}" if content.strip() else "it is empty"
        raise ValueError(reason) from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of the text, not of a type
    return value


def _unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these names and values. Raises ValueError if it has a name twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it says {duplicate!r} twice")
    return members


def _refuse_constant(constant: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python's parser accepts."""
    raise ValueError(f"it says {constant}, which is not JSON")
