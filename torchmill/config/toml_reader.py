"""Read TOML tables strictly: every mistake is collected with its place, and none stops the reading.

A problem is a line for the user about one mistake. A reader is a function that takes a key from a
table. The readers of a dataclass's fields are found by the fields' annotations.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import date
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, Literal, TypeVar, get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from torchmill.config.costs import CostRange
from torchmill.config.versions import is_version
from torchmill.core.errors import did_you_mean
from torchmill.core.stat_cache import StatCache, stat_file
from torchmill.core.units import parse_bytes

T = TypeVar("T")
PYTHON = re.compile(r"\d{1,2}\.\d{1,3}t?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
VERSION_NAMES = ("version", "torch", "requires", "jobs")
INSTALL_NAMES = ("file", "version", "release", "torch", "variant")
ADDRESS_START = "https://"
_LONGEST_SPECIFIER = 1000  # characters
LARGEST_NUMBER = 10**15  # of anything; bytes of a petabyte, seconds of 30 million years
CAPABILITY = re.compile(r"\d{1,3}\.\d", re.ASCII)
TARGET = re.compile(rf"{CAPABILITY.pattern}[af]?", re.ASCII)
WHEEL_NAME = re.compile(r"[^\s/\\-]+(-[^\s/\\-]+){4,}\.whl")


class TomlTable:
    """One TOML table being read: each key is taken once, and a key that remains is unknown.

    To take a key is to remove it and to return its value. If the value is missing or wrong, a
    problem is noted, and the result is empty: "", 0, () or None.
    """

    def __init__(self, place: str, data: Mapping[str, Any], problems: list[str]) -> None:
        self.place = place  # "torch.toml: rule 3", for messages
        self.data = dict(data)  # that was not taken yet
        self.problems = problems
        self.requested: list[str] = []  # keys that a reader asked for

    def note_problem(self, text: str) -> None:
        """Note one problem of this table."""
        self.problems.append(f"{self.place}: {text}")

    def read(self, kind: type[T], /, **values: Any) -> T:
        """Return a dataclass of the whole table: each field is read from the key of its name.

        The annotation of a field decides how it is read. A field `rules` with several dataclasses
        is a list of tables, `[[rule]]`. `values` has the values of fields that the caller has read
        already. A missing key is a problem, unless its field has a default or can be empty, and so
        is a key that belongs to no field.
        """
        value = self.read_fields(kind, {}, **values)
        self.check_unknown_keys()
        return value

    def read_fields(self, kind: type[T], keys: Mapping[str, str], /, **values: Any) -> T:
        """Return a dataclass of some keys of the table, as `read` does, and leave the other keys.

        `keys` has the keys of fields whose key is not their name: {"homes": "toolkits"}.
        """
        for field in field_readers(kind):  # type: ignore[arg-type]
            if field.name in values:
                continue
            key = keys.get(field.name, field.key)
            if key in self.data or not field.has_default:
                values[field.name] = field.read(self, key)
            # Keys that are absent count too: a misspelt key may be meant for one of them.
            self.requested.append(key)
        return kind(**values)

    def read_each(self, key: str, kind: type[T]) -> tuple[T, ...]:
        """Take a list of tables, each a dataclass."""
        return tuple(table.read(kind) for table in self.tables(key))

    def take(self, key: str, kind: type[T], expected: str, default: T | None = None) -> T | None:
        """Take a value of a type; None, with a problem, if it is missing or of another type.

        `expected` names the type in messages. Without a `default`, the key is obligatory.
        """
        self.requested.append(key)
        if key not in self.data:
            if default is None:
                self.note_problem(f"key '{key}' is missing")
            return default
        value = self.data.pop(key)
        # In Python True is a whole number. In TOML `true` is not.
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        if kind is str and isinstance(value, float):
            self.note_problem(
                f"'{key}' is the number {value}: "
                'quote it, as in "3.10" (unquoted, TOML reads 3.10 as 3.1)'
            )
        else:
            self.note_problem(f"'{key}' is {value!r}, expected {expected}")
        return None

    def text(self, key: str, default: str | None = None) -> str:
        """Take a string."""
        return self.take(key, str, "a string", default) or ""

    def optional(self, key: str) -> str | None:
        """Take a string that may be absent; None then, and for an empty or a wrong one."""
        return self.text(key, "") or None

    def version(self, key: str) -> str:
        """Take a version (PEP 440); a text that is none is a problem, and is still returned."""
        text = self.text(key)
        if text and not is_version(text):
            self.note_problem(f"'{key}' is '{text}', expected a version, such as '2.35' (PEP 440)")
        return text

    def date(self, key: str) -> str | None:
        """Take a date that may be absent; None then, and, after a problem, for a wrong one."""
        text = self.optional(key)
        if text is None:
            return None
        try:
            return str(date.fromisoformat(text))
        except ValueError:
            self.note_problem(f"'{key}' is '{text}', expected a date, such as '2022-12-15'")
            return None

    def texts(self, key: str, default: Iterable[str] | None = None) -> tuple[str, ...]:
        """Take a list of strings, or one string; without a `default` it is obligatory.

        An element that is no string is a problem, and "" in the result.
        """
        if isinstance(self.data.get(key), str):
            return (self.text(key),)
        # With the default (), the list may be absent. With None, it is obligatory.
        default_list = None if default is None else list(default)
        values = self.take(key, list, "a list of strings", default_list) or []
        return tuple(self.element(key, value).text(key) for value in values)

    def element(self, key: str, value: object) -> "TomlTable":
        """Return a table with one element of the list at a key, to read it like a single value.

        Its mistakes are reported as mistakes of the list.
        """
        return TomlTable(self.place, {key: value}, self.problems)

    def commit(self, key: str) -> str | None:
        """Take a commit that may be absent; None then, and, after a problem, for a wrong one."""
        text = self.optional(key)
        if text and not COMMIT.fullmatch(text):
            self.note_problem(
                f"'{key}' is '{text}', expected a commit, with all of its 40 hexadecimal digits"
            )
            return None
        return text

    def pythons(self, key: str, default: Iterable[str] | None = None) -> tuple[str, ...]:
        """Take a list of versions of Python; one that is wrong is a problem, and left out."""
        if self.data.get(key) == []:
            self.note_problem(
                f"'{key}' is empty: expected Pythons such as '3.10', or leave the key out"
            )
        pythons: list[str] = []
        for text in self.texts(key, default):
            if PYTHON.fullmatch(text):
                pythons.append(text)
            elif text:  # "" stands for a value that is not a string, which was reported
                self.note_problem(
                    f"'{key}' has '{text}', which is not a Python such as '3.10' or '3.13t'"
                )
        return tuple(pythons)

    def template(self, key: str, names: Collection[str], default: str | None = None) -> str:
        """Take a string in which each of `names` in braces stands for a value.

        Other braces are a problem, and "" is returned. So are formats, "{version:>5}", and
        attributes, "{version.x}": facts may come from anybody, and str.format would evaluate them.
        """
        text = self.text(key, default)
        if _is_template(text, names):
            return text
        allowed = ", ".join(f"{{{name}}}" for name in names)
        self.note_problem(
            f"'{key}' is '{text}', expected a text in which braces stand only around names: "
            f"{allowed}"
        )
        return ""

    def specifier(self, key: str) -> SpecifierSet | None:
        """Take a PEP 440 specifier that may be absent; None, after a problem, for a wrong one."""
        text = self.text(key, "")
        if not text:
            return None
        # In a longer one, a number of more than 4300 digits would raise ValueError when it is compared.
        if len(text) <= _LONGEST_SPECIFIER:
            with suppress(InvalidSpecifier):
                return SpecifierSet(text)
        self.note_problem(
            f"'{key}' is '{text}', which is not a version specifier such as '>=1.8,<2'"
        )
        return None

    def bounds(self, key: str) -> SpecifierSet:
        """Take a PEP 440 specifier; one that is absent or wrong allows everything."""
        return self.specifier(key) or SpecifierSet()

    def number(self, key: str) -> float:
        """Take a number above 0, up to LARGEST_NUMBER."""
        return self._number_if(key, "a number above 0", lambda value: 0 < value <= LARGEST_NUMBER)

    def bound(self, key: str) -> float:
        """Take a number from 0 to LARGEST_NUMBER, a bound of a range."""
        return self._number_if(key, "a number from 0", lambda value: 0 <= value <= LARGEST_NUMBER)

    def share(self, key: str) -> float:
        """Take a number above 0 that is at most 1."""
        return self._number_if(key, "a number above 0, at most 1", lambda value: 0 < value <= 1)

    def _number_if(self, key: str, expected: str, is_fit: Callable[[float], bool]) -> float:
        """Take a number for which `is_fit` is true, as it is never for "nan"; 0 for any other.

        `expected` says in messages which numbers these are.
        """
        value: Any = self.take(key, int | float, expected)  # type: ignore[arg-type]
        if value is None:
            return 0.0
        if is_fit(value):
            return float(value)
        self.note_problem(f"'{key}' is {_shorten(value)}, expected {expected}")
        return 0.0

    def count(self, key: str, least: int = 0) -> int | None:
        """Take a whole number from `least` to LARGEST_NUMBER; None for any other."""
        expected = f"a whole number from {least}"
        value = self.take(key, int, expected)
        if value is None or least <= value <= LARGEST_NUMBER:
            return value
        self.note_problem(f"'{key}' is {_shorten(value)}, expected {expected}")
        return None

    def positive(self, key: str) -> int | None:
        """Take a whole number from 1; None for any other."""
        return self.count(key, least=1)

    def counts(self, key: str) -> tuple[int, ...]:
        """Take a list of whole numbers from 0; a wrong one is a problem, and 0 in the result."""
        values = self.take(key, list, "a list of whole numbers") or []
        return tuple(self.element(key, value).count(key) or 0 for value in values)

    def size(self, key: str) -> int:
        """Take a quantity of bytes above 0, such as "2.2 GiB"; 0 for a wrong one."""
        text = self.text(key)
        if not text:
            return 0
        try:
            size = parse_bytes(text)
        except ValueError as error:
            self.note_problem(f"'{key}': {error}")
            return 0
        if not 0 < size <= LARGEST_NUMBER:
            self.note_problem(f"'{key}' is '{text}', expected bytes above 0 and below 1000 TB")
            return 0
        return size

    def choice(self, key: str, choices: Collection[str]) -> str:
        """Take a string that is one of a few; any other is a problem, and is still returned."""
        value = self.text(key)
        if value and value not in choices:
            self.note_problem(f"'{key}' is '{value}', expected one of {', '.join(choices)}")
        return value

    def flag(self, key: str) -> bool:
        """Take a boolean, false if it is absent."""
        return bool(self.take(key, bool, "true or false", default=False))

    def table(self, key: str) -> "TomlTable":
        """Take a table that may be absent."""
        data = self.take(key, dict, "a table", {}) or {}
        return TomlTable(f"{self.place}: {key}", data, self.problems)

    def tables(self, key: str) -> tuple["TomlTable", ...]:
        """Take a list of tables that may be absent; () if one of its elements is no table."""
        values = self.take(key, list, "a list of tables", []) or []
        if not all(isinstance(value, dict) for value in values):
            self.note_problem(f"'{key}' is {values!r}, expected a list of tables")
            return ()
        return tuple(
            TomlTable(f"{self.place}: {key} {number}", value, self.problems)
            for number, value in enumerate(values, 1)
        )

    def map(self, key: str, read: Callable[["TomlTable", str], T]) -> dict[str, T]:
        """Take a table of any keys that may be absent; `read` reads the value of each."""
        table = self.table(key)
        return {name: read(table, name) for name in list(table.data)}

    def check_unknown_keys(self) -> None:
        """Note a problem for every key that is left in the table.

        It suggests a similar key, or else lists those that a reader asked for.
        """
        for key in self.data:
            hint = did_you_mean(key, self.requested)
            if not hint:
                hint = f": expected one of {', '.join(dict.fromkeys(self.requested))}"
            self.note_problem(f"unknown key '{key}'{hint}")


def _shorten(number: float) -> str:
    """Return a number for a message, in words if it may have hundreds of digits."""
    if isinstance(number, int) and abs(number) > LARGEST_NUMBER:
        return "a number that is too large" if number > 0 else "a number that is too small"
    return repr(number)


def _is_template(text: str, names: Collection[str]) -> bool:
    """Tell whether all braces of a text stand around one of some names."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError:  # a brace that is not closed
        return False
    for _, name, spec, conversion in parts:
        # The name is None in text after the last brace.
        if name is not None and (name not in names or spec or conversion):
            return False
    return True


Reader = Callable[[TomlTable, str], Any]
Shape = Literal["value", "map", "choice", "table", "tables"]


@dataclass(frozen=True, slots=True)
class FieldReader:
    """How a field of a dataclass is read from a table.

    `shape` and `content` say the same as `read`, for a schema of the table: a "value" or a "map" is of
    an annotation in `READERS`, a "choice" of words, a "table" or "tables" of a dataclass.
    """

    name: str
    key: str
    read: Reader
    has_default: bool
    shape: Shape
    content: Any


def _template(*names: str) -> Reader:
    """Return a reader of templates that may have these fields."""
    return lambda table, key: table.template(key, names)


def _names(pattern: re.Pattern[str], expected: str) -> Reader:
    """Return a reader of lists of strings that match a pattern; `expected` is for messages."""

    def read(table: TomlTable, key: str) -> tuple[str, ...]:
        names = table.texts(key)
        for name in names:
            if name and not pattern.fullmatch(name):
                table.note_problem(f"'{key}' has '{name}', expected {expected}")
        return names

    return read


def _requirements(table: TomlTable, key: str) -> tuple[str, ...]:
    """Take a list of requirements (PEP 508); one that is none is a problem."""
    requirements = table.texts(key)
    for text in filter(None, requirements):
        try:
            Requirement(text)
        except InvalidRequirement:
            table.note_problem(f"'{key}' has '{text}', which is not a requirement (PEP 508)")
    return requirements


def _commands(table: TomlTable, key: str) -> tuple[tuple[str, ...], ...]:
    """Take a list of lists of strings, none of them empty."""
    commands = table.take(key, list, "a list of commands") or []
    if [] in commands:
        table.note_problem(f"'{key}' has an empty command")
    return tuple(table.element(key, command).texts(key) for command in commands)


def _wheel_names(table: TomlTable, key: str) -> tuple[str, ...]:
    """Take a list of names of wheels; one that is wrong is a problem, and left out."""
    names: list[str] = []
    for text in table.texts(key):
        if WHEEL_NAME.fullmatch(text):
            names.append(text)
        elif text:  # "" stands for a value that is not a string, which was reported
            table.note_problem(
                f"'{key}' has '{text}', expected the name of a wheel, 'spam-1.0-py3-none-any.whl'"
            )
    return tuple(names)


def _addresses(table: TomlTable, key: str) -> tuple[str, ...]:
    """Take a list of addresses; one that does not begin with https:// is a problem."""
    addresses = table.texts(key)
    for address in addresses:
        if address and not address.startswith(ADDRESS_START):
            table.note_problem(f"'{key}' has '{address}', expected an address, '{ADDRESS_START}…'")
    return addresses


def _number_range(table: TomlTable, key: str) -> CostRange:
    """Take { low = 1.8, high = 7.3 }."""
    inner = table.table(key)
    return _range_in_order(inner, inner.bound("low"), inner.number("high"))


def _byte_range(table: TomlTable, key: str) -> CostRange:
    """Take { low = "0.9 GB", high = "1.5 GB" }."""
    inner = table.table(key)
    return _range_in_order(inner, inner.size("low"), inner.size("high"))


def _range_in_order(table: TomlTable, low: float, high: float) -> CostRange:
    """Return a range with bounds that were read; bounds in the wrong order are a problem."""
    # A bound that is missing or wrong is 0, and was reported.
    if high and low > high:
        table.note_problem(f"'low' is {low:g}, more than 'high', {high:g}")
    return table.read(CostRange, low=low, high=high)


# How a field is read, by its annotation; "… | None" as "…", unless it is listed. cattrs could do
# it, but takes 70 ms to import (cattrs 26.1), a third of the time of `invoke --list`, and has
# neither "did you mean" nor the places of mistakes.
READERS: dict[str, Reader] = {
    "str": TomlTable.text,
    "str | None": TomlTable.optional,
    "Commit | None": TomlTable.commit,
    "Pythons": TomlTable.pythons,
    "Capabilities": _names(CAPABILITY, "one such as '8.6'"),
    "Targets": _names(TARGET, "one such as '8.6' or '9.0a'"),
    "Requirements": _requirements,
    "PlatformTemplate": _template("glibc", "macos"),
    "VariantTemplate": _template("variant"),
    "InstallTemplate": _template(*INSTALL_NAMES),
    "VersionTemplate": _template(*VERSION_NAMES),
    "CompilerTemplate": _template("major"),
    "bool": TomlTable.flag,
    "float": TomlTable.number,
    "Share": TomlTable.share,
    "int": TomlTable.count,
    "Positive": TomlTable.positive,
    "Bytes": TomlTable.size,
    "VersionText": TomlTable.version,
    "VersionText | None": TomlTable.version,
    "DateText | None": TomlTable.date,
    "SpecifierSet": TomlTable.bounds,
    "SpecifierSet | None": TomlTable.specifier,
    "WheelNames": _wheel_names,
    "Addresses": _addresses,
    "tuple[str, ...]": TomlTable.texts,
    "tuple[int, ...]": TomlTable.counts,
    "tuple[tuple[str, ...], ...]": _commands,
    "CostRange": _number_range,
    "ByteRange": _byte_range,
}


@cache
def field_readers(kind: Any) -> tuple[FieldReader, ...]:
    """Return how each field of a dataclass is read, but for those that only its caller can read.

    Annotations are texts, because the modules of these classes import annotations from
    __future__. A name in them that is not a key of `READERS` is looked up in the class's module.
    """
    module = vars(sys.modules[kind.__module__])
    readers = (_field_reader(field, module) for field in fields(kind))
    return tuple(reader for reader in readers if reader is not None)


def _field_reader(field: Field[Any], module: Mapping[str, Any]) -> FieldReader | None:
    """Return how a field is read; `module` has the names of its annotation.

    None if only the caller can read it: its annotation is none of those that are known.
    """
    name = field.name
    annotation = str(field.type)
    has_default = field.default is not MISSING or field.default_factory is not MISSING
    required = annotation.removesuffix(" | None")
    for written in (annotation, required):
        if written in READERS:
            return FieldReader(name, name, READERS[written], has_default, "value", written)
    entry = annotation.removeprefix("Mapping[str, ").removesuffix("]")
    if entry in READERS:
        return FieldReader(name, name, _map_reader(READERS[entry]), has_default, "map", entry)
    # "tuple[ToolkitPart, ...]" is a list of tables, "CondaName" a table, "Scope" a Literal.
    inner: Any = module.get(required.removeprefix("tuple[").removesuffix(", ...]"))
    words = get_args(inner)  # of a Literal
    if words:
        return FieldReader(name, name, _choice_reader(words), has_default, "choice", words)
    if not isinstance(inner, type) or not is_dataclass(inner):
        return None
    if annotation in module:
        return FieldReader(name, name, _table_reader(inner), has_default, "table", inner)
    key = name.removesuffix("s")
    return FieldReader(name, key, _tables_reader(inner), has_default, "tables", inner)


def _map_reader(value: Reader) -> Reader:
    """Return a reader of tables whose values are read by `value`."""
    return lambda table, key: table.map(key, value)


def _choice_reader(words: Collection[str]) -> Reader:
    """Return a reader of texts that must be one of some words."""
    return lambda table, key: table.choice(key, words)


def _table_reader(kind: type) -> Reader:
    """Return a reader of a table as a value of a dataclass."""
    return lambda table, key: table.table(key).read(kind)


def _tables_reader(kind: type) -> Reader:
    """Return a reader of an array of tables as values of a dataclass."""
    return lambda table, key: table.read_each(key, kind)


def read_toml(
    path: Path, problems: list[str], *, required: bool = True, cache: StatCache | None = None
) -> TomlTable:
    """Return the table of a TOML file; it is empty, after a problem, if the file cannot be read.

    A missing file is a problem only if it is required. The contents are remembered in `cache`:
    to parse build_configs/ takes 60 ms, to read them from there 2 ms (71 files, 345 kB of JSON).
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
    except ValueError:
        # Python reads no number of so many digits (sys.get_int_max_str_digits).
        problems.append(f"{path.name}: it has a number of thousands of digits")
    except OSError as error:
        problems.append(f"{path.name}: it cannot be read ({error.strerror})")
    return TomlTable(path.name, data, problems)


def _parse(path: Path, cache: StatCache | None) -> dict[str, Any]:
    """Return the contents of a TOML file, remembered in `cache` as JSON."""

    def parse() -> dict[str, Any]:
        return tomllib.loads(path.read_text(encoding="utf-8"))

    if cache is None:
        return parse()
    # TypeError: JSON has no dates. JSONDecodeError: the remembered text is damaged.
    with suppress(TypeError, json.JSONDecodeError):
        state = [stat_file(path)]
        text = cache.remember(str(path.absolute()), state, lambda: json.dumps(parse()))
        data = json.loads(text)
        if isinstance(data, dict):
            return data
    return parse()
