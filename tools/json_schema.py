"""What the writers of JSON Schemas have in common: descriptions of fields, and files of schemas."""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
# Draft 7 has all that is needed, and is older than every editor's support of schemas.
DIALECT = "http://json-schema.org/draft-07/schema#"
SUFFIX = ".schema.json"


def describe_class(kind: type) -> str:
    """Return the first line of a class's docstring."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def field_comments(kind: type) -> Iterator[tuple[str, str]]:
    """Yield each field of a class with its comments, before it and behind it, or its docstring.

    "the same" stands for the comment of the field before.
    """
    source = inspect.getsource(kind)
    lines = source.splitlines()
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 - for the type checker
    last = ""
    for statement, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        comment = " ".join(_comments_at(statement, following, lines))
        if comment != "the same":
            last = comment
        if last:
            yield statement.target.id, last


def _comments_at(
    field: ast.AnnAssign, following: ast.stmt | None, lines: list[str]
) -> Iterator[str]:
    """Yield the comments at a field of a class whose source has some lines."""
    before: list[str] = []
    number = field.lineno - 2  # of the line before it, counted from 0
    while lines[number].lstrip().startswith("#"):
        before.insert(0, lines[number].lstrip("# "))
        number -= 1
    yield from before
    last_line = lines[(field.end_lineno or field.lineno) - 1]
    # The columns of ast are bytes of UTF-8.
    behind = last_line.encode()[field.end_col_offset or 0 :].decode()
    comment = behind.partition("#")[2].strip()
    if comment:
        yield comment
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        yield str(following.value.value)


def schema_files(schemas: Mapping[str, Schema]) -> dict[str, str]:
    """Return schemas as JSON, by the names of their files; `schemas` has them by their own names."""
    texts: dict[str, str] = {}
    for name, schema in schemas.items():
        head = {"$schema": DIALECT, "title": f"torchmill: {name}"}
        text = json.dumps(head | schema, indent=1, ensure_ascii=False)
        texts[f"{name}{SUFFIX}"] = f"{text}\n"
    return texts


def write_schemas(folder: Path, schemas: Mapping[str, Schema]) -> str:
    """Write schemas into a folder, in place of others, and return the text to print."""
    folder.mkdir(exist_ok=True)
    for old_schema in folder.glob(f"*{SUFFIX}"):
        old_schema.unlink()
    for name, text in schema_files(schemas).items():
        (folder / name).write_text(text, encoding="utf-8")
    return f"wrote {len(schemas)} schemas in {folder}"
