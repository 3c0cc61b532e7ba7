"""What the rules of a cell demand of compilers and libraries, and why."""

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from packaging.specifiers import SpecifierSet

from torchmill.config.matrix import Cell, find_release, format_bounds, is_within, matching_rules, narrow_bounds
from torchmill.config.model import Compiler, Facts, Rule


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

    def rules(self, compiler: Compiler | None) -> tuple[Rule, ...]:
        """Return the rules of the package that hold with a compiler."""
        return matching_rules(self.facts, self.cell.build, self.cell.release, self.provider, compiler)

    def rules_with_base(self, compiler: Compiler | None) -> tuple[Rule, ...]:
        """Return the rules whose demands hold: what is built against a package includes its headers."""
        rules, after = self.rules(compiler), self.facts.packages[self.cell.build.package].after
        if after is None or self.cell.release.torch is None:
            return rules
        base = find_release(self.facts, after, self.cell.release.torch)
        build = replace(self.cell.build, package=base.package)
        return rules + matching_rules(self.facts, build, base, None, compiler)

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
