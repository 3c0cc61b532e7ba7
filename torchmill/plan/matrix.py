"""The matrix: which cells exist, which of them a release can build, and why not the others.

A cell is a build of one release. The axes of the matrix are the arch, the Python and the toolkit:
a release supports some values of each. Of the cells on these axes, conflicts (rules of packages)
forbid some more. A dependent release, such as one of torchvision, has the terms of its base
release, a torch, too.
"""

from __future__ import annotations

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

_NO_VERSION = SpecifierSet("<0")  # no version is in these bounds
# Reasons that end so say that nobody tried a cell, not that it is impossible.
UNTRIED = "nobody is known to have tried a newer one"
# Sorting thousands of cells parses the few versions of toolkits again and again.
_parse_version = cache(Version)


@dataclass(frozen=True, slots=True)
class ReleaseTerms:
    """What a release demands of its builds, and what its base release demands of them."""

    facts: Facts
    release: Release
    conflicts: tuple[Rule, ...]  # rules of the package that forbid some builds of this release
    base: ReleaseTerms | None  # None: the release has no base release

    @classmethod
    def for_release(cls, facts: Facts, release: Release) -> ReleaseTerms:
        """Return the terms of a release."""
        package = facts.packages[release.package]
        conflicts: list[Rule] = []
        for rule in package.rules:
            if rule.conflict and is_within(rule.when.release, release.version):
                conflicts.append(rule)
        base = None
        if package.after is not None and release.torch is not None:
            base = cls.for_release(facts, find_release(facts, package.after, release.torch))
        return cls(facts, release, tuple(conflicts), base)

    def axes(self, arch: str) -> tuple[tuple[str, ...], tuple[Toolkit, ...]]:
        """Return the Pythons and toolkits that the release and its base both support on an arch."""
        release = self.release
        if arch not in release.arches:
            return (), ()
        if self.base is None:
            pythons = release.pythons
            toolkits = self.facts.toolkits
            has_bounds_of_base = False
        else:
            base_pythons, toolkits = self.base.axes(arch)
            pythons = tuple(python for python in release.pythons if python in base_pythons)
            # A release without bounds of its own has the very object of its base, whose toolkits
            # are in bounds already. To compare versions again would take most of the time here.
            has_bounds_of_base = self.base.release.cuda.range is release.cuda.range
        bounds = release.cuda.range or _NO_VERSION
        supported: list[Toolkit] = []
        for toolkit in toolkits:
            is_in_bounds = has_bounds_of_base or is_within(bounds, toolkit.version)
            if arch in toolkit.arches and is_in_bounds:
                supported.append(toolkit)
        return pythons, tuple(supported)

    def builds(self, arch: str) -> Iterator[Build]:
        """Return the builds that the axes allow on an arch; conflicts may forbid some of them."""
        pythons, toolkits = self.axes(arch)
        return _combine_axes(self.facts.packages[self.release.package], arch, pythons, toolkits)

    def forbidding_rules(self, build: Build) -> Iterator[Rule]:
        """Yield the conflicts that forbid a build: the release's first, then those of its base."""
        case = make_case(self.facts, build, self.release)
        for rule in self.conflicts:
            if rule_matches(rule.when, case):
                yield rule
        if self.base is not None:
            package = self.facts.packages[self.base.release.package]
            base_build = replace(build, package=package.name, session=package.session)
            yield from self.base.forbidding_rules(base_build)

    def allows(self, build: Build) -> bool:
        """Tell whether no conflict forbids a build that the axes allow."""
        return not any(self.forbidding_rules(build))

    def reasons(self, build: Build) -> tuple[str, ...]:
        """Return every reason why a build is impossible, each once; () if it is possible.

        Reasons of the axes come first. The axes of the base are asked only if those of the release
        allow the build.
        """
        toolkit = self.facts.toolkit(build.cuda)
        reasons = list(_axes_reasons(self.release, build, toolkit))
        if not reasons and self.base is not None:
            reasons = list(_axes_reasons(self.base.release, build, toolkit))
        reasons.extend(rule.reason for rule in self.forbidding_rules(build))
        return tuple(dict.fromkeys(reasons))


def _axes_reasons(release: Release, build: Build, toolkit: Toolkit | None) -> Iterator[str]:
    """Yield the reasons for which the axes of a release exclude a build.

    `toolkit` is the build's; None for a build without CUDA.
    """
    if build.arch not in release.arches:
        yield f"{release} builds on {', '.join(release.arches)}"
    if build.python not in release.pythons:
        yield _python_reason(release, build.python)
    if toolkit is None:
        return
    # Without bounds for CUDA, a release has no code for it at all.
    if release.cuda.range is None:
        yield f"{release} is built without CUDA"
    elif not is_within(release.cuda.range, toolkit.version):
        reason = f"{release} takes CUDA {format_bounds(release.cuda.range)}"
        if _is_above(release.cuda.range, toolkit.version):
            reason += f": {UNTRIED}"
        yield reason
    if build.arch not in toolkit.arches:
        yield f"CUDA {toolkit.version} exists for {', '.join(toolkit.arches) or 'no machine'} only"


def _is_above(bounds: SpecifierSet, version: str) -> bool:
    """Tell whether a version is beyond an upper bound, as opposed to below a lower one."""
    return any(bound.operator.startswith("<") and not bound.contains(version) for bound in bounds)


def _python_reason(release: Release, python: str) -> str:
    """Return why a release has no build for a Python.

    Older Pythons lack what the sources use. Newer ones may do: the reason ends with UNTRIED.
    """
    keys = sorted(python_key(supported) for supported in release.pythons)
    if not keys:
        return f"{release} takes none of the Pythons that torch {release.torch_version} does"
    oldest = keys[0]
    newest = keys[-1]
    if python_key(python) < oldest:
        version, _ = oldest
        return f"{release} is written for Python {version} or newer"
    listed = ", ".join(release.pythons)
    if python_key(python) > newest:
        return f"{release} was released for Python {listed}: {UNTRIED}"
    return f"{release} was released for Python {listed}, and not for {python}"


def make_cell(facts: Facts, release: Release, build: Build) -> Cell:
    """Return the cell of a build, possible or not, with the reasons if it is impossible."""
    return Cell(build, release, ReleaseTerms.for_release(facts, release).reasons(build))


def all_builds(facts: Facts, package: Package) -> Iterator[Build]:
    """Yield the builds of a package for every arch, Python and toolkit of the facts.

    Some of them are possible with no release.
    """
    pythons = all_pythons(facts)
    for arch in facts.arches:
        yield from _combine_axes(package, arch, pythons, facts.toolkits)


def _combine_axes(
    package: Package, arch: str, pythons: Iterable[str], toolkits: Collection[Toolkit]
) -> Iterator[Build]:
    """Yield the builds of a package: for each Python one without CUDA, and one for each toolkit."""
    name = package.name
    session = package.session
    for python in pythons:
        yield Build(name, session, python, CPU, arch)
        for toolkit in toolkits:
            yield Build(name, session, python, toolkit.variant, arch, toolkit.version)


def release_grid(facts: Facts, release: Release) -> Iterator[Cell]:
    """Yield the cell of every build of a release's package, impossible cells with their reasons."""
    terms = ReleaseTerms.for_release(facts, release)
    for build in all_builds(facts, facts.packages[release.package]):
        yield Cell(build, release, terms.reasons(build))


def possible_cells(facts: Facts, release: Release, arch: str) -> Iterator[Cell]:
    """Yield the possible cells of a release on an arch, in order of their Python, then toolkit."""
    terms = ReleaseTerms.for_release(facts, release)
    for build in terms.builds(arch):
        if terms.allows(build):
            yield Cell(build, release)


def buildable_cells(facts: Facts, selected: Release | None, arch: str) -> tuple[Cell, ...]:
    """Return the possible cells on an arch, sorted: those of the base package first.

    They are of the selected release, and of those that go with it. Without a selected release, each
    cell belongs to the newest release that supports it.
    """
    # `releases_of` has the newest release first, so the first one that allows a build is taken.
    cells: dict[Build, Cell] = {}
    for release in releases_of(facts, selected):
        terms = ReleaseTerms.for_release(facts, release)
        for build in terms.builds(arch):
            if build not in cells and terms.allows(build):
                cells[build] = Cell(build, release)
    return tuple(sorted(cells.values(), key=lambda cell: _cell_key(facts, cell.build)))


def _cell_key(facts: Facts, build: Build) -> tuple[bool, str, Version, bool, Version]:
    """Return a key that orders the base package first, then by name, Python and toolkit."""
    package = facts.packages[build.package]
    version, is_free_threaded = python_key(build.python)
    is_dependent = package.after is not None
    cuda = _parse_version(build.cuda or "0")
    return (is_dependent, package.name, version, is_free_threaded, cuda)


def can_build_with(facts: Facts, release: Release, toolkit: Toolkit) -> bool:
    """Tell whether any build of a release with a toolkit is possible."""
    terms = ReleaseTerms.for_release(facts, release)
    for arch in release.arches:
        for build in terms.builds(arch):
            if build.cuda == toolkit.version and terms.allows(build):
                return True
    return False
