"""Axes to builds: which cells exist, which a release can build, and why not."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchwright.errors import ConfigError, UnknownReleaseError
from torchwright.model import Build, Case, Compiler, Facts, Package, Release, Rule, Toolkit, When


@dataclass(frozen=True, slots=True)
class Cell:
    """A build of a release; `reason` says why it is impossible, None that it is possible."""

    build: Build
    release: Release
    reason: str | None

    @property
    def possible(self) -> bool:
        """Tell whether the facts allow it."""
        return self.reason is None


def python_key(python: str) -> tuple[Version, bool]:
    """Order "3.9" before "3.10" before "3.13t"."""
    return Version(python.rstrip("t")), python.endswith("t")


def pythons(facts: Facts) -> tuple[str, ...]:
    """Return every CPython that any release supports, oldest first."""
    known = {python for releases in facts.releases.values() for one in releases for python in one.pythons}
    return tuple(sorted(known, key=python_key))


def base_package(facts: Facts) -> Package:
    """Return the package that the others are built against."""
    return next(package for package in facts.packages.values() if package.after is None)


def case(
    facts: Facts,
    build: Build,
    release: Release,
    provider: str | None = None,
    compiler: Compiler | None = None,
) -> Case:
    """Return what rules are held against."""
    return Case(build, release.version, facts.arches[build.arch].system, provider, compiler)


def matches(when: When, case: Case) -> bool:
    """Tell whether every condition of `when` holds; a build without CUDA matches no CUDA version."""
    build, compiler = case.build, case.compiler

    def within(specifier: SpecifierSet | None, version: str | None) -> bool:
        return specifier is None or (version is not None and specifier.contains(version, prereleases=True))

    def among(names: tuple[str, ...] | None, name: str | None) -> bool:
        return names is None or name in names

    def made_by(specifier: SpecifierSet | None, family: str) -> bool:
        named = compiler.version if compiler is not None and compiler.family == family else None
        return within(specifier, named)

    return (
        within(when.release, case.version)
        and within(when.python, build.python.rstrip("t"))
        and within(when.cuda, build.cuda)
        and among(when.variant, build.variant)
        and among(when.arch, build.arch)
        and among(when.system, case.system)
        and among(when.provider, case.provider)
        and made_by(when.gcc, "gcc")
        and made_by(when.clang, "clang")
    )


def _axes_reason(release: Release, python: str, toolkit: Toolkit | None, arch: str) -> str | None:
    """Return why the axes themselves exclude a cell, or None."""
    name = f"{release.package} {release.version}"
    if arch not in release.arches:
        return f"{name} builds on {', '.join(release.arches)}"
    if python not in release.pythons:
        return f"{name} supports Python {', '.join(release.pythons)}"
    return _cuda_reason(release, toolkit, arch) if toolkit else None


def bounds(specifier: SpecifierSet) -> str:
    """Return a specifier as people write it, the lower bound first."""
    return ",".join(sorted(map(str, specifier), key=lambda one: not one.startswith(">")))


def _cuda_reason(release: Release, toolkit: Toolkit, arch: str) -> str | None:
    name = f"{release.package} {release.version}"
    if release.cuda is None:
        return f"{name} is built without CUDA"
    if not release.cuda.contains(toolkit.version):
        return f"{name} builds with CUDA {bounds(release.cuda)}"
    if arch not in toolkit.arches:
        return f"CUDA {toolkit.version} exists for {', '.join(toolkit.arches)} only"
    return None


def conflicts(facts: Facts, build: Build, release: Release) -> Iterator[Rule]:
    """Yield the rules that forbid a build of a release."""
    known = case(facts, build, release)
    for rule in facts.packages[build.package].rules:
        if rule.conflict and matches(rule.when, known):
            yield rule


def _cell(facts: Facts, release: Release, python: str, toolkit: Toolkit | None, arch: str) -> Cell:
    package = facts.packages[release.package]
    variant, cuda = (toolkit.variant, toolkit.version) if toolkit else ("cpu", None)
    build = Build(package.name, package.session, python, variant, arch, cuda)
    reason = _axes_reason(release, python, toolkit, arch)
    if reason is None:
        reason = next((rule.reason for rule in conflicts(facts, build, release)), None)
    if reason is None and package.after is not None and release.torch is not None:
        base = find_release(facts, package.after, release.torch)
        reason = _cell(facts, base, python, toolkit, arch).reason
    return Cell(build, release, reason)


def grid(facts: Facts, release: Release) -> Iterator[Cell]:
    """Yield the whole grid of one release, impossible cells too."""
    for arch in facts.arches:
        for python in pythons(facts):
            for toolkit in (None, *facts.toolkits):
                yield _cell(facts, release, python, toolkit, arch)


def _supported(facts: Facts, release: Release, arch: str) -> Iterator[Cell]:
    """Yield the cells whose axes a release supports: the grid without what can be seen to be empty."""
    if arch not in release.arches:
        return
    toolkits = [one for one in facts.toolkits if _cuda_reason(release, one, arch) is None]
    for python in release.pythons:
        for toolkit in (None, *toolkits):
            yield _cell(facts, release, python, toolkit, arch)


def find_release(facts: Facts, package: str, version: str) -> Release:
    """Return a package's release by version or tag.

    Raises UnknownReleaseError, with near matches.
    """
    for release in facts.releases[package]:
        if version in (release.version, release.tag):
            return release
    known = [release.tag for release in facts.releases[package]]
    near = get_close_matches(version, known, 3) or known
    raise UnknownReleaseError(
        f"no release of {package} is called '{version}'; there is {', '.join(near)} "
        "(build_configs/releases has them all)"
    )


def paired(facts: Facts, package: str, torch: Release) -> Release | None:
    """Return the release of `package` that goes with a torch release, or None."""
    if package == torch.package:
        return torch
    return next((one for one in facts.releases[package] if one.torch == torch.version), None)


def newest(facts: Facts) -> Release:
    """Return the newest release of the base package."""
    return facts.releases[base_package(facts).name][-1]


def partners(facts: Facts, release: Release, names: Collection[str]) -> tuple[Release, ...]:
    """Return the releases of the named packages that go with a release; without a name, itself.

    Raises ConfigError for a name that is no package, UnknownReleaseError where a package that was named
    alone has no such release.
    """
    words = {word: one for one in facts.packages.values() for word in (one.session, one.name)}
    if unknown := sorted(set(names) - words.keys()):
        there = ", ".join(f"{one.name} ({one.session})" for one in facts.packages.values())
        raise ConfigError(f"unknown package {', '.join(unknown)}; there is {there}")
    wanted = dict.fromkeys(words[name].name for name in names or (release.package,))
    found = {name: paired(facts, name, release) for name in wanted}
    missing = [name for name, partner in found.items() if partner is None]
    if missing and len(found) < len(facts.packages):
        raise UnknownReleaseError(f"no release of {', '.join(missing)} is known to go with {release.tag}")
    return tuple(partner for partner in found.values() if partner is not None)


def releases_of(facts: Facts, selected: Release | None) -> Iterator[Release]:
    """Yield what a selection stands for: the release and its partners, or every release, newest first."""
    for package in facts.packages:
        if selected is None:
            yield from reversed(facts.releases[package])
        elif (partner := paired(facts, package, selected)) is not None:
            yield partner


def buildable(facts: Facts, selected: Release | None, arch: str) -> tuple[Cell, ...]:
    """Return the possible cells of one machine.

    Without a selection each cell stands for the newest release that supports it.
    """
    found: dict[Build, Cell] = {}
    for release in releases_of(facts, selected):
        for cell in _supported(facts, release, arch):
            if cell.possible:
                found.setdefault(cell.build, cell)
    return tuple(sorted(found.values(), key=lambda cell: _order(facts, cell.build)))


def _order(facts: Facts, build: Build) -> tuple[bool, str, Version, bool, Version]:
    package = facts.packages[build.package]
    cuda = Version(build.cuda or "0")
    return package.after is not None, package.name, *python_key(build.python), cuda


def check_rules(facts: Facts) -> None:
    """Raise ConfigError for every rule that matches no cell: it is stale, or mistyped."""
    stale: list[Rule] = []
    for package in facts.packages.values():
        cells = [
            cell
            for release in facts.releases[package.name]
            for arch in release.arches
            for cell in _supported(facts, release, arch)
        ]
        stale.extend(rule for rule in package.rules if not _alive(facts, rule, cells))
    if stale:
        lines = "\n".join(f"  {rule.name}: matches no build ({rule.reason})" for rule in stale)
        raise ConfigError(f"build_configs has rules without effect:\n{lines}")


def _alive(facts: Facts, rule: Rule, cells: Iterable[Cell]) -> bool:
    anywhere = replace(rule.when, gcc=None, clang=None)  # compilers are no axis
    return any(
        matches(anywhere, case(facts, cell.build, cell.release, provider))
        for cell in cells
        for provider in (rule.when.provider or (None,))
    )
