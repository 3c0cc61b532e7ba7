"""Which rules of the facts hold for a build, and what they together demand of tools.

A rule has conditions, a `When`. Some of them are on the axes of the matrix (Python, CUDA, arch,
release, …), others on the machine that builds.
"""

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
    """All that the conditions of a rule are compared with: a build, and its machine."""

    build: Build  # its `cuda` is that of the toolkit that compiles it
    version: str  # of the release
    torch: str  # the release of torch that it is built against; of torch itself, its own
    system: str
    provider: str | None = None  # of the source: "debian", "pypi"
    compiler: Compiler | None = None  # None: not known
    provisioned_libraries: frozenset[str] = frozenset()  # taken from the user's cache: "cudnn"
    absent_libraries: frozenset[str] = frozenset()  # that the machine lacks: "magma"
    board: str | None = None  # "own-cuda" or "server-cuda"; None: the machine is no Jetson
    another_toolkit: bool = False  # the toolkit is not the variant's own


def make_case(
    facts: Facts,
    build: Build,
    release: Release,
    provider: str | None = None,
    compiler: Compiler | None = None,
) -> Case:
    """Return the case of a build on a machine of which at most the compiler is known."""
    return Case(
        build=build,
        version=release.version,
        torch=release.torch_version,
        system=facts.arches[build.arch].system,
        provider=provider,
        compiler=compiler,
    )


def axis_conditions(when: When) -> When:
    """Return conditions without those on the machine: on its compiler, libraries, kind and toolkit.

    Those on the provider of the source stay.
    """
    return replace(
        when,
        gcc=None,
        clang=None,
        provisioned_libraries=None,
        absent_libraries=None,
        board=None,
        another_toolkit=False,
    )


def rule_matches(when: When, case: Case) -> bool:
    """Tell whether every condition of `when` holds for a case.

    A version that is None, such as the CUDA of a build without CUDA, is outside all bounds.
    """
    build = case.build
    return (
        _is_among(when.variant, build.variant)
        and _is_among(when.arch, build.arch)
        and _is_among(when.system, case.system)
        and _is_among(when.provider, case.provider)
        and is_within(when.release, case.version)
        and is_within(when.torch, case.torch)
        # A rule on Python 3.13 also holds for the free-threaded "3.13t", which is not a version.
        and is_within(when.python, build.python.rstrip("t"))
        and is_within(when.cuda, build.cuda)
        and is_within(when.gcc, _compiler_version(case.compiler, "gcc"))
        and is_within(when.clang, _compiler_version(case.compiler, "clang"))
        and case.provisioned_libraries.issuperset(when.provisioned_libraries or ())
        and case.absent_libraries.issuperset(when.absent_libraries or ())
        and _is_among(when.board, case.board)
        and (case.another_toolkit or not when.another_toolkit)
    )


def _is_among(names: tuple[str, ...] | None, name: str | None) -> bool:
    """Tell whether a condition on a name holds; None is no condition, and holds always."""
    return names is None or name in names


def _compiler_version(compiler: Compiler | None, family: str) -> str | None:
    """Return the version of a compiler of a family, "gcc" or "clang"; None for other compilers."""
    if compiler is not None and compiler.family == family:
        return compiler.version
    return None


@dataclass(frozen=True, slots=True)
class Constraint:
    """The bounds that all rules together put on a tool, and their reasons."""

    bounds: SpecifierSet
    reasons: tuple[str, ...] = ()

    def allows(self, version: str) -> bool:
        """Tell whether a version is in bounds."""
        return is_within(self.bounds, version)

    def __str__(self) -> str:
        """Return the bounds as people write them, without those that others imply: ">=3.18,<4".

        "" if there are no bounds.
        """
        return format_bounds(narrow_bounds(self.bounds))


@dataclass(frozen=True, slots=True)
class CellConstraints:
    """The demands of the rules that hold for a cell.

    Rules with conditions on the libraries of the machine, or on a toolkit in place of the
    variant's, are not among them: neither is known here.
    """

    facts: Facts
    cell: Cell  # its `cuda` is that of the toolkit that compiles it
    provider: str | None = None  # of the source

    def rules(self, compiler: Compiler | None = None) -> tuple[Rule, ...]:
        """Return the rules of the package that hold with a compiler; None: it is not known."""
        build = self.cell.build
        case = make_case(self.facts, build, self.cell.release, self.provider, compiler)
        rules = self.facts.packages[build.package].rules
        return tuple(rule for rule in rules if rule_matches(rule.when, case))

    def rules_with_base(self, compiler: Compiler | None) -> tuple[Rule, ...]:
        """Return the rules of the package, and of the torch that it is built against.

        A dependent package includes torch's headers, so the compiler has to suit both.
        """
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
        """Return the bounds of a tool, such as "cmake", outside which a build fails."""
        return self._join("needs", name, compiler)

    def advises(self, name: str, compiler: Compiler | None) -> Constraint:
        """Return the bounds of a tool outside which nobody is known to have built the cell."""
        return self._join("advises", name, compiler)

    def _join(
        self, effect: Literal["needs", "advises"], name: str, compiler: Compiler | None
    ) -> Constraint:
        """Return what one effect of all rules demands of a tool, each reason once."""
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
