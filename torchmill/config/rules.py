"""Match a rule's `when` against a build."""

from dataclasses import replace

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from torchmill.config.model import Build, Case, Compiler, Facts, Release, When

# What bounds were asked before: `nox -l` asks the same ones for every cell. The bounds are kept with the
# answer, so that no others can have their identity.
_answers: dict[tuple[int, str], tuple[SpecifierSet, bool]] = {}


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
        found = (one for one in specifier if one.operator == operator)
        return sorted(found, key=lambda one: Version(one.version))

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
