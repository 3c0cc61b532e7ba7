"""The schemas of build_configs/ agree with the readers, in both directions, and with the facts.

For each kind of file a document is made that has every key of the schema. The reader must take it,
and must have asked for exactly these keys. Then each key is removed, renamed, or given a value of
another type: the reader and the schema must both refuse the document, or both take it.
"""

import copy
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from tools import fact_schemas
from tools.fact_schemas import FILES, FOLDER, VALUES
from tools.json_schema import SUFFIX, Schema, schema_files
from tools.proof.speed import SpeedTrial
from tools.proof.upstream_run import UpstreamTests
from torchmill.config import facts_reader, toml_reader
from torchmill.config.toml_reader import READERS, TomlTable
from torchmill.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "build_configs"
SCHEMAS = fact_schemas.fact_schemas()
FOLDERS = {
    "kind": "kinds/base.toml",
    "package": "packages/mine.toml",
    "release": "releases/1.9.0.toml",
    "package_wheels": "package_wheels/base.toml",
    "wheel_code": "wheel_code/base.toml",
    "nvidia_code": "wheel_code/nvidia.toml",
}
BASE = {
    "name": "base",
    "session": "wheel",
    "import_name": "base",
    "repository": "base",
    "memory_per_job": "1 GiB",
    "disk": "1 GiB",
}
# It takes all that its kind may have from there.
OF_KIND = {
    "name": "mine",
    "session": "mine",
    "import_name": "mine",
    "repository": "mine",
    "kind": "base",
}
ARCH = {"system": "linux", "machines": ["x86_64"], "platform_tag": "linux_x86_64"}
RELEASE = {"version": "1.9.0", "pythons": ["3.10"], "arches": ["x86_64"], "source": "test"}
# Files without which no facts can be read, and those that values of other files name.
BESIDE: dict[str, Any] = {
    "toolkits.toml": {},
    "arches.toml": {"x86_64": ARCH},
    "packages/base.toml": BASE,
    "releases/1.9.0.toml": {"base": RELEASE},
    "kinds/base.toml": {"after": "base", "memory_per_job": "1 GiB", "disk": "1 GiB"},
    "vulnerabilities.toml": {
        "read": "2026-12-01",
        "vulnerability": [
            {
                "id": "CVE-2000-1",
                "package": "mine",
                "title": "base",
                "affected": "<2",
                "severity": "low",
                "kind": "wrong result",
                "sources": ["https://example.org"],
            }
        ],
    },
    "known_names.toml": {"names": {"base": "library: base"}},
}
# Values that must be names of something; any other text is "base", the name of the package.
NAMES: dict[str, Any] = {
    "arches": ["x86_64"],
    "built": ["cpu"],
    "session": "mine",
    "id": "CVE-2000-1",
    "aliases": ["PYSEC-2000-1"],
    "fixes": ["CVE-2000-1"],
}
# Names of tables that are not called "12.4".
TABLES = {"arches": "x86_64", "release": "base", "upstream_tests": "base"}
OTHER_VALUES: tuple[Any, ...] = (
    *(True, 3, 2.5, 0, -1, math.inf, 10**400),
    *([], [True], [-1], {}, {"?": "?"}, "?"),
)
# What only one of both refuses: (schema, key).
ONLY_THE_READER = {
    ("arches", "x86_64"),  # other files name this machine
    # A package needs them from its kind or its own file.
    ("kind", "memory_per_job"),
    ("kind", "disk"),
    ("release", "base"),  # facts without any release of the base package are refused
    # The table of a package that others are built against has no other to take them from.
    ("release", "pythons"),
    ("release", "arches"),
    # A rule that fixes something does it by patches, and only such a rule is proven.
    ("package", "patches"),
    ("package", "fixes"),
    ("kind", "patches"),
    ("kind", "fixes"),
    ("vulnerabilities", "sources"),  # it needs one
    ("vulnerabilities", "affected"),  # it needs bounds
    # It must not be above the other bound.
    ("arches", "low"),
    ("linking", "low"),
    ("runs", "low"),
}
ONLY_THE_SCHEMA = {
    # A session reads the tests of its own package alone.
    ("upstream_tests", "unknown?"),
}


def sample(schema: Schema, key: str, table: str) -> Any:
    """Return a value with every key of a schema; `table` is the name of a table of any name."""
    if key in NAMES:
        return NAMES[key]
    if "enum" in schema:
        return schema["enum"][0]
    if "examples" in schema:
        return schema["examples"][0]
    types = schema["type"]
    kind = types if isinstance(types, str) else types[0]
    if kind == "object":
        value = {
            name: sample(inner, name, table) for name, inner in schema.get("properties", {}).items()
        }
        entry = schema["additionalProperties"]
        if entry:
            table = "cpu" if key == "tried" else table
            value[table] = sample(entry, "", "12.4")
        return value
    if kind == "array":
        return [sample(schema["items"], "", table)]
    simple: dict[str, Any] = {"string": "base", "number": 1.5, "integer": 3, "boolean": True}
    return simple[kind]


@dataclass
class Reading:
    """A document as its reader took it."""

    problems: list[str]
    requested: dict[int, set[str]] = field(default_factory=dict)  # by the identity of a table


Read = Callable[[str, Any], Reading]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Return a function that reads a document as the file of a kind, beside the smallest facts."""
    tables: list[tuple[Any, TomlTable]] = []
    documents: dict[Path, Any] = {}
    begin_table = TomlTable.__init__

    def record_table(self: TomlTable, place: str, data: Any, problems: list[str]) -> None:
        begin_table(self, place, data, problems)
        tables.append((data, self))

    def find_document(path: Path, _: object) -> Any:
        if path not in documents:
            raise FileNotFoundError(path)
        return documents[path]

    monkeypatch.setattr(TomlTable, "__init__", record_table)
    monkeypatch.setattr(toml_reader, "_parse", find_document)
    # Packages and releases are listed, and patches are looked for.
    for name in (*BESIDE, *FOLDERS.values(), "patches/mine/base"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def read_document(kind: str, document: Any) -> Reading:
        tables.clear()
        documents.clear()
        for name, other_document in BESIDE.items():
            documents[tmp_path / name] = other_document
        if kind == "archives":  # which are read with the images that take them
            documents[tmp_path / "images.toml"] = full_document("images")
        documents[tmp_path / "packages/mine.toml"] = BASE | {"name": "mine", "session": "mine"}
        if kind == "kind":
            documents[tmp_path / "packages/mine.toml"] = OF_KIND
        documents[tmp_path / FOLDERS.get(kind, f"{kind}.toml")] = document
        reading = Reading(_read_problems(kind, document, tmp_path))
        for data, table in tables:
            reading.requested.setdefault(id(data), set()).update(table.requested)
        return reading

    return read_document


def _read_problems(kind: str, document: Any, folder: Path) -> list[str]:
    problems: list[str] = []
    if kind == "speed":
        TomlTable("speed.toml", document, problems).read(SpeedTrial)
    elif kind == "upstream_tests":
        TomlTable("upstream_tests.toml", document, problems).read_each("base", UpstreamTests)
    else:
        try:
            facts_reader.read_facts(folder)
        except ConfigError as error:
            problems.extend(str(error).splitlines()[1:])
    return problems


def full_document(kind: str) -> Any:
    """Return a document that has every key of a schema."""
    document = sample(SCHEMAS[kind], "", TABLES.get(kind, "12.4"))
    if kind == "package":
        document["name"] = "mine"
    return document


def places(schema: Schema, value: Any) -> Iterator[tuple[Schema, Any]]:
    """Yield each table of a document with its schema."""
    if isinstance(value, dict):
        yield schema, value
        for key, inner in value.items():
            inner_schema = schema.get("properties", {}).get(key, schema["additionalProperties"])
            yield from places(inner_schema, inner)
    elif isinstance(value, list) and value:
        yield from places(schema["items"], value[0])


@pytest.mark.parametrize("kind", FILES)
def test_the_reader_asks_for_exactly_the_keys_of_the_schema(kind: str, read: Read) -> None:
    document = full_document(kind)
    Draft7Validator.check_schema(SCHEMAS[kind])
    Draft7Validator(SCHEMAS[kind]).validate(document)
    reading = read(kind, document)
    assert reading.problems == []
    for schema, table in places(SCHEMAS[kind], document):
        if schema["additionalProperties"] is False:
            assert reading.requested[id(table)] == set(schema["properties"])


@pytest.mark.parametrize("kind", FILES)
def test_reader_and_schema_refuse_the_same_structure(kind: str, read: Read) -> None:
    document = full_document(kind)
    validator = Draft7Validator(SCHEMAS[kind])
    differences: list[str] = []

    def compare(key: str, change: str, *, of_text: bool = False) -> None:
        by_schema = not validator.is_valid(document)
        by_reader = bool(read(kind, document).problems)
        # The reader knows more of a text than its pattern, and the schema never less.
        is_allowed = by_reader and (of_text or (kind, key) in ONLY_THE_READER)
        if by_schema != by_reader and not is_allowed and (kind, key) not in ONLY_THE_SCHEMA:
            differences.append(f"{key}: {change}: {by_schema=}, {by_reader=}")

    for _, table in list(places(SCHEMAS[kind], document)):
        for key, value in list(table.items()):
            del table[key]
            compare(key, "removed")
            for other in OTHER_VALUES:
                table[key] = copy.deepcopy(other)
                compare(key, f"is {other!r}", of_text="?" in str(other))
            table[key] = value
        table["unknown?"] = True
        compare("unknown?", "added")
        del table["unknown?"]
    assert not differences, "\n".join(differences)


def test_every_annotation_of_the_reader_has_a_schema() -> None:
    assert VALUES.keys() == READERS.keys()


def facts_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.toml"))


@pytest.mark.parametrize("folder", ["build_configs", "sample/build_configs"])
def test_every_file_of_facts_names_its_schema_and_fits_it(folder: str) -> None:
    validators = {name: Draft7Validator(schema) for name, schema in SCHEMAS.items()}
    mistakes: list[str] = []
    for name in facts_below(ROOT / folder):
        path = ROOT / folder / name
        text = path.read_text("utf-8")
        for error in validators[fact_schemas.schema_name(name)].iter_errors(tomllib.loads(text)):
            mistakes.append(f"{name}: {error.json_path}: {error.message}")
        # Tombi takes a comment of several lines for one comment, and its first line for no schema.
        directive, blank, _ = text.split("\n", 2)
        named_schema = (path.parent / directive.removeprefix("#:schema ")).resolve()
        expected_schema = CONFIGS / FOLDER / f"{fact_schemas.schema_name(name)}.schema.json"
        if (named_schema, blank) != (expected_schema, ""):
            mistakes.append(f"{name}: its first lines are not a schema and an empty line")
    assert mistakes == []


def test_examples_in_the_documentation_fit_their_schemas() -> None:
    names: list[str] = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        for example in re.findall(r"^```toml\n(#:schema .*?)^```", text, re.DOTALL | re.MULTILINE):
            directive, _, _ = example.partition("\n")
            names.append(directive.rpartition("/")[2].removesuffix(SUFFIX))
            Draft7Validator(SCHEMAS[names[-1]]).validate(tomllib.loads(example))
    assert names == ["gpus", "release", "package"]


def test_drafted_files_begin_like_the_shipped_ones() -> None:
    for name in facts_below(CONFIGS):
        first_line, _, _ = (CONFIGS / name).read_text("utf-8").partition("\n")
        assert first_line == fact_schemas.schema_line(name)


def test_the_written_schemas_are_up_to_date() -> None:
    written = {path.name: path.read_text("utf-8") for path in (CONFIGS / FOLDER).iterdir()}
    assert written == schema_files(SCHEMAS), "stale: run `invoke facts --table`"


def keys_without_description(schema: Schema, place: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        if "description" not in inner:
            yield f"{place}: {name}"
        yield from keys_without_description(inner, f"{place}: {name}")
    for key in ("additionalProperties", "items"):
        if isinstance(schema.get(key), dict):
            yield from keys_without_description(schema[key], place)


def test_every_key_is_explained() -> None:
    missing: list[str] = []
    for name, schema in SCHEMAS.items():
        missing.extend(keys_without_description(schema, name))
    assert missing == []


def test_a_hook_finds_a_misspelt_key(tmp_path: Path) -> None:
    text = (CONFIGS / "packages" / "torch.toml").read_text("utf-8")
    package = tmp_path / "torch.toml"
    package.write_text(text.replace("\nsession =", "\nsesion ="), encoding="utf-8")
    schema = CONFIGS / FOLDER / "package.schema.json"
    argv = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(schema), str(package)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "'sesion' was unexpected" in done.stdout) == (1, True)
