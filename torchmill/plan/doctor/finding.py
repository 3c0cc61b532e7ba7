"""Findings, the context that checks read, and the commands that provide what a build lacks: the cures."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill.config.arch_list import unserved_capabilities
from torchmill.config.facts_model import ToolkitPart, ToolkitSource
from torchmill.config.matrix import Cell, CellConstraints, Constraint
from torchmill.config.model import (
    SWITCHED_OFF,
    Build,
    Compiler,
    Facts,
    Host,
    Package,
    Plan,
    Source,
    Toolkit,
)
from torchmill.fetch.toolkit.request import ToolkitRequest, find_part_packages
from torchmill.host.cuda_toolkits import is_spread_in_system
from torchmill.host.provisioned import COMPILER, MAGMA, TOOLKIT
from torchmill.plan import cuda_libraries, system_packages
from torchmill.plan.cuda_toolkit import cell_with_toolkit
from torchmill.plan.providers import provider_obstacle, usable_sources

Verdict = Literal["ok", "warning", "failure", "unknown"]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_MANAGERS = frozenset(
    {
        *("sudo", "xcode-select", "winget"),
        *(command[0] for command in system_packages.INSTALL_COMMANDS.values()),
    }
)
_PROGRAMS = _MANAGERS | {"uv", "pip", "pyenv"}
_TASKS = ("deps", "fetch", "toolkit", "image")  # in the order in which they are run
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table."""

    subject: str
    found: str
    needed: str
    verdict: Verdict
    cure: str = ""  # the best way: a command, or what to do where there is none
    because: str = ""  # what the verdict means, as a sentence without its full stop
    runs_here: bool = True  # False: what is built would run on no GPU of this machine
    other_cures: tuple[str, ...] = ()  # other ways that this host can take, the better ones first

    def sentence(self) -> str:
        """Return the finding as one line of prose."""
        why = f" ({self.because})" if self.because else ""
        cure = f": {self.cure}" if self.cure else ""
        needed = f", needed {self.needed}" if self.needed else ""
        return f"{self.subject}: {self.found}{needed}{why}{cure}"


@dataclass(frozen=True, slots=True)
class CheckContext:
    """A build, and the machine that shall do it."""

    facts: Facts
    cell: Cell
    host: Host
    plan: Plan
    source: Source | None = None  # that was fetched
    wheels: tuple[str, ...] | None = None  # names of the files in dist/; None: not looked at

    @property
    def build(self) -> Build:
        """Return what is built."""
        return self.cell.build

    @property
    def package(self) -> Package:
        """Return the facts of the package."""
        return self.facts.packages[self.build.package]

    @property
    def toolkit(self) -> Toolkit | None:
        """Return the facts of the CUDA toolkit that compiles it."""
        return self.facts.toolkit(self.plan.toolkit)

    @property
    def session(self) -> str:
        """Return the command that builds it."""
        return f"nox -s {self.plan.identifier}"

    @property
    def compiler(self) -> Compiler | None:
        """Return the compiler of the build: the one that the plan names, or the host's own."""
        return self.host.named_compiler(self.plan.set.get("CXX", ""))

    @property
    def constraints(self) -> CellConstraints:
        """Return what the rules of the cell demand, as its toolkit compiles it."""
        provider = self.source.provider if self.source else None
        return CellConstraints(
            self.facts, cell_with_toolkit(self.cell, self.plan.toolkit), provider
        )

    def needs(self, name: str) -> Constraint:
        """Return the bounds outside which the build fails."""
        return self.constraints.needs(name, self.compiler)

    def is_off(self, switch: str) -> bool:
        """Tell whether the plan turns a switch off."""
        return self.plan.set.get(switch, "").upper() in SWITCHED_OFF

    def requirement(self, prefix: str) -> str | None:
        """Return the Python build requirement whose name starts so, None where there is none."""
        every = (*self.plan.kit, *self.plan.requirements)
        projects = (line for line in every if not line.endswith(".whl"))
        named = ((canonicalize_name(Requirement(line).name), line) for line in projects)
        return next((line for name, line in named if name.startswith(prefix)), None)

    def library(self, name: str) -> str | None:
        """Return the version of a library, "" where it does not say, None where the build finds none.

        What the plan names goes first, then what lies in the toolkit.
        """
        named = (f"{name}@{value}" for value in self.plan.set.values())
        found = next(
            (self.host.libraries[place] for place in named if place in self.host.libraries), None
        )
        return (
            cuda_libraries.visible_version(self.host, name, self.plan.toolkit)
            if found is None
            else found
        )


def absence_verdict(host: Host) -> Verdict:
    """Return the verdict on something that is needed and that a host does not name."""
    return "failure" if host.complete else "unknown"


def absence_text(host: Host) -> str:
    """Return how that is called in the table."""
    return "none" if host.complete else "not described"


def absence_finding(
    host: Host, subject: str, needed: str, cures: str | Sequence[str] = "", because: str = ""
) -> Finding:
    """Return the finding on it; `because` is for a host that is known not to have it."""
    missing = Finding(subject, absence_text(host), needed, absence_verdict(host))
    found = with_cures(missing, [cures] if isinstance(cures, str) else cures)
    return replace(found, because=because if host.complete else "")


def with_cures(finding: Finding, cures: Iterable[str]) -> Finding:
    """Return a finding with its cures: commands stand before sentences, and the first is the one that is shown."""
    several = [cure for cure in dict.fromkeys(cures) if cure]
    best, *others = sorted(several, key=lambda cure: not is_command(cure)) or [""]
    return replace(finding, cure=best, other_cures=tuple(others))


def toolkit_command(context: CheckContext, kind: str, version: str) -> str | None:
    """Return the command that brings a toolkit, a compiler ("gcc-11"), or a library for the toolkit of the build.

    None where nobody is known to have it for the machine.
    """
    option = {TOOLKIT: f"--cuda {version}", COMPILER: f"--compiler {version}"}.get(kind)
    major = None if option else (context.plan.toolkit or "0").partition(".")[0]
    wanted = ToolkitRequest(kind, version, major, context.build.arch)
    usable, _ = usable_sources(context.facts, wanted, context.host)
    if not usable:
        return None
    return f"invoke toolkit {option or f'--library {kind}-cu{major}={version}'}"


def _usable(context: CheckContext) -> Sequence[ToolkitSource]:
    """Return all sources that the host can use."""
    return [
        one for one in context.facts.toolkit_sources if not provider_obstacle(one, context.host)
    ]


def completion_command(context: CheckContext, version: str, lacks: Sequence[ToolkitPart]) -> str:
    """Return what to do where a toolkit lacks parts: the command that completes it, or brings another."""
    home, sources = Path(context.host.toolkits[version]), _usable(context)
    packages, left = find_part_packages(version, context.build.arch, lacks, sources)
    if packages and all(part.without for part in left) and not is_spread_in_system(home):
        return f"invoke toolkit --complete {version}"
    return toolkit_command(context, TOOLKIT, version) or f"install what is lacking into {home}"


def magma_command(context: CheckContext, theirs: str) -> str | None:
    """Return the command that brings a MAGMA for the toolkit and the compute capabilities of the build.

    `theirs` is the version of the official build. None where MAGMA is kept on no such machine.
    """
    cuda = context.plan.toolkit
    if context.host.system != "linux" or cuda is None:
        return None
    listed = context.plan.arch_list
    serving = [
        one
        for one in _usable(context)
        if (one.kind, one.cuda) == (MAGMA, cuda)
        and context.build.arch in one.arches
        and not unserved_capabilities(context.facts, ";".join(one.capabilities), listed)
    ]
    command = f"invoke toolkit --library magma-cu{cuda.replace('.', '')}"
    if serving:
        return f"{command} --arch-list '{listed}'"
    return f"{context.session} -- --set MAGMA_HOME=FOLDER, where FOLDER has a {theirs} compiled for {listed}"


@dataclass(frozen=True, slots=True)
class Cures:
    """What makes builds possible, as far as commands do."""

    commands: Mapping[str, Finding]  # with what each is for, in the order to run them
    variables: Mapping[str, str]  # that sessions are started with
    options: tuple[str, ...]  # that sessions are given
    incurable: tuple[Finding, ...]  # failures that no command cures


def find_cures(findings: Iterable[Finding]) -> Cures:
    """Return the cures of failures, and those of warnings that bring something and change no build."""
    commands: dict[str, Finding] = {}
    variables: dict[str, str] = {}
    options: dict[tuple[str, ...], None] = {}
    left: list[Finding] = []
    for one in findings:
        vital = one.verdict == "failure"
        parts = [_read(part) for part in one.cure.split(" && ")]
        if vital and None in parts:
            left.append(one)
        for before, words in (
            [part for part in parts if part] if vital or one.verdict == "warning" else ()
        ):
            if words[0] != "nox":
                commands.setdefault(
                    shlex.join([*(f"{name}={value}" for name, value in before.items()), *words]),
                    one,
                )
            elif vital:
                variables |= before
                options[tuple(words[words.index("--") + 1 :] if "--" in words else ())] = None
    if any(command.startswith("invoke deps ") for command in commands):
        commands.pop("invoke deps", None)  # that of the selected release
    ordered = sorted(commands.items(), key=lambda item: _rank(item[0]))
    return Cures(
        dict(ordered), variables, tuple(word for one in options for word in one), tuple(left)
    )


def is_command(cure: str) -> bool:
    """Tell whether a cure can be run as it is, all of it."""
    return all(_read(part) for part in cure.split(" && "))


def _read(part: str) -> tuple[dict[str, str], list[str]] | None:
    """Return the variables and the words of a command; None for what is a sentence, or has to be filled in."""
    try:
        words = shlex.split(part)
    except ValueError:
        return None
    variables = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        variables[found[1]] = found[2]
        words.pop(0)
    named = words[:1] == ["nox"] or (
        words[:1] == ["invoke"] and words[1:2] != [] and words[1] in _TASKS
    )
    runs = named or bool(words and words[0] in _PROGRAMS)
    sentence = re.search(r"[…`]|=FOLDER", part) or any(word.endswith((";", ",")) for word in words)
    return (variables, words) if runs and not sentence else None


def _rank(command: str) -> int:
    first, second, *_ = command.split()
    return _TASKS.index(second) if first == "invoke" else 0 if first in _MANAGERS else len(_TASKS)
