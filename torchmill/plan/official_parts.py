"""The parts of official wheels that a plan leaves out, such as MKL, MAGMA or Kineto.

Whether a plan has a part follows from statements about the plan, which the facts match by patterns.
A part is missing if a statement matches one of its patterns `unless`. With patterns `signs`, a part
is also missing if no statement matches any of these.
"""

import fnmatch
from collections.abc import Collection, Iterable, Mapping

from torchmill.config.facts import Facts
from torchmill.config.rule import OfficialPart, Rule
from torchmill.plan.build_options import SWITCHED_OFF, SWITCHED_ON
from torchmill.plan.plan import Shortfall
from torchmill.plan.rules import Case, rule_matches


def missed_parts(
    facts: Facts,
    case: Case,
    rules: Iterable[Rule],
    variables: Mapping[str, str],
    platform_tag: str,
) -> list[OfficialPart]:
    """Return the parts that the official wheel of a case has, and that a plan leaves out.

    `rules`, `variables` and `platform_tag` are the plan's.
    """
    statements = _plan_statements(case, rules, variables, platform_tag)
    missed: list[OfficialPart] = []
    for part in facts.official.parts:
        if case.board in part.not_on:
            continue
        if rule_matches(part.when, case) and not _has_part(part, statements):
            missed.append(part)
    return missed


def _has_part(part: OfficialPart, statements: Collection[str]) -> bool:
    """Tell whether the statements about a plan show that it has a part of the official wheel."""
    if part.signs and not _any_matches(part.signs, statements):
        return False
    return not _any_matches(part.unless, statements)


def _any_matches(patterns: Iterable[str], statements: Iterable[str]) -> bool:
    """Tell whether one of the statements matches one of the patterns."""
    return any(fnmatch.filter(statements, pattern) for pattern in patterns)


def _plan_statements(
    case: Case, rules: Iterable[Rule], variables: Mapping[str, str], platform_tag: str
) -> set[str]:
    """Return the statements about a plan that the patterns of official parts match.

    They are "USE_MPI=1", "lacking magma", "platform=manylinux_2_28_x86_64", its requirements, as
    "mkl-include==2024.2.0", and the names of its system packages.
    """
    statements = {f"platform={platform_tag}"}
    statements.update(f"lacking {library}" for library in case.absent_libraries)
    for name, value in variables.items():
        statements.add(f"{name}={value}")
        # However a switch is spelled, patterns know it as 1 or 0.
        if value.upper() in SWITCHED_ON:
            statements.add(f"{name}=1")
        elif value.upper() in SWITCHED_OFF:
            statements.add(f"{name}=0")
    for rule in rules:
        statements.update(rule.requires)
        for packages in rule.system_packages.values():
            statements.update(packages)
    return statements


def split_missed(
    missed: Iterable[OfficialPart], variant: str
) -> tuple[tuple[Shortfall, ...], tuple[Shortfall, ...]]:
    """Return the shortfalls of a plan, and the differences that are on purpose.

    `missed` are the parts that the plan leaves out. Facts give the reason for a part that is left
    out on purpose, and the cost of any other.
    """
    shortfalls: list[Shortfall] = []
    differences: list[Shortfall] = []
    for part in missed:
        if part.cost:
            cure = part.brings.format(variant=variant)
            shortfalls.append(Shortfall(part.name, part.cost, cure))
        else:
            differences.append(Shortfall(part.name, part.explained, ""))
    return tuple(shortfalls), tuple(differences)
