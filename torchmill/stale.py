"""Find rules that do nothing."""

from dataclasses import replace

from torchmill.errors import ConfigError
from torchmill.matrix import Terms
from torchmill.model import Facts, Package, Rule
from torchmill.rules import axes, case, matches, within


def check(facts: Facts) -> None:
    """Raise ConfigError for every rule that no build it could shape matches: it is stale, or mistyped."""
    stale = [
        rule
        for package in facts.packages.values()
        for rule in package.rules
        if not _alive(facts, package, rule)
    ]
    if stale:
        lines = "\n".join(f"  {rule.name}: matches no build ({rule.reason})" for rule in stale)
        raise ConfigError(f"build_configs has rules without effect:\n{lines}")


def _alive(facts: Facts, package: Package, rule: Rule) -> bool:
    """Tell whether a rule matches a possible build, or, if it is a conflict, one that the axes support."""
    rest = axes(replace(rule.when, release=None))
    provider = rule.when.provider[0] if rule.when.provider else None
    return any(
        matches(rest, case(facts, build, release, provider)) and (rule.conflict or terms.allow(build))
        for release in facts.releases[package.name]
        if within(rule.when.release, release.version)
        for terms in (Terms.of(facts, release),)
        for arch in rule.when.arch or release.arches
        for build in terms.builds(arch)
    )
