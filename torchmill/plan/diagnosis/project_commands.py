"""Find the project whose compiled part a log names, and the command that installs it again.

projects.toml knows the usual extensions of torch. Of any other the folder or the file of its compiled
part gives the name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from torchmill.config.facts import Facts
from torchmill.core.package_data import read_table_beside
from torchmill.plan.diagnosis.candidates import UNKNOWN, meets
from torchmill.plan.diagnosis.situation import Fact, Situation
from torchmill.plan.diagnosis.templates import fill_facts

# A package that PyPI has as source is compiled for the torch that is installed.
_COMPILE_AGAIN = "pip install --no-build-isolation --no-cache-dir --no-binary {name} --force-reinstall --no-deps {name}"


@dataclass(frozen=True, slots=True)
class ProjectCommand:
    """A command that installs a project again, and the facts that it is for."""

    command: str
    when: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExtensionProject:
    """A project that compiles code against torch."""

    name: str  # as installers have it: "flash-attn"
    modules: Sequence[str]  # patterns of names in logs: "flash_attn_2_cuda"
    again: Sequence[ProjectCommand]
    compiled: str  # the command that takes no prebuilt wheel; "": that of its source on PyPI


@cache
def known_projects() -> tuple[ExtensionProject, ...]:
    """Return the projects of projects.toml."""
    projects: list[ExtensionProject] = []
    for table in read_table_beside(__file__, "projects.toml")["project"]:
        commands = [
            ProjectCommand(entry["command"], entry.get("when", {})) for entry in table["again"]
        ]
        projects.append(
            ExtensionProject(table["name"], table["modules"], commands, table.get("compiled", ""))
        )
    return tuple(projects)


def find_project(module: str) -> ExtensionProject | None:
    """Return the known project that has a module or is called so; None if none is known."""
    for project in known_projects():
        if module == project.name:
            return project
        if any(fnmatchcase(module, pattern) for pattern in project.modules):
            return project
    return None


def project_facts(_facts: Facts, situation: Situation) -> Iterator[Fact]:
    """Yield the project that a log names, as installers call it, and how it is installed again.

    `target` is what pip is given: a repository or a folder, where the log shows that, else the name.

    A project that is not known is compiled again from its source on PyPI.
    """
    project_fact = _named_project(situation)
    source = situation.facts.get("source_target")
    if source is not None:
        yield Fact("target", source.value, "rules", basis=(source,))
    if project_fact is None:
        return
    basis = (project_fact,)
    project = find_project(project_fact.value)
    if project is None:
        name = project_fact.value
        compiled = _COMPILE_AGAIN.format(name=name)
        command = compiled
    else:
        name = project.name
        command = _fitting_command(project, situation.values())
        compiled = project.compiled or _COMPILE_AGAIN.format(name=name)
        yield Fact("known_project", name, "rules", basis=basis)
    if source is None:
        # The module of an import is a file in the folder of its source, and mostly no package.
        is_module = project is None and situation.value("stage") == "import"
        yield Fact("target", "." if is_module else name, "rules", basis=basis)
    yield Fact("again", command, "rules", basis=basis)
    # What is compiled from a repository has no prebuilt wheel to avoid.
    is_source = "git+" in command or "submodules/" in command
    yield Fact("compiled_again", command if is_source else compiled, "rules", basis=basis)


def _named_project(situation: Situation) -> Fact | None:
    """Return the fact that names the project: its compiled part, the cause's name, or a traceback.

    The latter two count only for known projects, because most names are no project's. None if the
    log names none.
    """
    project = situation.facts.get("project")
    if project is not None and find_project(project.value) is not None:
        return project
    for other in situation.known_facts("name", "frame_package"):
        if find_project(other.value) is not None:
            return other
    return project


def _fitting_command(project: ExtensionProject, values: Mapping[str, str]) -> str:
    """Return the first command of a project whose conditions hold, filled in.

    Raises ValueError if there is none: the last command of projects.toml has no conditions.
    """
    for entry in project.again:
        if all(_holds(condition, values.get(fact)) for fact, condition in entry.when.items()):
            return fill_facts(entry.command, values).strip()
    raise ValueError(f"projects.toml: {project.name} has no command that fits every machine")


def _holds(condition: str, value: str | None) -> bool:
    """Tell whether a fact meets a condition; an unknown one does only where that is asked for."""
    if value is None:
        return UNKNOWN in condition.split("|")
    return meets(condition, value)
