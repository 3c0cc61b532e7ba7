"""Read TOML tables strictly: every mistake is collected with its place, and none stops the reading."""

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from torchmill.core.stat_cache import StatCache, stat_file
from torchmill.core.units import parse_bytes

# TOML files that were parsed before
_parsed: ContextVar[StatCache | None] = ContextVar("parsed", default=None)


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

    def take(self, key: str, default: Any) -> Any:
        """Take a value of any kind; a default of None makes the key obligatory."""
        self.requested.append(key)
        if key not in self.data and default is None:
            self.problem(f"key '{key}' is missing")
        return self.data.pop(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """Take a string."""
        value = self.take(key, default)
        if isinstance(value, str):
            return value
        if value is not None:
            self.problem(_not_text(key, value))
        return ""

    def optional(self, key: str) -> str | None:
        """Take a string that may be absent."""
        return self.text(key, "") or None

    def version(self, key: str) -> str:
        """Take a version (PEP 440)."""
        text = self.text(key)
        if text and not is_version(text):
            self.problem(f"'{text}' is no version")
        return text

    def texts(self, key: str, default: Iterable[str] | None = None) -> tuple[str, ...]:
        """Take a list of strings, or one string."""
        value = self.take(key, default)
        values = [value] if isinstance(value, str) else list(value or ())
        for item in values:
            if not isinstance(item, str):
                self.problem(_not_text(key, item))
        return tuple(str(item) for item in values)

    def specifier(self, key: str) -> SpecifierSet | None:
        """Take a PEP 440 specifier that may be absent."""
        text = self.text(key, "")
        try:
            return SpecifierSet(text) if text else None
        except InvalidSpecifier:
            self.problem(f"'{key}' is '{text}', which is no version specifier such as '>=1.8,<2'")
            return None

    def specifiers(self, key: str) -> dict[str, SpecifierSet]:
        """Take a table of PEP 440 specifiers that may be absent."""
        table = self.table(key)
        return {name: table.specifier(name) or SpecifierSet() for name in list(table.data)}

    def count(self, key: str) -> int | None:
        """Take a whole number that may be absent."""
        self.requested.append(key)
        value = self.data.pop(key, None)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        self.problem(f"'{key}' is {value!r}, expected a whole number")
        return None

    def counts(self, key: str) -> dict[str, int]:
        """Take a table of whole numbers that may be absent."""
        table = self.table(key)
        return {name: table.count(name) or 0 for name in list(table.data)}

    def size(self, key: str) -> int:
        """Take a quantity of bytes such as "2.2 GiB"."""
        text = self.text(key)
        try:
            return parse_bytes(text) if text else 0
        except ValueError as error:
            self.problem(f"'{key}': {error}")
            return 0

    def optional_size(self, key: str) -> int | None:
        """Take a quantity of bytes that may be absent."""
        if key in self.data:
            return self.size(key)
        self.requested.append(key)
        return None

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        """Take a string that is one of a few."""
        value = self.text(key, default)
        if value and value not in choices:
            self.problem(f"'{key}' is '{value}', expected one of {', '.join(choices)}")
        return value

    def flag(self, key: str) -> bool:
        """Take a boolean, false when absent."""
        value = self.take(key, default=False)
        if not isinstance(value, bool):
            self.problem(f"'{key}' is {value!r}, expected true or false")
        return bool(value)

    def table(self, key: str) -> "TomlTable":
        """Take a table that may be absent."""
        value = self.take(key, {})
        if not isinstance(value, dict):
            self.problem(f"'{key}' is {value!r}, expected a table")
            value = {}
        return TomlTable(f"{self.where}: {key}", value, self.problems)

    def tables(self, key: str) -> tuple["TomlTable", ...]:
        """Take a list of tables that may be absent."""
        value = self.take(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            self.problem(f"'{key}' is {value!r}, expected a list of tables")
            value = []
        return tuple(
            TomlTable(f"{self.where}: {key} {number}", one, self.problems)
            for number, one in enumerate(value, 1)
        )

    def mapping(self, key: str) -> dict[str, str]:
        """Take a table of strings."""
        table = self.table(key)
        return {name: table.text(name) for name in list(table.data)}

    def check_unknown_keys(self) -> None:
        """Complain about every key that nobody asked for."""
        for key in self.data:
            near = get_close_matches(key, self.requested, 1)
            self.problem(f"unknown key '{key}'" + (f"; did you mean '{near[0]}'?" if near else ""))


def _not_text(key: str, value: object) -> str:
    if isinstance(value, float):
        return (
            f"'{key}' holds the number {value}; quote it, as in \"3.10\" (unquoted, TOML reads 3.10 as 3.1)"
        )
    return f"'{key}' holds {value!r}, expected a string"


@contextmanager
def remembering(file: Path) -> Iterator[None]:
    """Remember in `file` what TOML files hold, for as long as the context lasts and they look the same.

    Parsing build_configs/ takes 60 ms, reading what was remembered of it 2 ms (71 files, 345 kB of JSON).
    """
    cache = StatCache(file)
    token = _parsed.set(cache)
    try:
        yield
    finally:
        _parsed.reset(token)
        cache.save()


def _parse(path: Path, cache: StatCache | None) -> dict[str, Any]:
    seen = stat_file(path) if cache else None
    if cache is None or seen is None:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    what = str(path.absolute())
    known = cache.lookup(what, seen)
    if known is not None:
        with suppress(ValueError):
            data = json.loads(known)
            if isinstance(data, dict):
                return data
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    with suppress(TypeError):  # dates, which JSON does not know
        cache.store(what, seen, json.dumps(data, separators=(",", ":")))
    return data


def read_toml(path: Path, problems: list[str]) -> TomlTable:
    """Read a TOML file; a missing or broken one is a problem and an empty table."""
    try:
        data = _parse(path, _parsed.get())
    except FileNotFoundError:
        problems.append(f"{path.name}: the file is missing")
        data = {}
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path.name}: {error}")
        data = {}
    except UnicodeDecodeError:
        problems.append(f"{path.name}: it is not text in UTF-8")
        data = {}
    except OSError as error:
        problems.append(f"{path.name}: it cannot be read ({error.strerror})")
        data = {}
    return TomlTable(path.name, data, problems)


def read_tables(path: Path, problems: list[str]) -> Iterator[tuple[str, TomlTable]]:
    """Yield the name and the table of each entry of a TOML file, and note what was not read of it."""
    file = read_toml(path, problems)
    for name in list(file.data):
        table = file.table(name)
        yield name, table
        table.check_unknown_keys()


def is_version(text: str) -> bool:
    """Tell whether a text is a version (PEP 440)."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
