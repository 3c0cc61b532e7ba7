"""Find rules of build_configs that shape no build."""

from dataclasses import replace

from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.rule import Rule
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError
from torchmill.plan.matrix import ReleaseTerms
from torchmill.plan.rules import axis_conditions, make_case, rule_matches


def refuse_unused_rules(facts: Facts) -> None:
    """Raise ConfigError for every rule that no build it could shape matches: it is stale, or mistyped."""
    stale = [
        rule
        for package in facts.packages.values()
        for rule in package.rules
        if not _alive(facts, package, rule)
    ]
    if stale:
        lines = "\n".join(f"  {rule.name}: matches no build ({rule.reason})" for rule in stale)
        raise ConfigError(
            f"build_configs has rules without effect:\n{lines}", code="rule-without-effect"
        )


def _alive(facts: Facts, package: Package, rule: Rule) -> bool:
    """Tell whether a rule matches a possible build, or, if it is a conflict, one that the axes support."""
    rest = axis_conditions(replace(rule.when, release=None))
    provider = rule.when.provider[0] if rule.when.provider else None
    return any(
        rule_matches(rest, make_case(facts, build, release, provider))
        and (rule.conflict or terms.allow(build))
        for release in facts.releases[package.name]
        if is_within(rule.when.release, release.version)
        for terms in (ReleaseTerms.for_release(facts, release),)
        for arch in rule.when.arch or release.arches
        for build in terms.builds(arch)
    )
