"""Check the system packages that the rules of a build name."""

from collections.abc import Iterator, Mapping, Sequence

from torchmill.config import distributions
from torchmill.config.release_lookup import selecting_tag
from torchmill.config.rule import Rule
from torchmill.host.host import Host
from torchmill.plan import system_packages
from torchmill.plan.doctor.cure_command import is_command
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict, with_cures
from torchmill.plan.doctor.package_cures import host_manager, package_cure

_PACKAGES = "system packages"


def check_packages(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the system packages that the rules of a build name.

    A package is vital if it has a library that the provider's source leaves out. Of the other
    packages, those that the distribution is not known to have do not count as missing: a build
    finds the same elsewhere, or does without.
    """
    host = context.host
    manager = host_manager(host)
    rules = _rules_by_package(context, manager)
    if not rules or manager is None:
        return
    needed = f"{len(rules)} {'package' if len(rules) == 1 else 'packages'} of {manager}"
    supply = system_packages.find_supply(manager, host.platform.distribution, rules)
    names: list[str] = []  # as the distribution calls the packages
    vital: set[str] = set()
    for requested_name, rule in rules.items():
        name = supply.choices.get(requested_name, requested_name)
        names.append(name)
        if rule.when.provider:
            vital.add(name)
    available = {*supply.choices.values(), *vital}
    missing = [
        name for name in names if name in available and not host.packages.installed.get(name)
    ]
    if not missing:
        is_recorded = distributions.find_recorded_release(host.platform.distribution) is not None
        if is_recorded or manager not in system_packages.NEEDS_ROOT:
            yield _available_packages(host, manager, names, available, needed)
        else:
            yield _unrecorded_packages(host, names, needed)
    elif any(name not in host.packages.installed for name in missing):
        yield Finding(_PACKAGES, "not described", needed, "unknown")
    else:
        yield _missing_packages(context, missing, vital, needed)


def _rules_by_package(context: CheckContext, manager: str | None) -> Mapping[str, Rule]:
    """Return the system packages of a build, each with the rule that names it."""
    rules: dict[str, Rule] = {}
    for rule in context.constraints.rules(context.compiler):
        for name in rule.system_packages.get(system_packages.naming_manager(manager), ()):
            rules[name] = rule
    return rules


def _available_packages(
    host: Host, manager: str, names: Sequence[str], available: set[str], needed: str
) -> Finding:
    """Return the finding on a host that has every available package.

    `names` are those of all packages, and `available` those that the distribution has.
    """
    unrecorded = ", ".join(name for name in names if name not in available)
    if not unrecorded:
        return Finding(_PACKAGES, "all of them", needed, "ok")
    because = f"{host.platform.distribution or manager} is not known to have {unrecorded}"
    return Finding(_PACKAGES, "all that it is known to have", needed, "ok", because=because)


def _unrecorded_packages(host: Host, names: Sequence[str], needed: str) -> Finding:
    """Return the finding on the packages of a distribution that the facts do not have.

    All that is known of such a distribution is which packages are installed.
    """
    if all(host.packages.installed.get(name) for name in names):
        return Finding(_PACKAGES, "all of them", needed, "ok")
    place = system_packages.describe_place(host_manager(host), host.platform.distribution)
    state = f"not known which of them {place} has"
    because = f"they are usually named {', '.join(names)}"
    return Finding(_PACKAGES, state, needed, "unknown", because=because)


def _missing_packages(
    context: CheckContext, missing: Sequence[str], vital: set[str], needed: str
) -> Finding:
    """Return the finding on packages that are known to be missing."""
    verdict: Verdict = "warning"
    because = "the build goes on if it finds the same elsewhere"
    if vital.intersection(missing):
        verdict = "failure"
        because = "the source has no copies of these"
    cure = package_cure(context.host, missing)
    if is_command(cure):
        # `invoke deps` installs them together with all others that the release needs.
        cure = f"invoke deps --tag {selecting_tag(context.facts, context.cell.release)}"
    finding = Finding(_PACKAGES, f"no {', '.join(missing)}", needed, verdict, because=because)
    return with_cures(finding, [cure])
