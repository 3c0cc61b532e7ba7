"""Compute what a build will do, from facts and a host, without touching anything."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from torchwright import capabilities
from torchwright.errors import ConfigError
from torchwright.guard.jobs import jobs, largest
from torchwright.matrix import Cell, find_release
from torchwright.model import (
    Build,
    Command,
    Facts,
    Host,
    Options,
    Package,
    Plan,
    Rule,
    Source,
)
from torchwright.rules import case, matches, within

LABELS = ("official", "git", "none")
PRE_ABI_CHANGE = Version("3.8")  # PEP 3149's "m" ended with it


def compute(facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None = None) -> Plan:
    """Return the plan of a possible cell on a host.

    `source` is what was fetched; without it the plan assumes a complete git checkout.
    Raises ConfigError when the options contradict each other or the cell, ImpossibleBuildError when the
    toolkit or the release does not take the compute capabilities.
    """
    build, release = cell.build, cell.release
    package = facts.packages[build.package]
    system = facts.arches[build.arch].system
    known = case(facts, build, release, source.provider if source else "git", host.compiler)
    rules = [one for one in package.rules if matches(one.when, known)]
    commit = source.commit if source else release.commit
    version = release.version + local_label(build, system, options.label, commit)
    torch = _torch_version(facts, cell, system, options)
    options = replace(options, arch_list=capabilities.chosen(facts, cell, host, options.arch_list))
    parallel = _at_a_time(facts, cell, host, options)
    versions = {"version": version, "torch": torch}
    variables = _environment(facts, cell, rules, options, versions, parallel)
    platform_tag = _platform_tag(facts, build, host, variables.get("MACOSX_DEPLOYMENT_TARGET", "11.0"))
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
        wheel=f"{package.name}-{version}-{release.wheel_tag or python_tag(build.python)}-{platform_tag}.whl",
        platform_tag=platform_tag,
        reasons=tuple(rule.reason for rule in rules if _is_told(rule)),
        torch=f"{package.after}=={torch}" if torch else None,
    )


def _at_a_time(facts: Facts, cell: Cell, host: Host, options: Options) -> int:
    """Return how many compilers may run where nobody watches their memory."""
    need = int(largest(facts, cell.build, cell.release.version).high)
    return jobs(host.cores, usable_memory(host, options), need, options.jobs).count


def usable_memory(host: Host, options: Options) -> int:
    """Return the bytes that a build may use: what the host has, or less where a user says so."""
    return host.memory if options.memory is None else min(options.memory, host.memory)


def local_label(build: Build, system: str, label: str, commit: str | None) -> str:
    """Return "+cpu", "+git49444c3" or "": the local part of a version (PEP 440)."""
    if label not in LABELS:
        raise ConfigError(f"label '{label}' is unknown; it is one of {', '.join(LABELS)}")
    if label == "git":
        if commit is None:
            raise ConfigError("label 'git' needs the commit, which is not known: fetch the source first")
        return f"+git{commit[:7]}"
    # The official macOS wheels have no label, so a pin without one must fit ours too.
    return "" if label == "none" or system == "macos" else f"+{build.variant}"


def python_tag(python: str) -> str:
    """Return the interpreter and ABI tags: "3.10" -> "cp310-cp310", "3.7" -> "cp37-cp37m"."""
    number = python.rstrip("t")
    interpreter = "cp" + number.replace(".", "")
    if python.endswith("t"):
        return f"{interpreter}-{interpreter}t"
    flag = "m" if Version(number) < PRE_ABI_CHANGE else ""
    return f"{interpreter}-{interpreter}{flag}"


def _platform_tag(facts: Facts, build: Build, host: Host, macos: str) -> str:
    """Return the platform tag that is true of whatever this host links."""
    template = facts.arches[build.arch].platform_tag
    if "{glibc}" in template and host.glibc is None:
        return f"linux_{build.arch}"
    return template.format(glibc=(host.glibc or "").replace(".", "_"), macos=macos.replace(".", "_"))


def _torch_version(facts: Facts, cell: Cell, system: str, options: Options) -> str | None:
    """Return the exact version of torch that a dependent package is built against."""
    after = facts.packages[cell.build.package].after
    if after is None or cell.release.torch is None:
        return None
    if options.torch == "PyPI":
        return cell.release.torch
    if options.torch:
        return str(parse_wheel_filename(Path(options.torch).name)[1])
    base = find_release(facts, after, cell.release.torch)
    return base.version + local_label(cell.build, system, options.label, base.commit)


def _environment(  # noqa: PLR0917 - the terms of one sum
    facts: Facts,
    cell: Cell,
    rules: Iterable[Rule],
    options: Options,
    versions: Mapping[str, str | None],
    parallel: int,
) -> Mapping[str, str]:
    """Return the variables to set: facts first, rules in file order, the user's last."""
    package = facts.packages[cell.build.package]
    release = cell.release
    variables = {
        "PATH": "${kit}/bin:${venv}/bin:${PATH}" if package.kit else "${venv}/bin:${PATH}",
        "GIT_CEILING_DIRECTORIES": "${tree}",  # a build tree below another checkout must not read its HEAD
        "MAX_JOBS": str(parallel),
    }
    for name, value in package.version_variables.items():
        variables[name] = value.format(**versions)
    for rule in rules:
        variables |= rule.set
    if options.arch_list:
        variables["TORCH_CUDA_ARCH_LIST"] = options.arch_list
    user = {name: value.replace("$", "$$") for name, value in options.settings.items()}
    variables |= _appended(variables, rules, user)
    if within(package.off_spelling_releases, release.version):
        variables |= {
            old: "1" for new, old in package.off_spelling.items() if variables.get(new) in {"0", "OFF"}
        }
    return dict(sorted(variables.items()))


def _appended(variables: Mapping[str, str], rules: Iterable[Rule], user: Mapping[str, str]) -> dict[str, str]:
    """Return what rules append to variables, and the user's own settings, whose flags come last."""
    flags: dict[str, list[str]] = {}
    for name, more in ((name, more) for rule in rules for name, more in rule.append.items()):
        flags.setdefault(name, [variables[name]] if name in variables else []).append(more)
    joined = {name: " ".join([*said, *filter(None, [user.get(name)])]) for name, said in flags.items()}
    return {**user, **joined}


def _is_told(rule: Rule) -> bool:
    """Tell whether a plan says why: a rule changes sources or compilers' flags, or is for one provider."""
    return bool(rule.patches or rule.prepare or rule.append or rule.when.provider)


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
        from_wheel = options.torch not in {None, "PyPI"}
        lines.append(str(options.torch) if from_wheel else f"{package.after}=={torch}")
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
