"""Find rules of build_configs that have no effect on any build."""

from dataclasses import replace

from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.rule import Rule
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError
from torchmill.plan.matrix import ReleaseTerms
from torchmill.plan.rules import axis_conditions, make_case, rule_matches


def refuse_unused_rules(facts: Facts) -> None:
    """Raise ConfigError if a rule matches no build: it is stale, or mistyped.

    A rule of a kind may match builds of only one of its packages.
    """
    used: set[str] = set()
    unused: dict[str, Rule] = {}
    for package in facts.packages.values():
        for rule in package.rules:
            if rule.name in used:
                continue
            if _is_used(facts, package, rule):
                used.add(rule.name)
            else:
                unused[rule.name] = rule
    problems = [rule for name, rule in unused.items() if name not in used]
    if problems:
        lines = "\n".join(f"  {rule.name}: matches no build ({rule.reason})" for rule in problems)
        raise ConfigError(
            f"build_configs has rules without effect:\n{lines}", code="rule-without-effect"
        )


def _is_used(facts: Facts, package: Package, rule: Rule) -> bool:
    """Tell whether a rule matches a possible build.

    A conflict makes the builds that it matches impossible: it is used if the axes of the matrix
    (Python, variant, arch) have such a build.
    """
    conditions = axis_conditions(replace(rule.when, release=None))
    provider = rule.when.provider[0] if rule.when.provider else None
    for release in facts.releases[package.name]:
        if not is_within(rule.when.release, release.version):
            continue
        terms = ReleaseTerms.for_release(facts, release)
        for arch in rule.when.arch or release.arches:
            for build in terms.builds(arch):
                case = make_case(facts, build, release, provider)
                if rule_matches(conditions, case) and (rule.conflict or terms.allows(build)):
                    return True
    return False
