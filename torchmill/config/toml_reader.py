"""Read TOML tables strictly: every mistake is collected with its place, and none stops the reading."""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, TypeVar, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from torchmill.config.costs import CostRange
from torchmill.config.versions import is_version
from torchmill.core.errors import did_you_mean
from torchmill.core.stat_cache import StatCache, stat_file
from torchmill.core.units import parse_bytes

T = TypeVar("T")
_PYTHON = re.compile(r"\d{1,2}\.\d{1,3}t?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
VERSION_NAMES = ("version", "torch", "requires", "jobs")


class TomlTable:
    """One TOML table being read: each key is taken once, what is left over is unknown."""

    def __init__(self, where: str, data: Mapping[str, Any], problems: list[str]) -> None:
        self.where = where
        self.data = dict(data)
        self.problems = problems
        self.requested: list[str] = []

    def problem(self, text: str) -> None:
        """Note one problem of this table."""
        self.problems.append(f"{self.where}: {text}")

    def read(self, kind: type[T], /, **given: Any) -> T:
        """Return a dataclass of the whole table: each field is the key of its name, of its type.

        A field `rules` of several dataclasses is `[[rule]]`. `given` are fields that are read
        already. A key that is missing is a problem, unless its field has a default or can be empty.
        A key that no field has is a problem.
        """
        value = self.read_fields(kind, {}, **given)
        self.check_unknown_keys()
        return value

    def read_fields(self, kind: type[T], keys: Mapping[str, str], /, **given: Any) -> T:
        """Return a dataclass of some keys of the table, and leave the others in it.

        `keys` are those of fields that are called otherwise: {"homes": "toolkits"}. For the rest
        see `read`.
        """
        for name, usual_key, reader, has_default in _readers(kind):  # type: ignore[arg-type]
            if name in given:
                continue
            key = keys.get(name, usual_key)
            if key in self.data or not has_default:
                given[name] = reader(self, key)
            self.requested.append(key)
        return kind(**given)

    def read_each(self, key: str, kind: type[T]) -> tuple[T, ...]:
        """Take a list of tables, each a dataclass."""
        return tuple(table.read(kind) for table in self.tables(key))

    def take(self, key: str, kind: type[T], expected: str, default: T | None = None) -> T | None:
        """Take a value of a type; a default of None makes the key obligatory."""
        self.requested.append(key)
        if key not in self.data:
            if default is None:
                self.problem(f"key '{key}' is missing")
            return default
        value = self.data.pop(key)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        if kind is str and isinstance(value, float):
            self.problem(
                f"'{key}' is the number {value}: quote it, as in \"3.10\" (unquoted, TOML reads 3.10 as 3.1)"
            )
        else:
            self.problem(f"'{key}' is {value!r}, expected {expected}")
        return None

    def text(self, key: str, default: str | None = None) -> str:
        """Take a string."""
        return self.take(key, str, "a string", default) or ""

    def optional(self, key: str) -> str | None:
        """Take a string that may be absent."""
        return self.text(key, "") or None

    def version(self, key: str) -> str:
        """Take a version (PEP 440)."""
        text = self.text(key)
        if text and not is_version(text):
            self.problem(f"'{key}' is '{text}', expected a version, such as '2.35' (PEP 440)")
        return text

    def date(self, key: str) -> str | None:
        """Take a date that may be absent."""
        text = self.optional(key)
        try:
            return str(date.fromisoformat(text)) if text else None
        except ValueError:
            self.problem(f"'{key}' is '{text}', expected a date, such as '2022-12-15'")
            return None

    def texts(self, key: str, default: Iterable[str] | None = None) -> tuple[str, ...]:
        """Take a list of strings, or one string."""
        if isinstance(self.data.get(key), str):
            return (self.text(key),)
        values = self.take(
            key, list, "a list of strings", None if default is None else list(default)
        )
        return tuple(
            TomlTable(self.where, {key: value}, self.problems).text(key) for value in values or ()
        )

    def commit(self, key: str) -> str | None:
        """Take a commit that may be absent."""
        text = self.optional(key)
        if text and not _COMMIT.fullmatch(text):
            self.problem(
                f"'{key}' is '{text}', expected a commit, with all of its 40 hexadecimal digits"
            )
            return None
        return text

    def pythons(self, key: str, default: Iterable[str] | None = None) -> tuple[str, ...]:
        """Take a list of versions of Python; what is none is a problem, and left out, as is a list of none."""
        if self.data.get(key) == []:
            self.problem(f"'{key}' is empty: expected Pythons such as '3.10', or leave the key out")
        found = self.texts(key, default)
        for wrong in (one for one in found if one and not _PYTHON.fullmatch(one)):
            self.problem(f"'{key}' has '{wrong}', which is not a Python such as '3.10' or '3.13t'")
        return tuple(one for one in found if _PYTHON.fullmatch(one))

    def template(self, key: str, names: Collection[str], default: str | None = None) -> str:
        """Take a string in which names in braces stand for something; "" for one that has others."""
        text = self.text(key, default)
        try:
            parts = list(Formatter().parse(text))
        except ValueError:
            parts = [("", "?", "", None)]
        if all(
            name is None or (name in names and not spec and not how) for _, name, spec, how in parts
        ):
            return text
        named = ", ".join(f"{{{name}}}" for name in names)
        self.problem(
            f"'{key}' is '{text}', expected a text in which braces stand only around names: {named}"
        )
        return ""

    def specifier(self, key: str) -> SpecifierSet | None:
        """Take a PEP 440 specifier that may be absent."""
        text = self.text(key, "")
        try:
            return SpecifierSet(text) if text else None
        except InvalidSpecifier:
            self.problem(
                f"'{key}' is '{text}', which is not a version specifier such as '>=1.8,<2'"
            )
            return None

    def number(self, key: str) -> float:
        """Take a number."""
        return float(self.take(key, int | float, "a number") or 0)  # type: ignore[arg-type]

    def count(self, key: str) -> int | None:
        """Take a whole number."""
        return self.take(key, int, "a whole number")

    def counts(self, key: str) -> tuple[int, ...]:
        """Take a list of whole numbers."""
        values = self.take(key, list, "a list of whole numbers") or ()
        return tuple(
            TomlTable(self.where, {key: value}, self.problems).count(key) or 0 for value in values
        )

    def size(self, key: str) -> int:
        """Take a quantity of bytes such as "2.2 GiB"."""
        text = self.text(key)
        try:
            return parse_bytes(text) if text else 0
        except ValueError as error:
            self.problem(f"'{key}': {error}")
            return 0

    def choice(self, key: str, choices: Collection[str]) -> str:
        """Take a string that is one of a few."""
        value = self.text(key)
        if value and value not in choices:
            self.problem(f"'{key}' is '{value}', expected one of {', '.join(choices)}")
        return value

    def flag(self, key: str) -> bool:
        """Take a boolean, false when absent."""
        return bool(self.take(key, bool, "true or false", default=False))

    def table(self, key: str) -> "TomlTable":
        """Take a table that may be absent."""
        return TomlTable(
            f"{self.where}: {key}", self.take(key, dict, "a table", {}) or {}, self.problems
        )

    def tables(self, key: str) -> tuple["TomlTable", ...]:
        """Take a list of tables that may be absent."""
        values = self.take(key, list, "a list of tables", []) or []
        if not all(isinstance(one, dict) for one in values):
            self.problem(f"'{key}' is {values!r}, expected a list of tables")
            values = []
        return tuple(
            TomlTable(f"{self.where}: {key} {number}", one, self.problems)
            for number, one in enumerate(values, 1)
        )

    def map(self, key: str, read: Callable[["TomlTable", str], T]) -> dict[str, T]:
        """Take a table that may be absent, of any keys, whose values are read alike."""
        table = self.table(key)
        return {name: read(table, name) for name in list(table.data)}

    def bounds(self, key: str) -> SpecifierSet:
        """Take a PEP 440 specifier; one that is absent allows everything."""
        return self.specifier(key) or SpecifierSet()

    def check_unknown_keys(self) -> None:
        """Complain about every key that nobody asked for."""
        for key in self.data:
            hint = (
                did_you_mean(key, self.requested)
                or f": expected one of {', '.join(dict.fromkeys(self.requested))}"
            )
            self.problem(f"unknown key '{key}'{hint}")


def _range(table: TomlTable, key: str, read: Callable[[TomlTable, str], float]) -> CostRange:
    """Take { low = 1.8, high = 7.3 }."""
    inner = table.table(key)
    return inner.read(CostRange, low=read(inner, "low"), high=read(inner, "high"))


def _template(*names: str) -> Callable[[TomlTable, str], str]:
    return lambda table, key: table.template(key, names)


# How a field is read, by its annotation; "… | None" as "…", where it is not named. cattrs was looked at: to import it
# takes 70 ms (cattrs 26.1), a third of what `invoke --list` takes, and "did you mean" and the places of mistakes would
# remain to be made.
_TYPES: dict[str, Callable[[TomlTable, str], Any]] = {
    "str": TomlTable.text,
    "str | None": TomlTable.optional,
    "Commit | None": TomlTable.commit,
    "Pythons": TomlTable.pythons,
    "PlatformTemplate": _template("glibc", "macos"),
    "VariantTemplate": _template("variant"),
    "VersionTemplate": _template(*VERSION_NAMES),
    "CompilerTemplate": _template("major"),
    "bool": TomlTable.flag,
    "float": TomlTable.number,
    "int": TomlTable.count,
    "Bytes": TomlTable.size,
    "VersionText | None": TomlTable.version,
    "DateText | None": TomlTable.date,
    "SpecifierSet": TomlTable.bounds,
    "SpecifierSet | None": TomlTable.specifier,
    "tuple[str, ...]": TomlTable.texts,
    "tuple[int, ...]": TomlTable.counts,
    "tuple[tuple[str, ...], ...]": lambda table, key: tuple(
        TomlTable(table.where, {key: one}, table.problems).texts(key)
        for one in table.take(key, list, "a list of commands") or ()
    ),
    "CostRange": lambda table, key: _range(table, key, TomlTable.number),
    "ByteRange": lambda table, key: _range(table, key, TomlTable.size),
}


@cache
def _readers(kind: Any) -> tuple[tuple[str, str, Callable[[TomlTable, str], Any], bool], ...]:
    """Return of each field of a dataclass its name, its key, its reader, and whether it may be missing."""
    names = vars(sys.modules[kind.__module__])
    return tuple(
        (one.name, key, reader, one.default is not MISSING or one.default_factory is not MISSING)
        for one in fields(kind)
        for key, reader in _key_and_reader(one.name, str(one.type), names)
    )


def _key_and_reader(
    name: str, annotation: str, names: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[TomlTable, str], Any]]]:
    """Yield how a field is read, unless only its caller can; `names` are those of its module."""
    inner: Any = names.get(annotation.removeprefix("tuple[").removesuffix(", ...]"))
    if reader := _TYPES.get(annotation) or _TYPES.get(annotation.removesuffix(" | None")):
        yield name, reader
    elif value := _TYPES.get(annotation.removeprefix("Mapping[str, ").removesuffix("]")):
        yield name, lambda table, key: table.map(key, value)
    elif words := get_args(inner):
        yield name, lambda table, key: table.choice(key, words)
    elif not isinstance(inner, type) or not is_dataclass(inner):
        return
    elif annotation in names:
        yield name, lambda table, key: table.table(key).read(inner)
    else:
        yield name.removesuffix("s"), lambda table, key: table.read_each(key, inner)


def _parse(path: Path, cache: StatCache | None) -> dict[str, Any]:
    def parse() -> dict[str, Any]:
        return tomllib.loads(path.read_text(encoding="utf-8"))

    if cache is not None:
        with suppress(
            TypeError, json.JSONDecodeError
        ):  # dates, which JSON does not know; a spoiled memory
            text = cache.remember(
                str(path.absolute()), [stat_file(path)], lambda: json.dumps(parse())
            )
            if isinstance(data := json.loads(text), dict):
                return data
    return parse()


def read_toml(
    path: Path, problems: list[str], *, required: bool = True, cache: StatCache | None = None
) -> TomlTable:
    """Read a TOML file; a broken one, and a missing one that is required, is a problem and an empty table.

    What it holds is remembered in `cache`: parsing build_configs/ takes 60 ms, reading what was remembered of it
    2 ms (71 files, 345 kB of JSON).
    """
    data: dict[str, Any] = {}
    try:
        data = _parse(path, cache)
    except FileNotFoundError:
        if required:
            problems.append(f"{path.name}: the file is missing")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path.name}: {error}")
    except RecursionError:
        problems.append(f"{path.name}: it is nested too deeply")
    except UnicodeDecodeError:
        problems.append(f"{path.name}: it is not UTF-8 text")
    except OSError as error:
        problems.append(f"{path.name}: it cannot be read ({error.strerror})")
    return TomlTable(path.name, data, problems)
