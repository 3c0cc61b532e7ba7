"""The matrix: which cells exist, which a release can build, and why not."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.config.build import CPU, Build
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.release_lookup import all_pythons, find_release, releases_of
from torchmill.config.rule import Rule
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import format_bounds, is_within, python_key
from torchmill.plan.cell import Cell
from torchmill.plan.rules import make_case, rule_matches


def can_build_with(facts: Facts, release: Release, toolkit: Toolkit) -> bool:
    """Tell whether any build of a release with a toolkit is possible."""
    terms = ReleaseTerms.for_release(facts, release)
    return any(
        build.cuda == toolkit.version and terms.allow(build)
        for arch in release.arches
        for build in terms.builds(arch)
    )


NOWHERE = SpecifierSet("<0")
UNTRIED = "nobody is known to have tried a newer one"
_number = cache(Version)


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
