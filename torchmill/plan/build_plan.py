"""Compute the plan of a cell, its number of jobs, and the digests of all that changes what it makes."""

import fnmatch
import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchmill.config.build import CPU, Build, Processor
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import wheel_places
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import OfficialPart, Rule, When
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError
from torchmill.core.lenient_paths import read_text
from torchmill.core.stat_cache import digest_data
from torchmill.core.units import format_bytes
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host
from torchmill.host.processor import processor_needs
from torchmill.plan import cuda_toolkit, published, shell_seal, wheel_name
from torchmill.plan.arch_choice import OFFICIAL
from torchmill.plan.build_options import NO_OPTIONS, PYPI, SWITCHED_OFF, SWITCHED_ON, Options
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_toolkit import CudaSelection
from torchmill.plan.local_gpus import is_local_list
from torchmill.plan.plan import (
    Command,
    OfficialComparison,
    Plan,
    PlannedCuda,
    PlannedTree,
    Shortfall,
)
from torchmill.plan.published_wheel import PublishedWheel
from torchmill.plan.rules import Case, rule_matches
from torchmill.plan.settings import refuse_settings, version_labels
from torchmill.plan.wheel_name import local_label
from torchmill.wheel.planned_wheel import PlannedWheel

_DIGEST = re.compile(r"[0-9a-f]{40,64}")
_CUDA = re.compile(r"^cuda\b.*= (?:None|'([\d.]+)')$", re.MULTILINE)  # in torch/version.py
INSTALLED = ".dist-info"  # ends the name of what records an installed package
_PYPI_HAS_CUDA = (
    "linux",
    "x86_64",
)  # where the wheels on PyPI are those of the release's `cuda_pypi`
PREPROCESSOR_BYTES = (
    128 * 2**20
)  # bytes: for files of torch 1.13.1 gcc 12's took 36 to 100 MiB, and ccache 6


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
    if is_within(
        package.off_spelling_releases, using.cell.release.version
    ):  # reads otherwise that a switch is off
        off = [
            old
            for new, old in package.off_spelling.items()
            if variables.get(new, "").upper() in SWITCHED_OFF
        ]
        variables |= dict.fromkeys(off, "1")
    return dict(sorted(variables.items()))


def _append_flags(
    variables: Mapping[str, str], rules: Iterable[Rule], user: Mapping[str, str]
) -> dict[str, str]:
    """Return what rules append to variables, and the user's own settings, whose flags come last."""
    flags: dict[str, list[str]] = {}
    for name, more in ((name, more) for rule in rules for name, more in rule.append.items()):
        flags.setdefault(name, [variables[name]] if name in variables else []).append(more)
    return {
        **user,
        **{
            name: " ".join([*said, *filter(None, [user.get(name)])]) for name, said in flags.items()
        },
    }


def compute_plan(
    facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None = None
) -> Plan:
    """Return the plan of a possible cell on a host, of the fetched `source` or else a complete git checkout.

    Raises ConfigError where options contradict the cell, ImpossibleBuildError where release or toolkit do.
    """
    build, release, package = cell.build, cell.release, facts.packages[cell.build.package]
    _refuse_idle(package, build, build.identifier(host.arch), options)
    using = cuda_toolkit.select_cuda(
        facts, cell, host, options, source.provider if source else "git"
    )
    rules = [one for one in package.rules if rule_matches(one.when, using.case)]
    named = wheel_name.name_source(release, source, modified=bool(options.patches))
    processor = _asked_processor(facts, build, options)
    rules += [_processor_rule(processor)] if processor else []
    version = _own_version(facts, cell, options, named.label)
    torch = base_version(facts, cell, options)
    own = source and (
        source.provider == "path" or source.commit not in {None, release.commit or source.commit}
    )
    usual = asks_for_usual_wheel(without_usual_list(facts, host, options)) and not own
    options = replace(options, arch_list=using.arch_list)
    need = int(largest_compile(facts, build, release.version).high)
    parallel = count_jobs(host.cores, usable_memory(host, options), need, options.jobs).count
    requires = "|".join(filter(None, [using.requires, *_partner_requirements(rules, release)]))
    stated = {"version": version, "torch": torch, "jobs": str(parallel), "requires": requires}
    variables = build_variables(facts, using, rules, options, stated)
    platform = wheel_name.promised_platform_tag(facts, build, host, variables, options.platform)
    kit, requirements = _requirements(rules, package, torch, options)
    patches = (
        *(f"{package.name}/{patch}" for rule in rules for patch in rule.patches),
        *options.patches,
    )
    said = {
        *_sayings(rules, variables),
        *(f"lacking {name}" for name in using.case.lacking),
        f"platform={platform}",
    }
    missed = [] if package.after else list(_missed_parts(facts, using.case, said))
    folders = tuple(
        folder
        for rule in rules
        if variables.keys().isdisjoint(rule.unless)
        for folder in rule.folders
    )
    lender = options.torch_folder if package.after else None
    return Plan(
        identifier=build.identifier(host.arch),
        wheel=PlannedWheel(
            build=build,
            release=release,
            version=version,
            file_name=wheel_name.wheel_file_name(package, release, build, version, platform),
            platform_tag=platform,
            tag_is_upper_bound=options.platform == wheel_name.AUTO_PLATFORM
            and platform.startswith("manylinux"),
            processor=processor,
            torch=f"{package.after}=={torch}" if torch else None,
            torch_folder=find_installed(package.after, lender).parent
            if package.after and lender
            else None,
        ),
        source=named,
        tree=PlannedTree(
            kit=kit,
            patches=patches,
            user_patches=options.patches,
            preparation=_prepare_commands(patches, rules),
            required_folders=folders,
        ),
        cuda=PlannedCuda(using.cell.build.cuda, using.libraries, using.kept),
        variables=variables,
        shell_patterns=shell_seal.passing_patterns(host.system),
        requirements=requirements,
        commands=(_build_command(rules, package, source),),
        jobs=parallel,
        reasons=tuple(rule.reason for rule in rules if _explains(rule)),
        official=_compare_parts(
            missed,
            build.variant,
            published.find_published(facts, cell, host, using.arch_list) if usual else None,
        ),
    )


def _compare_parts(
    missed: Iterable[OfficialPart], variant: str, wheel: PublishedWheel | None
) -> OfficialComparison:
    """Return how a plan that misses some parts of the official wheel compares with it."""
    shortfalls = []
    differences = []
    for part in missed:
        if part.cost:
            cure = part.brings.format(variant=variant)
            shortfalls.append(Shortfall(part.name, part.cost, cure))
        else:
            differences.append(Shortfall(part.name, part.explained, ""))
    return OfficialComparison(tuple(shortfalls), tuple(differences), wheel)


def _own_version(facts: Facts, cell: Cell, options: Options, source: str) -> str:
    """Return the version of a wheel, whose label names the processor and the settings that it is made for."""
    processor = _asked_processor(facts, cell.build, options)
    labels = version_labels(options.settings)
    return wheel_name.wheel_version(facts, cell, options.label, source, processor, settings=labels)


def _refuse_idle(package: Package, build: Build, session: str, options: Options) -> None:
    """Raise ConfigError for an option that a session has no use for, and for a setting that would hide one."""
    refuse_settings(options.settings)
    if options.torch and not package.after:
        why = f"{session} builds {package.name} itself, against no other: leave the option out"
        raise ConfigError(f"--torch {options.torch}: {why}", code="torch-for-itself")
    versions = [
        name
        for name, text in package.version_variables.items()
        if "{version" in text or "{" not in text
    ]
    said = dict.fromkeys(versions, f"`--label {options.label}`")
    said |= dict.fromkeys(
        ("USE_CUDA", "FORCE_CUDA"), "the name of the session (`nox -l` has them all)"
    )
    said |= dict.fromkeys(("CUDA_HOME", "CUDA_PATH"), "`--toolkit`, or CUDA_HOME in the shell,")
    said["MAX_JOBS"] = (
        f"`--jobs {options.jobs or options.settings.get('MAX_JOBS')}`, which changes no wheel,"
    )
    if options.arch_list:
        said["TORCH_CUDA_ARCH_LIST"] = f"`--arch-list {options.arch_list}`"
    elif build.cuda is None:
        said["TORCH_CUDA_ARCH_LIST"] = "a session with CUDA"
    for name in said.keys() & options.settings:
        raise ConfigError(
            f"--set {name}: {said[name]} decides that: leave the setting out", code="two-settings"
        )


def _partner_requirements(rules: Iterable[Rule], release: Release) -> Iterator[str]:
    """Yield what pip is to install with a wheel; raise ConfigError where the release does not say which version."""
    for rule in rules:
        for text in rule.installs:
            try:
                yield text.format(**release.partners)
            except (LookupError, ValueError, AttributeError):
                wrong = f"{rule.name}: '{text}' names what [{release.package}.partners] of {release} does not"
                raise ConfigError(wrong, code="facts-invalid") from None


def without_usual_list(facts: Facts, host: Host, options: Options) -> Options:
    """Return options without a list that changes nothing here: that of the official build, or of the host's GPUs."""
    listed = options.arch_list
    official = listed is not None and listed.strip().lower() == OFFICIAL
    return (
        replace(options, arch_list=None)
        if official or is_local_list(facts, host, listed)
        else options
    )


def asks_for_usual_wheel(options: Options) -> bool:
    """Tell whether options leave a wheel as it is: its name, and how it is built, do not count."""
    usual = replace(
        options, label=NO_OPTIONS.label, jobs=None, memory=None, guard=True, network=False
    )
    return replace(usual, shard=None, parts=None, until=None) == NO_OPTIONS


def _asked_processor(facts: Facts, build: Build, options: Options) -> Processor | None:
    """Return the processor that a build is for; of another machine nobody asks what its compiler makes of a name."""
    if options.cpu is None or options.processor is not None:
        return options.processor
    if not (told := facts.arches[build.arch].cpu_option):
        message = f"--cpu {options.cpu}: this option works on Linux only: leave it out"
        raise ConfigError(message, code="processor-not-told")
    return Processor(
        options.cpu, (f"{told}={options.cpu}",), processor_needs(build.arch, options.cpu)
    )


def _processor_rule(processor: Processor) -> Rule:
    flags, needs = " ".join(processor.flags), ", ".join(processor.needs) or "?"
    only = ", and nobody else's means the same" if processor.name.startswith("native") else ""
    reason = f"it is compiled for this processor, {processor.name}{only}, and runs only where one has {needs}"
    return Rule("--cpu", When(), reason, append={"CFLAGS": flags, "CXXFLAGS": flags})


def _sayings(rules: Iterable[Rule], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield what official parts are told by: variables, requirements and system packages."""
    for name, value in variables.items():
        word = value.upper()
        number = "1" if word in SWITCHED_ON else "0" if word in SWITCHED_OFF else value
        yield from {
            f"{name}={value}",
            f"{name}={number}",
        }  # by which parts know a switch, however it is spelled
    for rule in rules:
        yield from rule.requires
        yield from (name for names in rule.system_packages.values() for name in names)


def _missed_parts(facts: Facts, case: Case, said: Collection[str]) -> Iterator[OfficialPart]:
    """Yield what the official wheel has and one of such a plan, which says all this, has not."""

    def matched(patterns: Iterable[str]) -> bool:
        return any(fnmatch.filter(said, pattern) for pattern in patterns)

    for part in facts.official:
        has = (not part.shown or matched(part.shown)) and not matched(part.unless)
        if rule_matches(part.when, case) and not has:
            yield part


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

    The bounds of all rules are joined. Raises ConfigError for a line that is no requirement.
    """
    merged: dict[str, Requirement] = {}
    for text, where in ((text, rule.name) for rule in rules for text in rule.requires):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            wrong = f"{where}: '{text}' is not a requirement, such as 'numpy<2' (PEP 508)"
            raise ConfigError(wrong, code="facts-invalid") from None
        known = merged.setdefault(canonicalize_name(requirement.name), requirement)
        known.specifier &= requirement.specifier
    kit = [str(merged.pop(name)) for name in map(canonicalize_name, package.kit) if name in merged]
    lines = [str(requirement) for requirement in merged.values()]
    if package.after and torch and options.torch_folder is None:
        lines.append(base_pip_requirement(package.after, torch, options))
    return tuple(kit), tuple(lines)


def _prepare_commands(patches: Iterable[str], rules: Iterable[Rule]) -> tuple[Command, ...]:
    """Return the commands that run once in a fresh tree: patches first."""
    apply = ("git", "apply", "--whitespace=nowarn")
    applied = (
        Command(f"patch {one.rpartition('/')[2]}", (*apply, f"${{patches}}/{one}"))
        for one in patches
    )
    return (*applied, *(Command(argv[0], argv) for rule in rules for argv in rule.prepare))


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
        argv = (
            "${python}",
            "setup.py",
            "bdist_wheel",
            "--compression",
            "stored",
            "--dist-dir",
            "${raw}",
        )
    return Command("build the wheel", argv)


def base_version(facts: Facts, cell: Cell, options: Options) -> str | None:
    """Return the exact version of the package that a dependent one is built against, None for the base.

    Raises ConfigError where what is given is of another release, or has another CUDA than the cell.
    """
    package, build = facts.packages[cell.build.package], cell.build
    if package.after is None or cell.release.torch is None:
        return None
    base = find_release(facts, package.after, cell.release.torch)
    system = facts.arches[build.arch].system
    if options.torch is None:
        source = wheel_name.name_source(base, None, modified=False)
        label = local_label(
            build, system, options.label, source.label, _asked_processor(facts, build, options)
        )
        return base.version + label
    version, has = base.version, build.variant
    if options.torch != PYPI:
        version, has = _given_version(package.after, build, Path(options.torch))
    else:
        own = f"cu{base.cuda_pypi.replace('.', '')}" if base.cuda_pypi else "another CUDA"
        there = (one for one in (own, CPU) if _is_on_pypi(facts, base, one, build.arch))
        has = own if (system, build.arch) == _PYPI_HAS_CUDA else next(there, build.variant)
    if Version(version).release != Version(base.version).release:
        select = f"invoke fetch --tag v{Version(version).base_version} --package {package.name}"
        why = f"that is {base.package} {version}, and {base} is selected: `{select}` selects its release"
        raise ConfigError(f"--torch {options.torch}: {why}", code="torch-of-another-release")
    if build.cuda and has not in {"", build.variant}:
        why = f"{base} there is built for {has}, and not for {build.variant}: build for that, or omit --torch"
        raise ConfigError(f"--torch {options.torch}: {why}", code="torch-cuda-mismatch")
    return version


def _is_on_pypi(facts: Facts, base: Release, variant: str, arch: str) -> bool:
    """Tell whether the index that pip asks by itself is known to have wheels of a variant for a machine."""
    return any(one.default for one in wheel_places(facts, base, variant, arch))


def _given_version(base: str, build: Build, place: Path) -> tuple[str, str]:
    """Return the version of a wheel, or of what is installed, and its variant, "" where it does not say.

    Raises ConfigError for another package, or one for another Python or machine.
    """
    with suppress(InvalidWheelFilename, InvalidVersion):
        if place.suffix == ".whl":
            name, version, _, found = parse_wheel_filename(place.name)
            tags = [str(tag) for tag in found if name == base]
            said, text = None, str(version)
        else:
            info = find_installed(base, place)
            version = Version(text := info.name.removesuffix(INSTALLED).partition("-")[2])
            tags = re.findall(r"(?m)^Tag: (.+)$", read_text(info / "WHEEL"))
            said = _CUDA.search(read_text(info.parent / base / "version.py"))
        if any(
            tag.startswith(wheel_name.python_tag(build.python) + "-") and tag.endswith(build.arch)
            for tag in tags
        ):
            label = (
                (version.local or "").partition(".")[0]
                if said is None
                else f"cu{said[1]}"
                if said[1]
                else "cpu"
            )
            return text, label.replace(".", "") if re.fullmatch(r"cpu|cu[\d.]+", label) else ""
    why = f"this is no {base} for Python {build.python}, {build.arch}: give a wheel or an environment of it, or PyPI"
    raise ConfigError(f"--torch {place}: {why}", code="no-such-wheel")


def find_installed(base: str, folder: Path) -> Path:
    """Return the .dist-info of a package in an environment, or in a folder of packages; raise ConfigError for none."""
    places = (folder, *folder.glob("lib/python*/*-packages"), *folder.glob("lib/site-packages"))
    whole = (
        place for place in places if (place / base).is_dir()
    )  # not where it is somebody's tree, "editable"
    found = {info.resolve() for place in whole for info in place.glob(f"{base}-*{INSTALLED}")}
    if len(found) != 1:
        raise ConfigError(
            f"--torch {folder}: {base} is there {len(found)} times, not once", code="no-such-wheel"
        )
    return found.pop()


def base_pip_requirement(base: str, version: str, options: Options) -> str:
    """Return what pip installs, to build against it, of the package `base`.

    To pip "==" means any local label too, and it prefers those: "===" is PyPI's very wheel.
    """
    return f"{base}==={version}" if options.torch == PYPI else options.torch or f"{base}=={version}"


def tree_inputs(
    plan: Plan, source: Source, patches: Path, machine_inputs: Mapping[str, str]
) -> dict[str, str]:
    """Return, by name, all that is the same for every interpreter that a tree can serve.

    `machine_inputs` names what the machine puts in: compilers, a toolkit, variables that are the user's.
    """
    inputs = {f"setting {name}": value for name, value in plan.switches.items()}
    inputs["build tools"] = ", ".join(plan.tree.kit)
    inputs["patches"] = ", ".join(plan.tree.patches)
    for patch in plan.tree.patches:
        content = (patches / plan.tree.user_patches.get(patch, patch)).read_bytes()
        inputs[f"patch {patch}"] = hashlib.sha256(content).hexdigest()
    inputs["preparation"] = "; ".join(shlex.join(command.argv) for command in plan.tree.preparation)
    inputs["source"] = f"{source.provider} {source.identity}"
    inputs |= {f"submodule {path}": commit for path, commit in source.submodules.items()}
    return inputs | {f"machine's {name}": value for name, value in machine_inputs.items()}


def tree_key(inputs: Mapping[str, str]) -> str:
    """Return the digest of a tree's inputs, which names it."""
    return digest_data(dict(inputs))


def describe_changed_inputs(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what differs between the inputs of two trees: "setting USE_MPI (1, was 0)". Digests are not shown."""
    changes = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is None or new is None:
            changes.append(f"{name} ({'new' if old is None else 'gone'})")
        elif _DIGEST.fullmatch(new) or _DIGEST.fullmatch(old):
            changes.append(name)
        else:
            changes.append(f"{name} ({new or 'none'}, was {old or 'none'})")
    return changes


def environment_key(plan: Plan, tools: Mapping[str, str]) -> str:
    """Return a digest of what an environment is made for.

    `tools` names the interpreter, and the wheel that a dependent package is built against.
    """
    return digest_data(
        {"python": plan.build.python, "requirements": plan.requirements, "tools": dict(tools)}
    )


def compile_key(tree: str, environment: str, plan: Plan) -> str:
    """Return a digest of all that can change what one interpreter's build compiles in a tree."""
    commands = [command.argv for command in plan.commands]
    return digest_data({"tree": tree, "environment": environment, "compile": commands})


@dataclass(frozen=True, slots=True)
class JobCount:
    """A number of jobs and what it follows from."""

    count: int
    reason: str


def largest_compile(facts: Facts, build: Build, version: str) -> CostRange:
    """Return the bytes that the largest compiles of a build of a release take, low and high.

    Where no table says so, it is the package's memory per job.
    """
    found = [
        peak.memory
        for peak in facts.peaks
        if peak.package == build.package
        and is_within(peak.release, version)
        and is_within(peak.cuda, build.cuda)
    ]
    per_job = float(facts.packages[build.package].memory_per_job)
    return max(found, key=lambda memory: memory.high, default=CostRange(per_job / 2, per_job))


def guarded_slots(cores: int, memory: int) -> int:
    """Return how many compilers a guarded build may start, within `memory` in bytes.

    Most of them wait: the more there are to choose from, the better those that run fit together. But each may
    be at its preprocessor, which no gate holds where a cache asks for it.
    """
    return max(1, min(4 * cores + 2, memory // PREPROCESSOR_BYTES))


def count_jobs(cores: int, memory: int, per_job: int, options_jobs: int | None = None) -> JobCount:
    """Return the jobs that `cores` and `memory` carry, at least one; what a user asks for wins.

    `memory` and `per_job`, what the largest compiler takes, are in bytes.
    """
    carried = memory // per_job if per_job > 0 else cores
    room = f"{format_bytes(memory)} of memory at {format_bytes(per_job)} a job"
    if options_jobs is not None:
        count = max(1, options_jobs)
        excess = f", more than the {carried} that {room} carries" if count > carried else ""
        return JobCount(count, f"{count} as asked{excess}")
    if carried < 1:
        return JobCount(1, f"1, the least possible, although {room} is short")
    if carried < cores:
        return JobCount(
            carried, f"{carried} because of memory ({room}) though there are {cores} cores"
        )
    return JobCount(
        max(1, cores), f"{max(1, cores)} because of the cores ({room} would carry {carried})"
    )
