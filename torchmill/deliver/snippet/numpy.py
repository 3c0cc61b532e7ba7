"""Which NumPy the wheels work with, by what they are compiled against."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.requirements import Requirement

from torchmill.matrix import CPU
from torchmill.model import Arch, Build, Facts, Release
from torchmill.rules import case, matches

_TWO = ("2.0.0", "2.0.2", "2.4.0")  # of NumPy 2: what is compiled against any of these works with 1 and 2


def bound(
    facts: Facts, releases: Sequence[Release], pythons: Sequence[str], platforms: Sequence[Arch]
) -> str | None:
    """Return the requirement that a project needs beside these releases, "numpy<2"; None: it needs none.

    A wheel that is compiled against NumPy 1 fails with NumPy 2, and its METADATA seldom says so.
    """
    for release in releases:
        package = facts.packages[release.package]
        for arch in platforms:
            for python in pythons:
                build = Build(package.name, package.session, python, CPU, arch.name)
                known = case(facts, build, release)
                rules = (rule for rule in package.rules if matches(rule.when, known))
                if any(_of_one(line) for rule in rules for line in rule.requires):
                    return "numpy<2"
    return None


def _of_one(line: str) -> bool:
    """Tell whether a requirement of a build is met by NumPy 1 alone."""
    required = Requirement(line)
    return required.name == "numpy" and not any(required.specifier.contains(one) for one in _TWO)
