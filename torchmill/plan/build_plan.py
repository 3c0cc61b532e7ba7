"""Compute the plan of a cell: everything a session will do, without touching anything."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill.config.matrix import Cell
from torchmill.config.model import Command, Facts, Host, Options, Package, Plan, Rule, Source
from torchmill.config.rules import is_within, rule_matches
from torchmill.plan import base_requirement, cuda_selection, wheel_name
from torchmill.plan.cuda_selection import CudaSelection
from torchmill.plan.job_count import count_jobs, largest_compile


def build_variables(
    facts: Facts,
    using: CudaSelection,
    rules: Iterable[Rule],
    options: Options,
    stated: Mapping[str, str | None],
) -> Mapping[str, str]:
    """Return the variables to set: facts first, rules in file order, the user's last.

    `stated` is what version variables are made of, and the number of compilers as "jobs".
    """
    package = facts.packages[using.cell.build.package]
    variables = {
        "PATH": "${kit}/bin:${venv}/bin:${PATH}" if package.kit else "${venv}/bin:${PATH}",
        "GIT_CEILING_DIRECTORIES": "${tree}",  # a build tree below another checkout must not read its HEAD
        "MAX_JOBS": str(stated["jobs"]),
        **using.variables,
    }
    for name, value in package.version_variables.items():
        if text := value.format(**stated):
            variables[name] = text
    for rule in rules:
        variables |= rule.set
    if options.arch_list:
        variables["TORCH_CUDA_ARCH_LIST"] = options.arch_list
    user = {name: value.replace("$", "$$") for name, value in options.settings.items()}
    variables |= _append_flags(variables, rules, user)
    return dict(sorted((variables | _legacy_off_switches(package, using, variables)).items()))


def _append_flags(
    variables: Mapping[str, str], rules: Iterable[Rule], user: Mapping[str, str]
) -> dict[str, str]:
    """Return what rules append to variables, and the user's own settings, whose flags come last."""
    flags: dict[str, list[str]] = {}
    for name, more in ((name, more) for rule in rules for name, more in rule.append.items()):
        flags.setdefault(name, [variables[name]] if name in variables else []).append(more)
    joined = {name: " ".join([*said, *filter(None, [user.get(name)])]) for name, said in flags.items()}
    return {**user, **joined}


def _legacy_off_switches(
    package: Package, using: CudaSelection, variables: Mapping[str, str]
) -> dict[str, str]:
    """Return how an old release reads that a switch is off."""
    if not is_within(package.off_spelling_releases, using.cell.release.version):
        return {}
    return {old: "1" for new, old in package.off_spelling.items() if variables.get(new) in {"0", "OFF"}}


def compute_plan(
    facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None = None
) -> Plan:
    """Return the plan of a possible cell on a host, of the fetched `source` or else a complete git checkout.

    Raises ConfigError where options contradict the cell, ImpossibleBuildError where release or toolkit do.
    """
    build, release, package = cell.build, cell.release, facts.packages[cell.build.package]
    using = cuda_selection.select_cuda(facts, cell, host, options, source.provider if source else "git")
    rules = [one for one in package.rules if rule_matches(one.when, using.case)]
    commit = source.commit if source else release.commit
    version = wheel_name.wheel_version(facts, cell, options.label, commit)
    torch = base_requirement.base_version(facts, cell, options)
    options = replace(options, arch_list=using.arch_list)
    parallel = _unguarded_jobs(facts, cell, host, options)
    stated = {"version": version, "torch": torch, "jobs": str(parallel), "requires": using.requires}
    variables = build_variables(facts, using, rules, options, stated)
    platform = wheel_name.promised_platform_tag(facts, build, host, variables, options.platform)
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
        prepare=_prepare_commands(package, rules),
        compile=(_build_command(rules, package, source),),
        jobs=parallel,
        wheel=wheel_name.wheel_file_name(package, release, build, version, platform),
        platform_tag=platform,
        reasons=tuple(rule.reason for rule in rules if _explains(rule)),
        torch=f"{package.after}=={torch}" if torch else None,
        toolkit=using.toolkit,
        libraries=using.libraries,
        kept=using.kept,
        computed=options.platform == wheel_name.AUTO_PLATFORM and platform.startswith("manylinux"),
    )


def _unguarded_jobs(facts: Facts, cell: Cell, host: Host, options: Options) -> int:
    """Return how many compilers may run where nobody watches their memory."""
    need = int(largest_compile(facts, cell.build, cell.release.version).high)
    return count_jobs(host.cores, usable_memory(host, options), need, options.jobs).count


def usable_memory(host: Host, options: Options) -> int:
    """Return the bytes that a build may use: what the host has, or less where a user says so."""
    return host.memory if options.memory is None else min(options.memory, host.memory)


def _explains(rule: Rule) -> bool:
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
        lines.append(base_requirement.base_pip_requirement(package.after, torch, options))
    return tuple(kit), tuple(lines)


def _prepare_commands(package: Package, rules: Iterable[Rule]) -> tuple[Command, ...]:
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


def _build_command(rules: Iterable[Rule], package: Package, source: Source | None) -> Command:
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
