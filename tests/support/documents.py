"""What torchmill says to programs, compared with the schemas in docs/reference/schemas/."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft7Validator

from tools.json_schema import Schema
from tools.output_schemas import output_schemas


@cache
def _validators() -> dict[str, Draft7Validator]:
    schemas = output_schemas()
    return {name: Draft7Validator(_without_further_keys(schemas[name])) for name in schemas}


def _without_further_keys(schema: Schema) -> Schema:
    """Return a schema that refuses keys which it does not name: published ones take any."""
    closed: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            inner = {name: _without_further_keys(named) for name, named in value.items()}
            closed |= {"properties": inner, "additionalProperties": False}
        elif key in {"items", "additionalProperties"}:
            closed[key] = _without_further_keys(value)
        else:
            closed[key] = value
    return closed


def assert_fits(document: Any, name: str) -> None:
    """Fail unless a document fits the schema of a name, and has no key that the schema lacks."""
    plain = json.loads(json.dumps(document))
    mistakes = [
        f"{error.json_path}: {error.message}" for error in _validators()[name].iter_errors(plain)
    ]
    assert not mistakes, "\n".join(mistakes)


def assert_output_fits(data: Any, task: str) -> None:
    """Fail unless the data of a task's output fit the task's schema."""
    assert_fits({"format": 1, **data}, task)


def keys_of_schema(schema: Schema, place: str = "") -> Iterator[str]:
    """Yield every key that a schema names, with the keys around it."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{place}/{name}"
        yield from keys_of_schema(inner, f"{place}/{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from keys_of_schema(schema[key], f"{place}/*")


def keys_of_document(schema: Schema, document: Any, place: str = "") -> Iterator[str]:
    """Yield those keys of a schema that a document has, as `keys_of_schema` does."""
    if isinstance(document, list):
        for element in document:
            yield from keys_of_document(schema.get("items", {}), element, f"{place}/*")
    elif isinstance(document, dict):
        properties = schema.get("properties", {})
        for name, value in document.items():
            if name in properties:
                yield f"{place}/{name}"
                yield from keys_of_document(properties[name], value, f"{place}/{name}")
            else:
                yield from keys_of_document(
                    schema.get("additionalProperties", {}), value, f"{place}/*"
                )
