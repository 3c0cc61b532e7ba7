"""What the doctor finds, and what it is asked about."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from torchwright import deps
from torchwright.matrix import Cell, bounds, find_release
from torchwright.model import Build, Compiler, Facts, Host, Package, Plan, Rule, Source, Toolkit
from torchwright.rules import case, matches, narrowed, within

Verdict = Literal["ok", "warning", "failure", "unknown"]

VERDICTS: tuple[Verdict, ...] = ("ok", "warning", "failure", "unknown")
_OFF = {"0", "OFF", "NO", "FALSE", "N"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table."""

    subject: str
    found: str
    needed: str
    verdict: Verdict
    cure: str = ""  # a command, or what to do where there is none
    because: str = ""  # what the verdict means, as a sentence without its full stop

    def sentence(self) -> str:
        """Return the finding as one line of prose."""
        why = f" ({self.because})" if self.because else ""
        cure = f": {self.cure}" if self.cure else ""
        return f"{self.subject}: found {self.found}, needed {self.needed}{why}{cure}"


@dataclass(frozen=True, slots=True)
class Demand:
    """What all rules together demand of one thing, and why."""

    bounds: SpecifierSet
    reasons: tuple[str, ...] = ()

    def met(self, version: str) -> bool:
        """Tell whether a version is in bounds."""
        return within(self.bounds, version)

    def __str__(self) -> str:
        """Return the bounds as people write them, of several on one side the narrowest; "" without any."""
        return bounds(narrowed(self.bounds))


@dataclass(frozen=True, slots=True)
class Question:
    """A build, and the machine that shall do it."""

    facts: Facts
    cell: Cell
    host: Host
    plan: Plan
    source: Source | None = None  # that was fetched

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
        """Return the facts of the build's CUDA toolkit."""
        return self.facts.toolkit(self.build.cuda)

    @property
    def session(self) -> str:
        """Return the command that builds it."""
        return f"nox -s {self.plan.identifier}"

    def rules(self, compiler: Compiler | None) -> tuple[Rule, ...]:
        """Return the rules that hold with a compiler."""
        provider = self.source.provider if self.source else None
        known = case(self.facts, self.build, self.cell.release, provider, compiler)
        return tuple(rule for rule in self.package.rules if matches(rule.when, known))

    def demanding(self, compiler: Compiler | None) -> tuple[Rule, ...]:
        """Return the rules whose demands hold: what is built against a package includes its headers."""
        rules = self.rules(compiler or self.host.compiler)
        if self.package.after is None or self.cell.release.torch is None:
            return rules
        base = find_release(self.facts, self.package.after, self.cell.release.torch)
        build = replace(self.build, package=base.package)
        known = case(self.facts, build, base, None, compiler or self.host.compiler)
        below = self.facts.packages[base.package].rules
        return (*rules, *(rule for rule in below if matches(rule.when, known)))

    def needs(self, name: str, compiler: Compiler | None = None) -> Demand:
        """Return the bounds outside which the build fails."""
        rules = [rule for rule in self.demanding(compiler) if name in rule.needs]
        return _joined((rule.needs[name] for rule in rules), (rule.reason for rule in rules))

    def advises(self, name: str, compiler: Compiler | None = None) -> Demand:
        """Return the bounds outside which nobody is known to have built it."""
        rules = [rule for rule in self.demanding(compiler) if name in rule.advises]
        return _joined((rule.advises[name] for rule in rules), (rule.reason for rule in rules))

    def is_off(self, switch: str) -> bool:
        """Tell whether the plan turns a switch off."""
        return self.plan.set.get(switch, "").upper() in _OFF

    def is_on(self, switch: str) -> bool:
        """Tell whether the plan turns a switch on."""
        return switch in self.plan.set and not self.is_off(switch)

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
        places = (*(f"{name}@{value}" for value in self.plan.set.values()), f"{name}@{self.build.cuda}", name)
        return next((self.host.libraries[place] for place in places if place in self.host.libraries), None)

    def out_of_sight(self, name: str) -> str | None:
        """Return a folder of a library that only the user's shell knows of, where the build does not look."""
        places = (place.partition("@") for place in self.host.libraries)
        return next(
            (where for one, _, where in places if one == name and "/" in where.replace("\\", "/")), None
        )


def _joined(every: Iterable[SpecifierSet], reasons: Iterable[str]) -> Demand:
    joined = reduce(and_, every, SpecifierSet())
    return Demand(joined, tuple(dict.fromkeys(reasons)))


def absent(host: Host) -> Verdict:
    """Return the verdict on something that is needed and that a host does not name."""
    return "failure" if host.complete else "unknown"


def nothing(host: Host) -> str:
    """Return how that is called in the table."""
    return "none" if host.complete else "not described"


def installed_by(host: Host, names: Iterable[str]) -> str:
    """Return the command that installs system packages on a host, or what to do where none is known."""
    wanted = tuple(names)
    if host.manager is None:
        return f"install {' '.join(wanted)}"
    return " ".join(deps.command(host.manager, wanted, root=host.complete and "sudo" not in host.tools))
