"""Compute what a build will do, from facts and a host, without touching anything."""

from collections.abc import Iterable
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill import against, naming, switches
from torchmill.cuda import means
from torchmill.guard.jobs import jobs, largest
from torchmill.matrix import Cell
from torchmill.model import (
    Command,
    Facts,
    Host,
    Options,
    Package,
    Plan,
    Rule,
    Source,
)
from torchmill.rules import matches


def compute(facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None = None) -> Plan:
    """Return the plan of a possible cell on a host, of the fetched `source` or else a complete git checkout.

    Raises ConfigError where options contradict the cell, ImpossibleBuildError where release or toolkit do.
    """
    build, release, package = cell.build, cell.release, facts.packages[cell.build.package]
    using = means.of(facts, cell, host, options, source.provider if source else "git")
    rules = [one for one in package.rules if matches(one.when, using.case)]
    commit = source.commit if source else release.commit
    version = naming.version(facts, cell, options.label, commit)
    torch = against.version(facts, cell, options)
    options = replace(options, arch_list=using.arch_list)
    parallel = _at_a_time(facts, cell, host, options)
    stated = {"version": version, "torch": torch, "jobs": str(parallel), "requires": using.requires}
    variables = switches.environment(facts, using, rules, options, stated)
    platform = naming.promised(facts, build, host, variables, options.platform)
    kit, requirements = _requirements(rules, package, torch, options)
    return Plan(
        build=build,
        identifier=build.identifier(host.arch),
        release=release,
        commit=commit,
        version=version,
        set=variables,
        unset=package.unset,
        requirements=requirements,
        kit=kit,
        patches=tuple(f"{package.name}/{patch}" for rule in rules for patch in rule.patches),
        prepare=_prepare(package, rules),
        compile=(_front_end(rules, package, source),),
        jobs=parallel,
        wheel=naming.wheel(package, release, build, version, platform),
        platform_tag=platform,
        reasons=tuple(rule.reason for rule in rules if _is_told(rule)),
        torch=f"{package.after}=={torch}" if torch else None,
        toolkit=using.toolkit,
        libraries=using.libraries,
        kept=using.kept,
        computed=options.platform == naming.AUTO and platform.startswith("manylinux"),
    )


def _at_a_time(facts: Facts, cell: Cell, host: Host, options: Options) -> int:
    """Return how many compilers may run where nobody watches their memory."""
    need = int(largest(facts, cell.build, cell.release.version).high)
    return jobs(host.cores, usable_memory(host, options), need, options.jobs).count


def usable_memory(host: Host, options: Options) -> int:
    """Return the bytes that a build may use: what the host has, or less where a user says so."""
    return host.memory if options.memory is None else min(options.memory, host.memory)


def _is_told(rule: Rule) -> bool:
    """Tell whether a plan says why: a rule changes sources or compilers' flags, or is for what lies here."""
    here = rule.when.provider or rule.when.kept or rule.when.lacking
    return bool(rule.patches or rule.prepare or rule.append or here)


def _requirements(
    rules: Iterable[Rule], package: Package, torch: str | None, options: Options
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what pip installs for the build, for all interpreters and for one: a line per project.

    The bounds of all rules are joined.
    """
    merged: dict[str, Requirement] = {}
    for text in (text for rule in rules for text in rule.requires):
        requirement = Requirement(text)
        known = merged.setdefault(canonicalize_name(requirement.name), requirement)
        known.specifier &= requirement.specifier
    kit = [str(merged.pop(name)) for name in map(canonicalize_name, package.kit) if name in merged]
    lines = [str(requirement) for requirement in merged.values()]
    if package.after and torch:
        lines.append(against.requirement(package.after, torch, options))
    return tuple(kit), tuple(lines)


def _prepare(package: Package, rules: Iterable[Rule]) -> tuple[Command, ...]:
    """Return the commands that run once in a fresh tree: patches first."""
    ordered = list(rules)
    patches = [
        Command(
            f"patch {patch}",
            ("git", "apply", "--whitespace=nowarn", f"${{patches}}/{package.name}/{patch}"),
        )
        for rule in ordered
        for patch in rule.patches
    ]
    return (*patches, *(Command(argv[0], argv) for rule in ordered for argv in rule.prepare))


def _front_end(rules: Iterable[Rule], package: Package, source: Source | None) -> Command:
    """Return the command that builds the wheel: what the source asks for, else what the facts say."""
    stated = next((rule.front_end for rule in reversed(list(rules)) if rule.front_end), "setup.py")
    if source is not None:
        legacy = source.build_backend is None or source.build_backend.startswith("setuptools.")
        stated = "setup.py" if legacy else "pep517"
    argv: tuple[str, ...]
    if stated == "pep517":
        argv = ("${python}", "-m", "build", "--wheel", "--no-isolation", "--outdir", "${raw}")
        if package.kit:  # is not in the environment, where it would be looked for
            argv = (*argv, "--skip-dependency-check")
    else:
        # the wheel is packed again when it is repaired: compressing it here would be for nothing
        argv = ("${python}", "setup.py", "bdist_wheel", "--compression", "stored", "--dist-dir", "${raw}")
    return Command("build the wheel", argv)
