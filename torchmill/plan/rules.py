"""Which rules hold for a build, and what they demand of compilers and tools together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from packaging.specifiers import SpecifierSet

from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import Rule, When
from torchmill.config.versions import format_bounds, is_within, narrow_bounds
from torchmill.host.host import Compiler
from torchmill.plan.cell import Cell


def make_case(
    facts: Facts,
    build: Build,
    release: Release,
    provider: str | None = None,
    compiler: Compiler | None = None,
) -> Case:
    """Return what rules are held against."""
    return Case(build, release.version, facts.arches[build.arch].system, provider, compiler)


def axis_conditions(when: When) -> When:
    """Return the conditions on the axes alone, without those on what a machine has."""
    return replace(when, gcc=None, clang=None, kept=None, lacking=None, another_toolkit=False)


def rule_matches(when: When, case: Case) -> bool:
    """Tell whether every condition of `when` holds; a build without CUDA matches no CUDA version."""
    build, compiler = case.build, case.compiler

    def among(names: tuple[str, ...] | None, name: str | None) -> bool:
        return names is None or name in names

    def made_by(specifier: SpecifierSet | None, family: str) -> bool:
        named = compiler.version if compiler is not None and compiler.family == family else None
        return is_within(specifier, named)

    return (
        among(when.variant, build.variant)
        and among(when.arch, build.arch)
        and among(when.system, case.system)
        and among(when.provider, case.provider)
        and is_within(when.release, case.version)
        and is_within(when.python, build.python.rstrip("t"))
        and is_within(when.cuda, build.cuda)
        and made_by(when.gcc, "gcc")
        and made_by(when.clang, "clang")
        and case.kept.issuperset(when.kept or ())
        and case.lacking.issuperset(when.lacking or ())
        and (case.another_toolkit or not when.another_toolkit)
    )


@dataclass(frozen=True, slots=True)
class Constraint:
    """What all rules together demand of one thing, and why."""

    bounds: SpecifierSet
    reasons: tuple[str, ...] = ()

    def allows(self, version: str) -> bool:
        """Tell whether a version is in bounds."""
        return is_within(self.bounds, version)

    def __str__(self) -> str:
        """Return the bounds as people write them, of several on one side the narrowest; "" without any."""
        return format_bounds(narrow_bounds(self.bounds))


@dataclass(frozen=True, slots=True)
class CellConstraints:
    """A cell, whose `cuda` is that of the toolkit that compiles it, and where its source came from."""

    facts: Facts
    cell: Cell
    provider: str | None = None

    def rules(self, compiler: Compiler | None = None) -> tuple[Rule, ...]:
        """Return the rules of the package that hold with a compiler."""
        build = self.cell.build
        known = make_case(self.facts, build, self.cell.release, self.provider, compiler)
        return tuple(
            rule
            for rule in self.facts.packages[build.package].rules
            if rule_matches(rule.when, known)
        )

    def rules_with_base(self, compiler: Compiler | None) -> tuple[Rule, ...]:
        """Return the rules whose demands hold: what is built against a package includes its headers."""
        rules, after = self.rules(compiler), self.facts.packages[self.cell.build.package].after
        if after is None or self.cell.release.torch is None:
            return rules
        base = find_release(self.facts, after, self.cell.release.torch)
        under = Cell(replace(self.cell.build, package=base.package), base)
        return rules + CellConstraints(self.facts, under).rules(compiler)

    def needs(self, name: str, compiler: Compiler | None) -> Constraint:
        """Return the bounds outside which a build with that compiler fails."""
        return self._joined("needs", name, compiler)

    def advises(self, name: str, compiler: Compiler | None) -> Constraint:
        """Return the bounds outside which nobody is known to have built it."""
        return self._joined("advises", name, compiler)

    def _joined(self, effect: str, name: str, compiler: Compiler | None) -> Constraint:
        """Return the bounds of all rules as one demand, each reason once."""
        rules = [rule for rule in self.rules_with_base(compiler) if name in getattr(rule, effect)]
        bounds = reduce(and_, (getattr(rule, effect)[name] for rule in rules), SpecifierSet())
        return Constraint(bounds, tuple(dict.fromkeys(rule.reason for rule in rules)))


@dataclass(frozen=True, slots=True)
class Case:
    """What a `When` is held against: a build of a release, and what is known of where it happens."""

    build: Build  # its `cuda` is that of the toolkit that compiles it
    version: str  # of the release
    system: str
    provider: str | None = None
    compiler: Compiler | None = None
    kept: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    another_toolkit: bool = False
