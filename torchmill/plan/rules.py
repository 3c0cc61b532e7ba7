"""Which rules hold for a build, and what they demand of compilers and tools together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import Rule, When
from torchmill.config.versions import format_bounds, is_within, narrow_bounds
from torchmill.host.host import Compiler
from torchmill.plan.cell import Cell


@dataclass(frozen=True, slots=True)
class Case:
    """A build of a release, with what is known of the machine: a `When` holds for it or not."""

    build: Build  # its `cuda` is that of the toolkit that compiles it
    version: str  # of the release
    system: str
    provider: str | None = None  # of the source
    compiler: Compiler | None = None
    kept: frozenset[str] = frozenset()  # libraries that are taken from the user's cache
    lacking: frozenset[str] = frozenset()  # libraries that the machine lacks
    another_toolkit: bool = False  # the toolkit is not the variant's own


def make_case(
    facts: Facts,
    build: Build,
    release: Release,
    provider: str | None = None,
    compiler: Compiler | None = None,
) -> Case:
    """Return the case of a build on a machine of which only the compiler is known."""
    return Case(build, release.version, facts.arches[build.arch].system, provider, compiler)


def axis_conditions(when: When) -> When:
    """Return the conditions on the axes alone, without those on the machine."""
    return replace(when, gcc=None, clang=None, kept=None, lacking=None, another_toolkit=False)


def rule_matches(when: When, case: Case) -> bool:
    """Tell whether every condition of `when` holds; None of a version is in no bounds."""
    build = case.build
    return (
        _is_among(when.variant, build.variant)
        and _is_among(when.arch, build.arch)
        and _is_among(when.system, case.system)
        and _is_among(when.provider, case.provider)
        and is_within(when.release, case.version)
        # Rules hold for "3.13t" as for "3.13".
        and is_within(when.python, build.python.rstrip("t"))
        and is_within(when.cuda, build.cuda)
        and is_within(when.gcc, _compiler_version(case.compiler, "gcc"))
        and is_within(when.clang, _compiler_version(case.compiler, "clang"))
        and case.kept.issuperset(when.kept or ())
        and case.lacking.issuperset(when.lacking or ())
        and (case.another_toolkit or not when.another_toolkit)
    )


def _is_among(names: tuple[str, ...] | None, name: str | None) -> bool:
    return names is None or name in names


def _compiler_version(compiler: Compiler | None, family: str) -> str | None:
    """Return the version of a compiler if it is of a family."""
    if compiler is not None and compiler.family == family:
        return compiler.version
    return None


@dataclass(frozen=True, slots=True)
class Constraint:
    """The bounds that all rules together put on something, and their reasons."""

    bounds: SpecifierSet
    reasons: tuple[str, ...] = ()

    def allows(self, version: str) -> bool:
        """Tell whether a version is in bounds."""
        return is_within(self.bounds, version)

    def __str__(self) -> str:
        """Return the bounds as people write them, without those that others imply; "" of none."""
        return format_bounds(narrow_bounds(self.bounds))


@dataclass(frozen=True, slots=True)
class CellConstraints:
    """The rules of a cell, whose `cuda` is that of the toolkit that compiles it."""

    facts: Facts
    cell: Cell
    provider: str | None = None  # of the source

    def rules(self, compiler: Compiler | None = None) -> tuple[Rule, ...]:
        """Return the rules of the package that hold with a compiler."""
        build = self.cell.build
        case = make_case(self.facts, build, self.cell.release, self.provider, compiler)
        rules = self.facts.packages[build.package].rules
        return tuple(rule for rule in rules if rule_matches(rule.when, case))

    def rules_with_base(self, compiler: Compiler | None) -> tuple[Rule, ...]:
        """Return the rules of the package and of torch, whose headers a dependent includes."""
        rules = self.rules(compiler)
        build = self.cell.build
        release = self.cell.release
        after = self.facts.packages[build.package].after
        if after is None or release.torch is None:
            return rules
        base = find_release(self.facts, after, release.torch)
        base_cell = Cell(replace(build, package=base.package), base)
        return rules + CellConstraints(self.facts, base_cell).rules(compiler)

    def needs(self, name: str, compiler: Compiler | None) -> Constraint:
        """Return the bounds outside which a build with that compiler fails."""
        return self._join("needs", name, compiler)

    def advises(self, name: str, compiler: Compiler | None) -> Constraint:
        """Return the bounds outside which nobody is known to have built it."""
        return self._join("advises", name, compiler)

    def _join(
        self, effect: Literal["needs", "advises"], name: str, compiler: Compiler | None
    ) -> Constraint:
        """Return the bounds of all rules as one constraint, each reason once."""
        bounds = SpecifierSet()
        reasons: list[str] = []
        for rule in self.rules_with_base(compiler):
            demands = rule.needs if effect == "needs" else rule.advises
            if name not in demands:
                continue
            bounds &= demands[name]
            if rule.reason not in reasons:
                reasons.append(rule.reason)
        return Constraint(bounds, tuple(reasons))
