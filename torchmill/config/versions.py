"""Versions and their bounds: order Pythons, hold versions against specifiers, and write bounds for people."""

from functools import cache

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

# What bounds were asked before: `nox -l` asks the same ones for every cell. The bounds are kept with the
# answer, so that no others can have their identity.
_answers: dict[tuple[int, str], tuple[SpecifierSet, bool]] = {}


@cache
def python_key(python: str) -> tuple[Version, bool]:
    """Order "3.9" before "3.10" before "3.13t"."""
    return Version(python.rstrip("t")), python.endswith("t")


def format_bounds(specifier: SpecifierSet) -> str:
    """Return a specifier as people write it, the lower bound first."""
    return ",".join(sorted(map(str, specifier), key=lambda one: not one.startswith(">")))


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


def version_key(text: str) -> Version:
    """Return a version to order by; what is none is a problem already, and stands first."""
    return Version(text) if is_version(text) else Version("0")


def is_version(text: str) -> bool:
    """Tell whether a text is a version (PEP 440)."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
