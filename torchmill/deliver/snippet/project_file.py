"""Put a snippet into a project's own pyproject.toml, and keep its comments and order.

A snippet is the text of a pyproject.toml that declares our wheels: dependencies, their *places*
(indexes and folders), and settings of the project's tool. The generators here edit the document
that they are given while they are iterated, and yield a clause about each change: about what was
there before and is replaced, and not about what is added.
"""

import contextlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

import tomlkit
from millpress.dependencies import project_of
from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from tomlkit.exceptions import TOMLKitError

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.core.system_errors import report_unwritable

# For each tool, two keys in its table: the key with the place of each package ("" for PDM, which
# names the packages in the places), and the key with the list of places.
_TABLES = {"uv": ("sources", "index"), "poetry": ("dependencies", "source"), "pdm": ("", "source")}

# The settings of uv for the whole lock, which it reads only from the root of a workspace.
_WORKSPACE_SETTINGS = ("environments", "required-environments", "conflicts")

# Settings that only a new project gets from a snippet: an existing project has decided about them.
_NEW_PROJECT_SETTINGS = {"package-mode", "distribution"}

# Versions that stand for all Pythons, and for all releases of NumPy: two specifiers count as equal
# if they admit the same of these versions. 99 stands for all patch releases to come.
_PYTHONS = [Version(f"3.{minor}.{patch}") for minor, patch in product(range(60), (*range(30), 99))]
_NUMPYS = [
    Version(f"{major}.{minor}.{patch}")
    for major, minor, patch in product((1, 2, 3), range(30), (0, 1, 5, 99))
]

_WRITABLE = 0o222


def edit_project(file: Path, snippet: str, tool: str, extra: str) -> str:
    """Put the declarations of a snippet into a project's file; return lines about the changes.

    `tool` is one of uv, poetry and pdm. With `extra`, the dependencies become those of that extra.
    The file is replaced by rename. Raises ConfigError for a file that is read-only or no project's,
    DeliveryError if the project is for other Pythons, HostError if the file cannot be written.
    """
    if not file.is_file():
        raise _refusal(file, "is not a file: name the project's pyproject.toml", "no-project-file")
    if not file.stat().st_mode & _WRITABLE:
        raise _refusal(file, f"is read-only: run `chmod u+w {file}`", "read-only-project")
    try:
        text = file.read_bytes().decode("utf-8-sig")
        # tomlkit keeps "\r\n" in strings of several lines, and tomllib reads "\n": without it, the
        # comparison of both below would fail.
        project = tomlkit.parse(text.replace("\r\n", "\n"))
        root = workspace_root(file) if tool == "uv" else None
        changes = list(merge_snippet(project, snippet, tool, extra, root))
    except (UnicodeDecodeError, TOMLKitError) as error:
        raise _refusal(
            file,
            f"not TOML of a project ({error}): correct it; a project has a table [project] with "
            "name and version",
            "invalid-project",
        ) from None
    # tomlkit raises ValueError if an inline table would have to hold tables.
    except (AttributeError, TypeError, ValueError):
        raise _refusal(
            file,
            f"has a value of a kind that {tool} does not take, an inline table, or an invalid "
            "requires-python: correct it",
            "invalid-project",
        ) from None
    edited = tomlkit.dumps(project)
    # The file keeps the line ends of its system.
    if "\r\n" in text:
        edited = edited.replace("\n", "\r\n")
    # tomlkit can write a text whose values are not those of the document, if the parts of a table
    # lie apart in the file.
    if _parse_toml(edited) != project.unwrap():
        raise _refusal(
            file,
            f"its tables are too scattered to be edited: write [tool.{tool}] and all in it with "
            "headings, together",
            "scattered-tables",
        )
    if edited == text:
        return f"{file} has all of it already"
    with report_unwritable(file):
        # A link stays, and the file that it leads to is replaced.
        write_atomically(file.resolve(), edited, file.stat().st_mode & 0o777)
    return "\n".join([f"{file} is changed", *(f"  {change}" for change in changes)])


def _refusal(file: Path, problem: str, code: str) -> ConfigError:
    return ConfigError(f"--into {file}: {problem}", code=code)


def _parse_toml(text: str) -> dict[str, Any] | None:
    """Return the values of a document; None if it is not valid TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):  # ValueError: also for a number that is too long
        return None


def merge_snippet(
    project: tomlkit.TOMLDocument, snippet: str, tool: str, extra: str, root: Path | None = None
) -> Iterator[str]:
    """Put the declarations of a snippet into a project; yield a clause for each change.

    `root` is the pyproject.toml of the workspace that the project is a member of, None without a
    workspace. Raises DeliveryError if the project admits no Python that has wheels, or computes a
    field that has to be written.
    """
    # A table that tomlkit copies takes along the blank lines behind it. The last table has none, so
    # they are added.
    declared: Any = tomlkit.parse(f"{snippet}\n\n")
    table: Any = project["project"]
    lists = _snippet_requirements(declared["project"])
    packages = _pinned_packages(lists)
    requirement_field = "optional-dependencies" if extra else "dependencies"
    _require_static(table, {"requires-python", requirement_field})
    previous_pythons = table.get("requires-python")
    yield from _narrow_pythons(table, str(declared["project"]["requires-python"]))
    yield from _merge_requirements(table, lists, packages, extra)
    yield from _other_pins(project, {extra, *lists}, packages)
    settings = {}
    for key, value in declared["tool"].get(tool, {}).items():
        if key in _NEW_PROJECT_SETTINGS:
            continue
        if root and key in _WORKSPACE_SETTINGS:
            line = f"{key} = {_inline(value)}"
            yield (
                f"not written, as uv reads it in the workspace's root: add to [tool.uv] of {root}: "
                f"{line}"
            )
        else:
            settings[key] = value
    yield from _excluded_platforms(settings_of(project, tool), settings)
    # Poetry refuses a `python` in its own table that is not within requires-python.
    replaced = set(packages)
    if table["requires-python"] != previous_pythons:
        replaced.add("python")
    yield from _merge_settings(project, tool, settings, replaced)


def _merge_settings(
    project: tomlkit.TOMLDocument, tool: str, settings: Mapping[str, Any], replaced: set[str]
) -> Iterator[str]:
    """Put a snippet's settings into a tool's table.

    Places that the table gives for the packages `replaced` are removed, unless the snippet has
    places for them. Yields a clause for each change.
    """
    table: Any = settings_of(project, tool)
    if settings:
        # A super table: the heading [tool] is not written if it has nothing but tables.
        tools = project.setdefault("tool", tomlkit.table(is_super_table=True))
        table = tools.setdefault(tool, tomlkit.table())
    sources_key, places_key = _TABLES[tool]
    sources = table.get(sources_key, {})
    new_sources = settings.get(sources_key, {})
    stale = [
        name for name in sources if canonicalize_name(name) in replaced and name not in new_sources
    ]
    for name in stale:
        yield f"tool.{tool}.{sources_key}.{name} was replaced: {sources.pop(name)}"
    for key, value in settings.items():
        title = f"tool.{tool}.{key}"
        if key == sources_key and key in table:
            for name, source in value.items():
                yield from _assign(table[key], name, source, f"{title}.{name}")
        elif key == places_key and key in table:
            for place in value:
                yield from _merge_place(table[key], place, title)
        else:
            yield from _assign(table, key, value, title)


def declared_packages(file: Path) -> list[str]:
    """Return the projects that a pyproject.toml requires, also in extras and dependency groups.

    Their names are in PyPI's normal form, each once. The list is empty if the file cannot be read,
    or is not of a project: `edit_project` says so.
    """
    try:
        project = tomllib.loads(file.read_text("utf-8-sig"))
        table = project.get("project", {})
        lists = [
            table.get("dependencies", []),
            *table.get("optional-dependencies", {}).values(),
            *project.get("dependency-groups", {}).values(),
        ]
    except (OSError, ValueError, AttributeError):
        return []
    names = []
    for requirements in lists:
        if isinstance(requirements, list):
            names += [project_of(line) for line in requirements if isinstance(line, str)]
    return list(dict.fromkeys(filter(None, names)))


def workspace_root(file: Path) -> Path | None:
    """Return the pyproject.toml of the uv workspace that a project is in; None without a workspace.

    uv reads settings of the whole lock, such as `environments`, from the workspace's root alone:
    https://docs.astral.sh/uv/concepts/projects/workspaces/
    """
    folder = file.resolve().parent
    for parent in folder.parents:
        candidate = parent / "pyproject.toml"
        if not candidate.is_file():
            continue
        with contextlib.suppress(OSError, ValueError, AttributeError):
            settings = settings_of(tomllib.loads(candidate.read_text("utf-8")), "uv")
            workspace = settings.get("workspace", {})
            relative = PurePosixPath(folder.relative_to(parent).as_posix())
            # Tried with uv 0.13: "*" in `exclude` also stands for a path of several folders, and in
            # `members` for the name of one folder.
            if any(fnmatchcase(str(relative), pattern) for pattern in workspace.get("exclude", [])):
                continue
            for pattern in workspace.get("members", []):
                if _is_member(relative.parts, PurePosixPath(pattern).parts):
                    return candidate
    return None


def _is_member(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a pattern of `members` matches a path; both are split into their folders."""
    if not path or not pattern:
        return not path and not pattern
    if pattern[0] != "**":
        return fnmatchcase(path[0], pattern[0]) and _is_member(path[1:], pattern[1:])
    if len(pattern) == 1:  # at the end, it stands for any folders below, but not for none
        return True
    return _is_member(path, pattern[1:]) or _is_member(path[1:], pattern)


def _require_static(table: Any, fields: set[str]) -> None:
    """Raise DeliveryError if a project computes one of the fields, so that it cannot be written."""
    dynamic = sorted(fields.intersection(table.get("dynamic", [])))
    if dynamic:
        raise DeliveryError(
            f"--into: the project's `dynamic` has {', '.join(dynamic)}, which --into writes "
            "itself: remove it from there",
            code="dynamic-field",
        )


def settings_of(project: Any, tool: str) -> Any:
    """Return the table of a tool in a project's file, {} if there is none."""
    return project.get("tool", {}).get(tool, {})


def _inline(value: Any) -> str:
    """Return a value of a document, or of Python, as TOML in one line."""
    return " ".join(tomlkit.item(value).as_string().split())


def _excluded_platforms(previous: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause if the snippet makes uv lock for other platforms than the project did."""
    environments = settings.get("environments")
    if environments and environments != previous.get("environments"):
        platforms = " and ".join(environments)
        yield (
            f"uv now locks for {platforms} only, which have wheels: others cannot install the "
            "project"
        )


def _other_pins(project: Any, edited: set[str], packages: set[str]) -> Iterator[str]:
    """Yield a clause for each requirement on `packages` in extras and groups that stay as they are.

    `edited` are the extras that were edited.
    """
    edited_names = {canonicalize_name(name) for name in edited}
    extras = project["project"].get("optional-dependencies", {})
    for name, lines in {**project.get("dependency-groups", {}), **extras}.items():
        if canonicalize_name(name) in edited_names:
            continue
        for line in lines:
            if project_of(line) in packages:
                yield f"{line} of {name} stays: correct it where it contradicts the rest"


def _narrow_pythons(table: Any, served: str) -> Iterator[str]:
    """Exclude Pythons without wheels from requires-python, which is added if it is missing.

    `served` is the specifier of the Pythons that have wheels.
    """
    previous = str(table.setdefault("requires-python", served))
    served_set = SpecifierSet(served)
    previous_set = SpecifierSet(previous)
    admitted = [python for python in _PYTHONS if python in previous_set]
    common = [python for python in admitted if python in served_set]
    if not common:
        raise DeliveryError(
            f"--into: the project requires Python {previous}, and the wheels are for {served}: "
            "build them for one of its Pythons, or change requires-python",
            code="no-common-python",
        )
    if len(common) < len(admitted):
        clauses = [*previous_set]
        # A clause that excludes nothing more would only repeat the clauses of the project.
        clauses += [clause for clause in served_set if not _admits_all(clause, admitted)]
        table["requires-python"] = _join_clauses(_without_redundant(clauses, previous_set))
        yield (
            f"requires-python was {previous}, and is now {table['requires-python']}: other Pythons "
            "have no wheels"
        )


def _without_redundant(clauses: Sequence[Specifier], previous: SpecifierSet) -> list[Specifier]:
    """Return the clauses of requires-python without those that became superfluous.

    These are clauses of the `previous` specifier that follow from all others: ">=3.8" if there is
    ">=3.10" now. Clauses with "!=" stay: people write them for a reason.
    """
    remaining = list(clauses)
    for clause in previous:
        if clause.operator == "!=":
            continue
        rest = [other for other in remaining if other != clause]
        implied = [python for python in _PYTHONS if all(python in other for other in rest)]
        if _admits_all(clause, implied):
            remaining = rest
    return remaining


def _admits_all(clause: Specifier, versions: Sequence[Version]) -> bool:
    """Tell whether a clause of a specifier (">=3.10") admits each of the versions."""
    return all(version in clause for version in versions)


def _join_clauses(clauses: Sequence[Specifier]) -> str:
    """Return clauses as a specifier, lower bounds first."""
    return ",".join(sorted(map(str, clauses), reverse=True))


def _snippet_requirements(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists of requirements of a snippet, by extra.

    A snippet has either extras, or one list for the project itself, whose name here is "".
    """
    return dict(table.get("optional-dependencies", {})) or {"": table["dependencies"]}


def _pinned_packages(lists: Mapping[str, Any]) -> set[str]:
    """Return the packages that a snippet pins: all but NumPy, which it only bounds."""
    packages: set[str] = set()
    for lines in lists.values():
        packages.update(project_of(line) for line in lines)
    return packages - {"numpy"}


def _merge_requirements(
    table: Any, lists: Mapping[str, Any], packages: set[str], extra: str
) -> Iterator[str]:
    """Put a snippet's requirements in the place of those on the same packages.

    A bound of NumPy is added to the project's own bounds. `lists` are the snippet's requirements by
    extra: several for several variants, whose extras the user does not name, or one that goes into
    the extra `extra`, or into the project's own list if that is "". Yields a clause for each
    change.
    """
    # The list of the project itself ("") is always edited: a package that moves into an extra must
    # not stay in it.
    targets: dict[str, Any] = {"": []}
    for name, lines in lists.items():
        targets[extra or name] = lines
    for name, lines in targets.items():
        requirements = _project_requirements(table, name)
        for package in sorted(packages):
            new_lines = [str(line) for line in lines if project_of(line) == package]
            yield from _replace_lines(requirements, package, new_lines)
        # A list that the user wrote in several lines keeps them.
        if "\n" not in requirements.as_string():
            requirements.multiline(multiline=len(requirements) > 1)
        for line in lines:
            if project_of(line) == "numpy":
                yield from _bound_numpy(requirements, Requirement(line))


def _project_requirements(table: Any, extra: str) -> Any:
    """Return the list of a project's requirements in an extra, or its own list if that is "".

    The list is added to the document if it is missing.
    """
    if not extra:
        return table.setdefault("dependencies", tomlkit.array())
    extras = table.setdefault("optional-dependencies", tomlkit.table())
    for name in extras:
        if canonicalize_name(name) == canonicalize_name(extra):
            return extras[name]
    return extras.setdefault(extra, tomlkit.array())


def _bound_numpy(requirements: Any, bound: Requirement) -> Iterator[str]:
    """Add a bound to the requirements on NumPy in a list, or the bound alone if it has none."""
    positions = _positions(requirements, "numpy")
    if not positions:
        requirements.append(str(bound))
    for position in positions:
        previous = requirements[position]
        requirement = Requirement(previous)
        if not _keeps_to(requirement.specifier, bound.specifier):
            requirement.specifier &= bound.specifier
            requirements[position] = str(requirement)
            yield f"{previous} is now {requirement}: the wheels are compiled against NumPy 1"


def _keeps_to(specifier: SpecifierSet, bound: SpecifierSet) -> bool:
    """Tell if a specifier admits no version of NumPy beyond a bound: "==1.26.4" keeps to "<2"."""
    # _NUMPYS need not have the versions that the specifier names.
    named_versions = [
        Version(clause.version)
        for clause in specifier
        if clause.operator in {"==", ">=", "~="} and "*" not in clause.version
    ]
    beyond = [version for version in (*_NUMPYS, *named_versions) if version not in bound]
    return not any(specifier.contains(version, prereleases=True) for version in beyond)


def _positions(requirements: Any, package: str) -> list[int]:
    """Return the positions of the requirements on a package in a list."""
    return [position for position, line in enumerate(requirements) if project_of(line) == package]


def _replace_lines(requirements: Any, package: str, new_lines: list[str]) -> Iterator[str]:
    """Replace a list's requirements on a package by new lines; the list's comments stay."""
    positions = _positions(requirements, package)
    for position, line in zip(positions, new_lines, strict=False):
        if requirements[position] != line:
            yield f"{requirements[position]} was replaced"
            requirements[position] = line
    # From the end, because each removal moves the requirements behind it.
    for position in reversed(positions[len(new_lines) :]):
        yield f"{requirements.pop(position)} was replaced"
    requirements.extend(new_lines[len(positions) :])


def _merge_place(places: Any, place: Any, title: str) -> Iterator[str]:
    """Add a place, or change the place of that name; a project's own entry for PyPI stays."""
    for existing in places:
        if existing.get("name") == place["name"]:
            if place["name"] != "pypi":
                for name, value in place.items():
                    yield from _assign(
                        existing, name, value, f"{name} of {place['name']} in {title}"
                    )
            return
    places.append(place)


def _assign(table: Any, key: str, value: Any, title: str) -> Iterator[str]:
    """Set a key of a table; yield a clause that names it by its `title` if its value changes."""
    if key in table:
        if table[key] == value:
            return
        yield f"{title} was {_inline(table[key])}"
    table[key] = value
