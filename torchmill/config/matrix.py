"""The matrix: which cells exist, which a release can build, and why not; what rules match, and what they demand."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, reduce
from operator import and_

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from torchmill.config.model import (
    Build,
    Case,
    Compiler,
    Facts,
    Package,
    Release,
    Rule,
    Toolkit,
    When,
)
from torchmill.core.errors import ConfigError, UnknownReleaseError

CPU = "cpu"
NOWHERE = SpecifierSet("<0")
UNTRIED = "nobody is known to have tried a newer one"
_number = cache(Version)
# What bounds were asked before: `nox -l` asks the same ones for every cell. The bounds are kept with the
# answer, so that no others can have their identity.
_answers: dict[tuple[int, str], tuple[SpecifierSet, bool]] = {}


@dataclass(frozen=True, slots=True)
class Cell:
    """A build of a release; `reasons` say why it is impossible, and there are none where it is possible."""

    build: Build
    release: Release
    reasons: tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        """Tell whether the facts allow it."""
        return not self.reasons

    @property
    def reason(self) -> str | None:
        """Return the first of the reasons, None where it is possible."""
        return self.reasons[0] if self.reasons else None


@cache
def python_key(python: str) -> tuple[Version, bool]:
    """Order "3.9" before "3.10" before "3.13t"."""
    return Version(python.rstrip("t")), python.endswith("t")


def all_pythons(facts: Facts) -> tuple[str, ...]:
    """Return every CPython that any release supports, oldest first."""
    known = {
        python for releases in facts.releases.values() for one in releases for python in one.pythons
    }
    return tuple(sorted(known, key=python_key))


def base_package(facts: Facts) -> Package:
    """Return the package that the others are built against."""
    return next(package for package in facts.packages.values() if package.after is None)


def format_bounds(specifier: SpecifierSet) -> str:
    """Return a specifier as people write it, the lower bound first."""
    return ",".join(sorted(map(str, specifier), key=lambda one: not one.startswith(">")))


def _axes_reasons(release: Release, build: Build, toolkit: Toolkit | None) -> Iterator[str]:
    """Yield why the axes themselves exclude a build."""
    if build.arch not in release.arches:
        yield f"{release} builds on {', '.join(release.arches)}"
    if build.python not in release.pythons:
        yield _python_reason(release, build.python)
    if toolkit is None:
        return
    if release.cuda is None:
        yield f"{release} is built without CUDA"
    elif not is_within(release.cuda, toolkit.version):
        newer = any(
            one.operator[0] == "<" and not one.contains(toolkit.version) for one in release.cuda
        )
        yield f"{release} takes CUDA {format_bounds(release.cuda)}{f': {UNTRIED}' * newer}"
    if build.arch not in toolkit.arches:
        yield f"CUDA {toolkit.version} exists for {', '.join(toolkit.arches) or 'no machine'} only"


def _python_reason(release: Release, python: str) -> str:
    """Return why a release has no build for a Python: its sources cannot, or nobody is known to have tried."""
    if not (known := sorted(map(python_key, release.pythons))):
        return f"{release} takes none of the Pythons that torch {release.torch_version} does"
    if python_key(python) < known[0]:
        return f"{release} is written for Python {known[0][0]} or newer"
    listed = ", ".join(release.pythons)
    if python_key(python) > known[-1]:
        return f"{release} was released for Python {listed}: {UNTRIED}"
    return f"{release} was released for Python {listed}, and not for {python}"


@dataclass(frozen=True, slots=True)
class ReleaseTerms:
    """What a release demands of its builds: its axes, the conflicts that name it, the same of its base."""

    facts: Facts
    release: Release
    conflicts: tuple[Rule, ...]
    base: "ReleaseTerms | None"

    @classmethod
    def for_release(cls, facts: Facts, release: Release) -> "ReleaseTerms":
        """Return the terms of a release."""
        package = facts.packages[release.package]
        conflicts = tuple(
            rule
            for rule in package.rules
            if rule.conflict and is_within(rule.when.release, release.version)
        )
        paired_with = package.after if release.torch is not None else None
        base = (
            cls.for_release(facts, find_release(facts, paired_with, str(release.torch)))
            if paired_with
            else None
        )
        return cls(facts, release, conflicts, base)

    def axes(self, arch: str) -> tuple[tuple[str, ...], tuple[Toolkit, ...]]:
        """Return the Pythons and toolkits that the release and its base support on a machine."""
        release = self.release
        if arch not in release.arches:
            return (), ()
        pythons, toolkits = (
            self.base.axes(arch) if self.base else (release.pythons, self.facts.toolkits)
        )
        inherited = self.base is not None and self.base.release.cuda is release.cuda
        return tuple(one for one in release.pythons if one in pythons), tuple(
            one
            for one in toolkits
            if arch in one.arches and (inherited or is_within(release.cuda or NOWHERE, one.version))
        )

    def builds(self, arch: str) -> Iterator[Build]:
        """Return the builds that the axes leave on a machine."""
        return _product(self.facts.packages[self.release.package], arch, *self.axes(arch))

    def forbidding(self, build: Build) -> Iterator[Rule]:
        """Yield the conflicts that forbid a build, the release's own before its base's."""
        known = make_case(self.facts, build, self.release)
        yield from (rule for rule in self.conflicts if rule_matches(rule.when, known))
        if self.base is not None:
            package = self.facts.packages[self.base.release.package]
            yield from self.base.forbidding(
                replace(build, package=package.name, session=package.session)
            )

    def allow(self, build: Build) -> bool:
        """Tell whether no conflict forbids a build."""
        return next(self.forbidding(build), None) is None

    def reasons(self, build: Build) -> tuple[str, ...]:
        """Return every reason why a build is impossible: the axes, or else those of the base, first."""
        toolkit = self.facts.toolkit(build.cuda)
        said = tuple(_axes_reasons(self.release, build, toolkit))
        if not said and self.base is not None:
            said = tuple(_axes_reasons(self.base.release, build, toolkit))
        return tuple(dict.fromkeys((*said, *(rule.reason for rule in self.forbidding(build)))))


def make_cell(facts: Facts, release: Release, build: Build) -> Cell:
    """Return one cell of a release's grid, possible or not."""
    return Cell(build, release, ReleaseTerms.for_release(facts, release).reasons(build))


def all_builds(facts: Facts, package: Package) -> Iterator[Build]:
    """Yield every build that a package has a name for, whichever release may make it."""
    for arch in facts.arches:
        yield from _product(package, arch, all_pythons(facts), facts.toolkits)


def _product(
    package: Package, arch: str, pythons: Iterable[str], toolkits: Collection[Toolkit]
) -> Iterator[Build]:
    for python in pythons:
        yield Build(package.name, package.session, python, CPU, arch)
        for one in toolkits:
            yield Build(package.name, package.session, python, one.variant, arch, one.version)


def release_grid(facts: Facts, release: Release) -> Iterator[Cell]:
    """Yield the whole grid of one release, impossible cells too."""
    terms = ReleaseTerms.for_release(facts, release)
    for build in all_builds(facts, facts.packages[release.package]):
        yield Cell(build, release, terms.reasons(build))


def refuse_left_out(facts: Facts, *names: str) -> None:
    """Raise ConfigError, with the mistakes, if a name means a package or release that is left out."""
    for file in facts.left_out:
        if not set(names).isdisjoint(file.names):
            lines = "\n".join(f"  {problem}" for problem in file.problems)
            raise ConfigError(
                f"build_configs/{file.name} has problems:\n{lines}", code="facts-invalid"
            )


def find_release(facts: Facts, package: str, version: str) -> Release:
    """Return a package's release by version or tag.

    Raises UnknownReleaseError, with near matches, ConfigError if its file has mistakes.
    """
    for release in facts.releases[package]:
        if version in (release.version, release.tag):
            return release
    refuse_left_out(facts, version)
    known = [release.tag for release in facts.releases[package]]
    named = re.sub(r"^\D*", "v", version)  # "release/2.4", "V2.4.1"
    near = [tag for tag in reversed(known) if tag.startswith(f"{named}.")][:3] or get_close_matches(
        named, known, 3
    )
    there = ", ".join(near) if near else f"{known[0]} to {known[-1]}"
    raise UnknownReleaseError(
        f"no release of {package} is called '{version}'; there is {there} (build_configs/releases has them all)",
        code="unknown-release",
    )


def paired_release(facts: Facts, package: str, torch: Release) -> Release | None:
    """Return the release of `package` that goes with a torch release, or None."""
    if package == torch.package:
        return torch
    return next((one for one in facts.releases[package] if one.torch == torch.version), None)


def newest_release(facts: Facts) -> Release:
    """Return the newest release of the base package."""
    return facts.releases[base_package(facts).name][-1]


def partner_releases(facts: Facts, release: Release, names: Collection[str]) -> tuple[Release, ...]:
    """Return the releases of the named packages that go with a release; without a name, itself.

    Raises ConfigError for a name that is no package, UnknownReleaseError where a package has no such release.
    """
    words = {word: one for one in facts.packages.values() for word in (one.session, one.name)}
    if unknown := sorted(set(names) - words.keys()):
        refuse_left_out(facts, *unknown)
        there = ", ".join(f"{one.name} ({one.session})" for one in facts.packages.values())
        raise ConfigError(
            f"unknown package {', '.join(unknown)}: choose from {there}", code="unknown-package"
        )
    wanted = dict.fromkeys(words[name].name for name in names or (release.package,))
    found = {name: partner for name in wanted if (partner := paired_release(facts, name, release))}
    if missing := ", ".join(name for name in wanted if name not in found):
        raise UnknownReleaseError(
            f"no release of {missing} is known to fit {release.tag}", code="no-partner-release"
        )
    return tuple(found.values())


def releases_of(facts: Facts, selected: Release | None) -> Iterator[Release]:
    """Yield what a selection stands for: the release and its partners, or every release, newest first."""
    for package in facts.packages:
        if selected is None:
            yield from reversed(facts.releases[package])
        elif (partner := paired_release(facts, package, selected)) is not None:
            yield partner


def buildable_cells(facts: Facts, selected: Release | None, arch: str) -> tuple[Cell, ...]:
    """Return the possible cells of one machine.

    Without a selection each cell stands for the newest release that supports it.
    """
    found: dict[Build, Cell] = {}
    for release in releases_of(facts, selected):
        terms = ReleaseTerms.for_release(facts, release)
        for build in terms.builds(arch):
            if build not in found and terms.allow(build):
                found[build] = Cell(build, release)
    return tuple(sorted(found.values(), key=lambda one: _order(facts, one.build)))


def possible_cells(facts: Facts, release: Release, arch: str) -> Iterator[Cell]:
    """Yield the possible cells of a release on a machine: by Python, then by toolkit, oldest first."""
    terms = ReleaseTerms.for_release(facts, release)
    yield from (Cell(build, release) for build in terms.builds(arch) if terms.allow(build))


def _order(facts: Facts, build: Build) -> tuple[bool, str, Version, bool, Version]:
    package = facts.packages[build.package]
    return (
        package.after is not None,
        package.name,
        *python_key(build.python),
        _number(build.cuda or "0"),
    )


def is_within(specifier: SpecifierSet | None, version: str | None) -> bool:
    """Tell whether a version is in bounds: every one where there are none, and no version in any."""
    if specifier is None or version is None:
        return specifier is None
    key = id(specifier), version
    if key not in _answers:
        _answers[key] = specifier, specifier.contains(version, prereleases=True)
    return _answers[key][1]


def narrow_bounds(specifier: SpecifierSet) -> SpecifierSet:
    """Return bounds without those that another already says: of several on one side the narrowest."""

    def side(operator: str) -> list[Specifier]:
        return sorted(
            (one for one in specifier if one.operator == operator),
            key=lambda one: Version(one.version),
        )

    others = [one for one in specifier if one.operator not in {">=", "<"}]
    return SpecifierSet(",".join(map(str, [*side(">=")[-1:], *side("<")[:1], *others])))


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
