"""Put a snippet into a project's own pyproject.toml, whose comments and order stay."""

import contextlib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import tomlkit
from millpress.dependencies import project_of
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from tomlkit.exceptions import TOMLKitError

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.core.system_errors import report_unwritable

# By tool, in its table: where packages come from, and the places.
_TABLES = {"uv": ("sources", "index"), "poetry": ("dependencies", "source"), "pdm": ("", "source")}
_OF_WORKSPACE = (
    "environments",
    "required-environments",
    "conflicts",
)  # settings of uv's for the whole lock
_OF_NEW_PROJECTS = {"package-mode", "distribution"}  # an older one has decided that
_PYTHONS = [Version(f"3.{minor}.{patch}") for minor in range(60) for patch in (*range(30), 99)]
_NUMPYS = [
    Version(f"{major}.{minor}.{patch}")
    for major in (1, 2, 3)
    for minor in range(30)
    for patch in (0, 1, 5, 99)
]
_WRITABLE = 0o222


def edit_project(file: Path, snippet: str, tool: str, extra: str) -> str:
    """Put what a snippet declares into a project's file, in one move, and return what was changed.

    With `extra`, dependencies become those of that extra. Raises ConfigError for a file that is none, is read-only,
    or is no project's; DeliveryError where that is for other Pythons; HostError where it cannot be written.
    """

    def refused(problem: str, code: str) -> ConfigError:
        return ConfigError(f"--into {file}: {problem}", code=code)

    if not file.is_file():
        raise refused("is not a file: name the project's pyproject.toml", "no-project-file")
    if not file.stat().st_mode & _WRITABLE:
        raise refused(f"is read-only: run `chmod u+w {file}`", "read-only-project")
    try:
        text = file.read_bytes().decode("utf-8-sig")
        project = tomlkit.parse(
            text.replace("\r\n", "\n")
        )  # as tomllib reads it, also within strings
        root = workspace_root(file) if tool == "uv" else None
        said = list(merge_snippet(project, snippet, tool, extra, root))
    except (UnicodeDecodeError, TOMLKitError) as error:
        why = f"not TOML of a project ({error}): correct it; a project has a table [project] with name and version"
        raise refused(why, "invalid-project") from None
    except (
        AttributeError,
        TypeError,
        ValueError,
    ):  # tomlkit raises the last where an inline table is to have tables
        kinds = f"has a value of a kind that {tool} does not take, an inline table, or an invalid requires-python"
        raise refused(f"{kinds}: correct it", "invalid-project") from None
    edited, read = tomlkit.dumps(project), None
    if "\r\n" in text:
        edited = edited.replace("\n", "\r\n")
    with contextlib.suppress(tomllib.TOMLDecodeError):
        read = tomllib.loads(edited)
    if read != project.unwrap():
        why = f"its tables are too scattered to be edited: write [tool.{tool}] and all in it with headings, together"
        raise refused(why, "scattered-tables")
    if edited == text:
        return f"{file} has all of it already"
    with report_unwritable(file):
        write_atomically(file.resolve(), edited, file.stat().st_mode & 0o777)
    return "\n".join([f"{file} is changed", *(f"  {line}" for line in said)])


def merge_snippet(
    project: tomlkit.TOMLDocument, snippet: str, tool: str, extra: str, root: Path | None = None
) -> Iterator[str]:
    """Put what a snippet declares into a project, and yield a clause for what gave way.

    `root` is the file of the workspace that the project is a member of. Raises DeliveryError.
    """
    wanted: Any = tomlkit.parse(f"{snippet}\n\n")  # an empty line comes along with its last table
    _require_static(
        project["project"],
        {"requires-python", "optional-dependencies" if extra else "dependencies"},
    )
    before = project["project"].get("requires-python")
    yield from _narrow_pythons(project["project"], str(wanted["project"]["requires-python"]))
    yield from _merge_requirements(project["project"], wanted["project"], extra)
    yield from _other_pins(
        project, {extra, *_lists(wanted["project"])}, _packages(wanted["project"])
    )
    own = {
        key: value
        for key, value in wanted["tool"].get(tool, {}).items()
        if key not in _OF_NEW_PROJECTS
    }
    for key in [key for key in own if root and key in _OF_WORKSPACE]:
        value = _inline(own.pop(key))
        yield f"not written, as uv reads it in the workspace's root: add to [tool.uv] of {root}: {key} = {value}"
    yield from _locked_out(settings_of(project, tool), own)
    settings: Any = settings_of(project, tool)
    if own:
        settings = project.setdefault("tool", tomlkit.table(True)).setdefault(tool, tomlkit.table())
    sources, places = _TABLES[tool]
    packages, there = _packages(wanted["project"]), settings.get(sources, {})
    # Poetry refuses a `python` of its own that is not within requires-python
    gone = packages if project["project"]["requires-python"] == before else {*packages, "python"}
    for name in [
        one for one in there if canonicalize_name(one) in gone and one not in own.get(sources, {})
    ]:
        yield f"tool.{tool}.{sources}.{name} was replaced: {there.pop(name)}"
    for key, value in own.items():
        title = f"tool.{tool}.{key}"
        if key == sources and key in settings:
            for name, source in value.items():
                yield from _assign(settings[key], name, source, f"{title}.{name}")
        elif key == places and key in settings:
            for place in value:
                yield from _merge_place(settings[key], place, title)
        else:
            yield from _assign(settings, key, value, title)


def declared_packages(file: Path) -> list[str]:
    """Return the projects that a pyproject.toml names among its dependencies, extras and groups; [] for no such file.

    What is wrong with the file `edit_project` says.
    """
    try:
        project = tomllib.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError):
        return []
    table, groups = project.get("project", {}), project.get("dependency-groups", {})
    lists = [
        table.get("dependencies", []),
        *table.get("optional-dependencies", {}).values(),
        *groups.values(),
    ]
    lines = [
        line
        for listed in lists
        if isinstance(listed, list)
        for line in listed
        if isinstance(line, str)
    ]
    return list(dict.fromkeys(filter(None, map(project_of, lines))))


def workspace_root(file: Path) -> Path | None:
    """Return the pyproject.toml of the uv workspace that a project is a member of; None if it is in no other's.

    uv reads settings of the whole lock, such as `environments`, from the workspace's root alone:
    https://docs.astral.sh/uv/concepts/projects/workspaces/
    """
    folder = file.resolve().parent
    for parent in folder.parents:
        candidate = parent / "pyproject.toml"
        if not candidate.is_file():
            continue
        with contextlib.suppress(OSError, ValueError, AttributeError):
            workspace = (
                tomllib.loads(candidate.read_text("utf-8"))
                .get("tool", {})
                .get("uv", {})
                .get("workspace", {})
            )
            relative = folder.relative_to(parent).as_posix()
            excluded = any(
                PurePosixPath(relative).match(pattern) for pattern in workspace.get("exclude", [])
            )
            if not excluded and any(
                PurePosixPath(relative).match(pattern) for pattern in workspace.get("members", [])
            ):
                return candidate
    return None


def _require_static(table: Any, fields: set[str]) -> None:
    if dynamic := ", ".join(sorted(fields.intersection(table.get("dynamic", [])))):
        raise DeliveryError(
            f"--into: the project's `dynamic` has {dynamic}, which --into writes itself: remove it from there",
            code="dynamic-field",
        )


def settings_of(project: Any, tool: str) -> Any:
    """Return the table of a tool in a project's file, {} if there is none."""
    return project.get("tool", {}).get(tool, {})


def _inline(value: Any) -> str:
    return " ".join(tomlkit.item(value).as_string().split())


def _locked_out(settings: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause if uv locks for fewer platforms than before."""
    environments = own.get("environments")
    if environments and environments != settings.get("environments"):
        where = " and ".join(environments)
        yield f"uv now locks for {where} only, which have wheels: others cannot install the project"


def _other_pins(project: Any, edited: set[str], packages: set[str]) -> Iterator[str]:
    """Yield a clause for each line of an extra or a group that is not edited, and may contradict what is."""
    extras = project["project"].get("optional-dependencies", {})
    for name, lines in {**project.get("dependency-groups", {}), **extras}.items():
        for line in lines if canonicalize_name(name) not in map(canonicalize_name, edited) else ():
            if project_of(line) in packages:
                yield f"{line} of {name} stays: correct it where it contradicts the rest"


def _narrow_pythons(table: Any, wanted: str) -> Iterator[str]:
    """Leave out of requires-python the Pythons that have no wheels, if it has any."""
    said, served = str(table.setdefault("requires-python", wanted)), SpecifierSet(wanted)
    before = SpecifierSet(said)
    admitted = [one for one in _PYTHONS if one in before]
    if not any(one in served for one in admitted):
        raise DeliveryError(
            f"--into: the project requires Python {said}, and the wheels are for {wanted}: build them for one of its "
            "Pythons, or change requires-python",
            code="no-common-python",
        )
    if not all(one in served for one in admitted):
        clauses = [*before, *(one for one in served if not all(each in one for each in admitted))]
        for one in [one for one in before if one.operator != "!="]:
            others = [other for other in clauses if other != one]
            if all(
                python in one for python in _PYTHONS if all(python in other for other in others)
            ):
                clauses = others
        table["requires-python"] = ",".join(sorted(map(str, clauses), reverse=True))
        yield f"requires-python was {said}, and is now {table['requires-python']}: other Pythons have no wheels"


def _lists(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists of requirements of a snippet: those of extras by name, its own as ""."""
    return dict(table.get("optional-dependencies", {})) or {"": table["dependencies"]}


def _packages(table: Mapping[str, Any]) -> set[str]:
    """Return the packages that a snippet pins: all but NumPy, which it bounds."""
    return {project_of(line) for lines in _lists(table).values() for line in lines} - {"numpy"}


def _merge_requirements(table: Any, wanted: Mapping[str, Any], extra: str) -> Iterator[str]:
    """Put requirements in the place of those on the same packages; NumPy's bound is added to what is said of it."""
    packages = _packages(wanted)
    for name, lines in (
        {"": []} | {extra or name: lines for name, lines in _lists(wanted).items()}
    ).items():
        where = table.setdefault("optional-dependencies", tomlkit.table()) if name else table
        spelled = [one for one in where if canonicalize_name(one) == canonicalize_name(name)]
        there = where.setdefault((*spelled, name or "dependencies")[0], tomlkit.array())
        for package in sorted(packages):
            yield from _replace_lines(
                there, package, [str(line) for line in lines if project_of(line) == package]
            )
        if "\n" not in there.as_string():
            there.multiline(multiline=len(there) > 1)
        for bound in (Requirement(line) for line in lines if project_of(line) == "numpy"):
            named = [number for number, one in enumerate(there) if project_of(one) == "numpy"]
            if not named:
                there.append(str(bound))
            for said, number in ((Requirement(there[number]), number) for number in named):
                if not _keeps_to(said.specifier, bound.specifier):
                    was, said.specifier = there[number], said.specifier & bound.specifier
                    there[number] = str(said)
                    yield f"{was} is now {said}: the wheels are compiled against NumPy 1"


def _keeps_to(specifier: SpecifierSet, bound: SpecifierSet) -> bool:
    """Tell whether a specifier admits no version of NumPy beyond a bound: "==1.26.4" keeps to "<2"."""
    named = [
        Version(clause.version)
        for clause in specifier
        if clause.operator in {"==", ">=", "~="} and "*" not in clause.version
    ]
    candidates = [version for version in (*_NUMPYS, *named) if version not in bound]
    return not any(specifier.contains(version, prereleases=True) for version in candidates)


def _replace_lines(there: Any, package: str, ours: list[str]) -> Iterator[str]:
    """Put the lines of one package in the place of those in a list, whose comments stay."""
    found = [number for number, one in enumerate(there) if project_of(one) == package]
    for number, line in zip(found, ours, strict=False):
        if there[number] != line:
            yield f"{there[number]} was replaced"
            there[number] = line
    for number in reversed(found[len(ours) :]):
        yield f"{there.pop(number)} was replaced"
    there.extend(ours[len(found) :])


def _merge_place(there: Any, place: Any, title: str) -> Iterator[str]:
    """Add a place, or change that of its name; PyPI, if it is named there, stays what it is."""
    known = next((one for one in there if one.get("name") == place["name"]), None)
    if known is None:
        there.append(place)
    elif place["name"] != "pypi":
        for name, value in place.items():
            yield from _assign(known, name, value, f"{name} of {place['name']} in {title}")


def _assign(table: Any, key: str, value: Any, title: str) -> Iterator[str]:
    """Set a key, unless it has the value, and yield a clause if it had another."""
    if key not in table or table[key] != value:
        if key in table:
            yield f"{title} was {' '.join(tomlkit.item(table[key]).as_string().split())}"  # tomlkit unwraps bool
        table[key] = value
