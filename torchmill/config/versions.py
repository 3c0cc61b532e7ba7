"""Versions and their bounds: order Pythons, test versions, and write bounds for people."""

import re
from functools import cache

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

# Answers of `is_within`, because `nox -l` asks the same for every cell. The key has the identity of
# the specifier, which is found more quickly than its hash. The specifier is stored with the answer:
# as long as it exists, no other object has its identity.
_answers: dict[tuple[int, str], tuple[SpecifierSet, bool]] = {}

_CUDA_LABEL = re.compile(r"cu(?P<digits>[1-9]\d{0,2})", re.ASCII)


@cache
def python_key(python: str) -> tuple[Version, bool]:
    """Return a key that orders "3.9" before "3.10" before "3.13t"."""
    return Version(python.rstrip("t")), python.endswith("t")


def version_key(text: str) -> Version:
    """Return the version in a text, to order by; a text that is not a version comes first.

    Readers of facts report such a text, and order the others all the same.
    """
    return Version(text) if is_version(text) else Version("0")


def numbers_key(name: str) -> list[int]:
    """Return a key that orders names by the numbers in them: "cuda-9.2" before "cuda-12.4"."""
    return [int(number) for number in re.findall(r"[0-9]+", name)]


def cuda_label(version: str) -> str:
    """Return how names of wheels and indexes write a version of CUDA: "cu118" for "11.8"."""
    return f"cu{version.replace('.', '')}"


def labelled_cuda(label: str) -> str:
    """Return the version of CUDA that a label names: "11.8" for "cu118", "9.2" for "cu92".

    It is a major version alone, "12", if the label is "cu12". "" for a label of no CUDA.
    """
    match = _CUDA_LABEL.fullmatch(label)
    if match is None:
        return ""
    digits = match["digits"]
    # 7.0 to 9.2 have one digit before the full stop, and all later versions have two.
    majors = 2 if digits.startswith("1") else 1
    return ".".join(filter(None, (digits[:majors], digits[majors:])))


def is_version(text: str) -> bool:
    """Tell whether a text is a version (PEP 440)."""
    try:
        Version(text)
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads (4300)
        return False
    return True


def is_within(specifier: SpecifierSet | None, version: str | None) -> bool:
    """Tell whether a version is in bounds.

    `specifier` is None if there are no bounds, and then the answer is True. `version` is None if
    there is none, as of the toolkit in a build without CUDA: then it is in no bounds. Any other is
    one of PEP 440. A pre-release is in bounds like any other version.
    """
    if specifier is None or version is None:
        return specifier is None
    key = (id(specifier), version)
    if key not in _answers:
        answer = specifier.contains(version, prereleases=True)
        _answers[key] = (specifier, answer)
    return _answers[key][1]


def _bound_key(bound: str) -> tuple[int, str]:
    """Return a key that orders bounds as people write them: ">=1.8", "<2.11", "!=1.13.*"."""
    rank = {">": 0, "<": 1}.get(bound[0], 2)
    return rank, bound


def format_bounds(specifier: SpecifierSet) -> str:
    """Return a specifier as people write it, the lower bound first: ">=1.8,<2".

    The order is the same in each run of Python: up to packaging 26.0 a specifier is a set, whose
    order is not.
    """
    bounds = [str(bound) for bound in specifier]
    return ",".join(sorted(bounds, key=_bound_key))


def narrow_bounds(specifier: SpecifierSet) -> SpecifierSet:
    """Return bounds without those that others imply: of ">=2,>=3,<9" it is ">=3,<9".

    Only ">=" and "<" are compared, all others stay. Of equal bounds, such as ">=3" and ">=3.0",
    each run of Python takes the same one.
    """

    def strength(bound: Specifier) -> tuple[Version, str]:
        return Version(bound.version), bound.version

    lower: list[Specifier] = []
    upper: list[Specifier] = []
    narrowest: list[Specifier] = []
    for bound in specifier:
        if bound.operator == ">=":
            lower.append(bound)
        elif bound.operator == "<":
            upper.append(bound)
        else:
            narrowest.append(bound)
    if lower:
        narrowest.append(max(lower, key=strength))
    if upper:
        narrowest.append(min(upper, key=strength))
    return SpecifierSet(",".join(str(bound) for bound in narrowest))
