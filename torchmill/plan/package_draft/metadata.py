"""Read the metadata of a source: its name, version, Pythons and requirements, and where each is from.

The files are those of the packaging standards, asked in this order: PKG-INFO (which a source archive
of PyPI has), pyproject.toml, setup.cfg, the literals of setup.py.
https://packaging.python.org/en/latest/specifications/
"""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.plan.package_draft.setup_script import SETUP, SetupScript
from torchmill.plan.package_draft.source_texts import Place, SourceTexts, search

PKG_INFO = "PKG-INFO"
PYPROJECT = "pyproject.toml"
SETUP_CFG = "setup.cfg"
_LONGEST_REQUIREMENT = 1000  # characters
_SETUPTOOLS = "setuptools.build_meta"
_LEGACY = "setuptools.build_meta:__legacy__"


@dataclass(frozen=True, slots=True)
class Value:
    """A text that was read in a file."""

    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a source, as far as its texts tell it."""

    name: Value | None = None
    version: Value | None = None
    requires_python: Value | None = None
    backend: Value | None = None
    # Of a backend that is a file of the source, and usually passes the work on to setuptools: the
    # folders that it is imported from.
    backend_path: tuple[str, ...] = ()
    build_requires: tuple[Value, ...] = ()  # of [build-system]
    requires: tuple[Value, ...] = ()  # of the wheel
    problem: str = ""  # of pyproject.toml

    @property
    def backend_is_own(self) -> bool:
        """Tell whether the backend is a file of the source."""
        return bool(self.backend_path)

    @property
    def uses_setuptools(self) -> bool:
        """Tell whether setuptools builds it: also if nothing names another backend."""
        return self.backend_is_own or self.is_setuptools

    @property
    def is_setuptools(self) -> bool:
        """Tell whether the backend that is named, if any, is setuptools itself."""
        return self.backend is None or self.backend.text in {_SETUPTOOLS, _LEGACY}


def read_metadata(texts: SourceTexts, script: SetupScript) -> Metadata:
    """Return the metadata in the texts of a source."""
    project, problem = _read_pyproject(texts)
    values: dict[str, Value] = {}
    for key, value in (
        *_from_pkg_info(texts),
        *_from_pyproject(texts, project),
        *_from_setup_cfg(texts),
        *_from_script(script),
    ):
        if value.text.strip() and _is_valid(key, value.text):
            values.setdefault(key, value)
    return Metadata(
        name=values.get("name"),
        version=values.get("version"),
        requires_python=values.get("requires_python"),
        backend=_backend(texts, project),
        backend_path=_backend_path(texts, project),
        build_requires=_build_requires(texts, project),
        requires=_requires(texts),
        problem=problem,
    )


def _is_valid(key: str, text: str) -> bool:
    """Tell whether a text is what its key stands for: a version, bounds of Pythons."""
    try:
        if key == "version":
            Version(text)
        elif key == "requires_python":
            SpecifierSet(text)
    except ValueError:  # also for a number of more digits than Python reads
        return False
    # An sdist without metadata that setuptools made calls itself so.
    return (key, text) not in {("name", "UNKNOWN"), ("version", "0.0.0")}


def _read_pyproject(texts: SourceTexts) -> tuple[Mapping[str, Any], str]:
    """Return the content of pyproject.toml, and what is wrong with it."""
    try:
        return tomllib.loads(texts.text(PYPROJECT)), ""
    except (ValueError, RecursionError) as error:  # ValueError: also for a number that is too long
        return {}, f"{PYPROJECT} cannot be read ({error})"


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table of a TOML file; empty if there is none, or if it is no table."""
    table = data.get(name)
    return table if isinstance(table, dict) else {}


def _backend(texts: SourceTexts, project: Mapping[str, Any]) -> Value | None:
    """Return the build backend that pyproject.toml names; None if it names none."""
    backend = _table(project, "build-system").get("build-backend")
    if not isinstance(backend, str):
        return None
    return Value(backend, _place(texts, PYPROJECT, "build-backend"))


def _backend_path(texts: SourceTexts, project: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of a backend that is a file of the source, which has a setup.py as well.

    () for any other source.
    https://peps.python.org/pep-0517/#in-tree-build-backends
    """
    folders = _table(project, "build-system").get("backend-path")
    if not isinstance(folders, list) or not has_setup_script(texts):
        return ()
    return tuple(map(str, folders))


def _build_requires(texts: SourceTexts, project: Mapping[str, Any]) -> tuple[Value, ...]:
    """Return the requirements of [build-system]; () if they are no list."""
    requires = _table(project, "build-system").get("requires")
    if not isinstance(requires, list):
        return ()
    place = _place(texts, PYPROJECT, "requires")
    return tuple(Value(str(requirement), place) for requirement in requires)


def _place(texts: SourceTexts, name: str, key: str) -> Place:
    """Return the place of a key in a file; the file as a whole if it is not found."""
    for _, place in search(texts, rf"^\s*{key}\s*=", [name]):
        return place
    return Place(name)


def _from_pkg_info(texts: SourceTexts) -> Iterator[tuple[str, Value]]:
    """Yield the values of PKG-INFO."""
    headers = HeaderParser().parsestr(texts.text(PKG_INFO))
    keys = {"Name": "name", "Version": "version", "Requires-Python": "requires_python"}
    for header, key in keys.items():
        text = headers.get(header)
        if isinstance(text, str):
            yield key, Value(text.strip(), _place_of_header(texts, header))


def _place_of_header(texts: SourceTexts, header: str) -> Place:
    """Return the place of a header in PKG-INFO."""
    for _, place in search(texts, rf"^{header}:", [PKG_INFO]):
        return place
    return Place(PKG_INFO)


def _from_pyproject(texts: SourceTexts, project: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """Yield the values of [project]."""
    table = _table(project, "project")
    keys = {"name": "name", "version": "version", "requires-python": "requires_python"}
    for name, key in keys.items():
        if isinstance(table.get(name), str):
            yield key, Value(table[name], _place(texts, PYPROJECT, name))


def _from_setup_cfg(texts: SourceTexts) -> Iterator[tuple[str, Value]]:
    """Yield the values of setup.cfg; those that name a file or a module are left out."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(texts.text(SETUP_CFG))
    except configparser.Error:
        return
    for section, name, key in (
        ("metadata", "name", "name"),
        ("metadata", "version", "version"),
        ("options", "python_requires", "requires_python"),
    ):
        text = parser.get(section, name, fallback="")
        if text and not text.startswith(("attr:", "file:")):
            yield key, Value(text, _place(texts, SETUP_CFG, name))


def _from_script(script: SetupScript) -> Iterator[tuple[str, Value]]:
    """Yield the literals that setup.py gives to setup()."""
    keys = {"name": "name", "version": "version", "python_requires": "requires_python"}
    for argument, key in keys.items():
        if argument in script.arguments:
            text, place = script.arguments[argument]
            yield key, Value(text, place)


def _requires(texts: SourceTexts) -> tuple[Value, ...]:
    """Return the requirements that PKG-INFO lists, without those of extras."""
    values: list[Value] = []
    for match, place in search(texts, r"^Requires-Dist:\s*(.+)$", [PKG_INFO]):
        if "extra ==" not in match[1]:
            values.append(Value(match[1].strip(), place))
    return tuple(values)


def torch_bounds(requirements: Iterable[str]) -> SpecifierSet:
    """Return what requirements demand of torch."""
    bounds = SpecifierSet()
    for text in requirements:
        requirement = parse_requirement(text)
        if requirement and canonicalize_name(requirement.name) == "torch":
            bounds &= requirement.specifier
    return bounds


def lower_bound(bounds: SpecifierSet) -> Version | None:
    """Return the oldest version that all of >=, ~= and == in bounds allow; None without any."""
    versions: list[Version] = []
    for specifier in bounds:
        if specifier.operator in {">=", "~=", "=="}:
            try:
                version = Version(specifier.version.removesuffix(".*"))
                # Without a local label, "+cu128", which only == may have.
                versions.append(Version(version.public))
            except ValueError:  # also for a number of more digits than Python reads
                continue
    return max(versions, default=None)


def parse_requirement(text: str) -> Requirement | None:
    """Return a requirement; None if the text is none, or longer than any."""
    if len(text) > _LONGEST_REQUIREMENT:
        return None
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def has_setup_script(texts: SourceTexts) -> bool:
    """Tell whether a source has a setup.py."""
    return texts.has_file(SETUP)
