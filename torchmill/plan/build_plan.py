"""Compute the plan of a cell: everything that a session will do, without touching anything.

Two ideas recur. The kit of a package are the tools of its build, such as cmake, that serve every
interpreter and so are installed once beside a source tree. A wheel is usual if upstream would make
the same, so that a published wheel can replace a build.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.build import Processor
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.rule import Rule, When
from torchmill.core.errors import ConfigError
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host
from torchmill.plan import crossing, cuda_toolkit, exposure, published, shell_seal, wheel_name
from torchmill.plan.arch_choice import OFFICIAL
from torchmill.plan.base_package import base_pip_requirement, base_version, installed_base
from torchmill.plan.build_options import NO_OPTIONS, PYPI, Options
from torchmill.plan.build_variables import (
    build_variables,
    partner_requirements,
    refuse_idle_options,
)
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_toolkit import CudaSelection
from torchmill.plan.debug_info import debug_rule
from torchmill.plan.job_count import count_jobs, largest_compile, usable_memory
from torchmill.plan.local_gpus import is_local_list
from torchmill.plan.official_parts import missed_parts, split_missed
from torchmill.plan.plan import (
    Command,
    OfficialComparison,
    Plan,
    PlannedCuda,
    PlannedTree,
    Shortfall,
)
from torchmill.plan.rules import rule_matches
from torchmill.plan.settings import version_labels
from torchmill.wheel.planned_wheel import PlannedWheel


def compute_plan(
    facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None = None
) -> Plan:
    """Return the plan of a possible cell on a host.

    `source` is the fetched source tree; None plans for a complete git checkout. Raises ConfigError
    if options contradict the cell, ImpossibleBuildError if the release or the toolkit does not
    allow what they ask for.
    """
    build = cell.build
    host = crossing.building_host(facts, build, host)
    release = cell.release
    package = facts.packages[build.package]
    identifier = build.identifier(host.arch)
    refuse_idle_options(package, build, identifier, options)
    # Until a source is fetched, the plan is for what git would bring.
    provider = source.provider if source else "git"
    selection = cuda_toolkit.select_cuda(facts, cell, host, options, provider)
    rules = _rules_that_count(package, selection, options)
    is_modified = bool(options.patches) or exposure.has_unproven_fix(rules)
    source_name = wheel_name.name_source(release, source, modified=is_modified)
    processor = wheel_name.requested_processor(facts, build, options)
    if processor:
        rules.append(_processor_rule(processor))
    if options.debug_info:
        rules.append(debug_rule(package, identifier, host.system, options, _variables_of(rules)))
    version = wheel_name.wheel_version(
        facts,
        cell,
        options.label,
        source_name.label,
        processor,
        settings=version_labels(options.settings),
    )
    torch = base_version(facts, cell, options)
    largest = largest_compile(facts, build, release.version)
    memory = usable_memory(host, options)
    jobs = count_jobs(
        host.resources.cores, memory=memory, per_job=int(largest.high), requested=options.jobs
    ).count
    wheel_requirements = [selection.requires, *partner_requirements(rules, release)]
    template_values = {
        "version": version,
        "torch": torch,
        "jobs": str(jobs),
        # The separator that setup.py of torch expects in PYTORCH_EXTRA_INSTALL_REQUIREMENTS.
        "requires": "|".join(filter(None, wheel_requirements)),
    }
    # The user may write "official" or names of architectures; compilers read numbers alone.
    resolved_options = replace(options, arch_list=selection.arch_list)
    if host.crosses:
        crossing.require_torch(identifier, options)
        crossing.refuse_libraries_of_servers(facts, selection.cell, selection.arch_list)
    variables = build_variables(
        facts, selection, rules, resolved_options, template_values, crosses=bool(host.crosses)
    )
    wheel = _plan_wheel(
        facts, cell, host, options, version=version, torch=torch, variables=variables
    )
    kit, requirements = _split_requirements(rules, package)
    # An environment that borrows its torch from a folder must not install another.
    if package.after and torch and options.torch_folder is None:
        base_torch = torch
        base_options = options
        if host.crosses:
            # A wheel that the user names is the target's: this machine gets PyPI's of that release.
            base_torch = Version(torch).public
            base_options = replace(options, torch=PYPI)
        requirements.append(base_pip_requirement(package.after, base_torch, base_options))
    shortfalls, differences = _missed_parts(facts, selection, rules, variables, wheel.platform_tag)
    nearest = None
    if _is_usual_build(facts, cell, host, options, source):
        nearest = published.find_published(facts, cell, host, selection.arch_list)
    return Plan(
        identifier=identifier,
        wheel=wheel,
        source=source_name,
        tree=_plan_tree(package, rules, kit, variables, options),
        cuda=PlannedCuda(selection.cell.build.cuda, selection.libraries, selection.provisioned),
        variables=variables,
        shell_patterns=shell_seal.passing_patterns(host.system),
        requirements=tuple(requirements),
        commands=(_build_command(rules, package, source),),
        jobs=jobs,
        reasons=tuple(rule.reason for rule in rules if _is_explained(rule)),
        official=OfficialComparison(shortfalls, differences, nearest),
        target_torch=_target_torch(package, torch, host, options),
        vulnerabilities=exposure.assess(facts, package.name, release.version, rules, variables),
    )


def _rules_that_count(package: Package, selection: CudaSelection, options: Options) -> list[Rule]:
    """Return the rules whose conditions hold, without fixes that `--secure` leaves out."""
    matching = [rule for rule in package.rules if rule_matches(rule.when, selection.case)]
    return exposure.chosen_rules(matching, options.secure)


def _target_torch(package: Package, torch: str | None, host: Host, options: Options) -> str | None:
    """Return the requirement by which pip installs the torch of the target; None for other builds.

    A build that is crossed runs the torch of this machine, and links that of the target.
    """
    if not host.crosses or package.after is None or torch is None:
        return None
    if options.torch_wheel:
        return str(options.torch_wheel)
    return base_pip_requirement(package.after, torch, replace(options, torch=PYPI))


def _plan_wheel(
    facts: Facts,
    cell: Cell,
    host: Host,
    options: Options,
    *,
    version: str,
    torch: str | None,
    variables: Mapping[str, str],
) -> PlannedWheel:
    """Return the wheel that a build makes.

    `version` is its own; `torch` is the version that it is built against, None for torch itself.
    """
    package = facts.packages[cell.build.package]
    tag = wheel_name.promised_platform_tag(facts, cell.build, host, variables, options.platform)
    file_name = wheel_name.wheel_file_name(package, cell.release, cell.build, version, tag)
    torch_folder = None
    if package.after and options.torch_folder:
        torch_folder = installed_base(package.after, options).dist_info.parent
    return PlannedWheel(
        build=cell.build,
        release=cell.release,
        version=version,
        file_name=file_name,
        platform_tag=tag,
        # A wheel that uses no new symbols of the machine's glibc gets an older manylinux tag when
        # it is repaired. Tags of other systems are final.
        tag_is_upper_bound=(
            options.platform == wheel_name.AUTO_PLATFORM and tag.startswith("manylinux")
        ),
        processor=wheel_name.requested_processor(facts, cell.build, options),
        torch=f"{package.after}=={torch}" if torch else None,
        torch_folder=torch_folder,
    )


def _processor_rule(processor: Processor) -> Rule:
    """Return the rule by which everything is compiled for the processor that `--cpu` names."""
    flags = " ".join(processor.flags)
    name = processor.name
    if name.startswith("native"):
        name += ", a name that means another processor on another machine"
    needed = f"with {', '.join(processor.needs)}" if processor.needs else "like it"
    reason = f"it is compiled for the processor {name}, and runs only on processors {needed}"
    return Rule(
        name="--cpu",
        when=When(),
        reason=reason,
        append={"CFLAGS": flags, "CXXFLAGS": flags},
    )


def _variables_of(rules: Iterable[Rule]) -> set[str]:
    """Return the names of the variables that rules set or append to."""
    names: set[str] = set()
    for rule in rules:
        names.update(rule.set)
        names.update(rule.append)
    return names


def _missed_parts(
    facts: Facts,
    selection: CudaSelection,
    rules: Sequence[Rule],
    variables: Mapping[str, str],
    platform_tag: str,
) -> tuple[tuple[Shortfall, ...], tuple[Shortfall, ...]]:
    """Return the parts of the official wheel that a plan lacks, in two groups.

    First those that the user could have, then those that torchmill's wheels lack on purpose. Both
    are empty for other packages than torch, whose parts are not recorded.
    """
    build = selection.cell.build
    if facts.packages[build.package].after:
        return (), ()
    missed = missed_parts(facts, selection.case, rules, variables, platform_tag)
    return split_missed(missed, build.variant)


def _is_usual_build(
    facts: Facts, cell: Cell, host: Host, options: Options, source: Source | None
) -> bool:
    """Tell whether a build makes a wheel such as upstream's, so that a published one might do."""
    if not asks_for_usual_wheel(_without_usual_list(facts, cell, host, options)):
        return False
    if source is None:
        return True
    if source.provider == "path":  # a folder of the user, who may have changed it
        return False
    release_commit = cell.release.proof.commit
    # A commit that is not recorded, or not proven, is taken to be the release's.
    if not source.commit or not release_commit:
        return True
    return source.commit == release_commit


def _without_usual_list(facts: Facts, cell: Cell, host: Host, options: Options) -> Options:
    """Return options without a list of compute capabilities that a published wheel may serve.

    These are the official build's list, and the list of the host's GPUs.
    """
    arch_list = options.arch_list
    is_official = arch_list is not None and arch_list.strip().lower() == OFFICIAL
    if is_official or is_local_list(facts, cell, host, options):
        return replace(options, arch_list=None)
    return options


def asks_for_usual_wheel(options: Options) -> bool:
    """Tell whether options leave the contents of a wheel as they are by default.

    The label of its version, and options for how it is built, do not count; nor does the torch on
    PyPI, which upstream builds against too. A platform tag of `--plat` does.
    """
    torch = None if options.torch == PYPI else options.torch
    # Without any patches, the wheel is even more like upstream's.
    secure = NO_OPTIONS.secure if options.secure == "none" else options.secure
    content_options = replace(
        options,
        label=NO_OPTIONS.label,
        torch=torch,
        jobs=None,
        memory=None,
        guard=True,
        network=False,
        secure=secure,
        shard=None,
        parts=None,
        until=None,
    )
    return content_options == NO_OPTIONS


def _is_explained(rule: Rule) -> bool:
    """Tell whether a plan gives a rule's reason.

    It does if the rule changes sources or compiler flags, or applies only because of what this
    machine or this source has.
    """
    if rule.patches or rule.prepare or rule.append:
        return True
    when = rule.when
    return bool(when.provider or when.provisioned_libraries or when.absent_libraries or when.board)


def _split_requirements(
    rules: Iterable[Rule], package: Package
) -> tuple[tuple[str, ...], list[str]]:
    """Return the requirements of the kit, and those of each interpreter's environment.

    Each project has a single requirement, with the bounds of all rules, and the extras and the
    marker of the first. Raises ConfigError for a text that is not a requirement.
    """
    requirements: dict[str, Requirement] = {}  # by normalized name
    for rule in rules:
        for text in rule.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                raise ConfigError(
                    f"{rule.name}: '{text}' is not a requirement, such as 'numpy<2' (PEP 508)",
                    code="facts-invalid",
                ) from None
            name = canonicalize_name(requirement.name)
            if name in requirements:
                requirements[name].specifier &= requirement.specifier
            else:
                requirements[name] = requirement
    kit: list[str] = []
    for project in package.setup.kit:
        name = canonicalize_name(project)
        if name in requirements:
            kit.append(str(requirements.pop(name)))
    return tuple(kit), [str(requirement) for requirement in requirements.values()]


def _plan_tree(
    package: Package,
    rules: Sequence[Rule],
    kit: tuple[str, ...],
    variables: Mapping[str, str],
    options: Options,
) -> PlannedTree:
    """Return how the source tree is prepared: patches first, then the commands of rules."""
    patches: list[str] = []
    required_folders: list[str] = []
    for rule in rules:
        patches.extend(f"{package.name}/{patch}" for patch in rule.patches)
        # A folder of third-party code must not be empty, unless a variable makes the build use
        # the system's library in its place.
        if variables.keys().isdisjoint(rule.unless):
            required_folders.extend(rule.folders)
    # Last, because the user's patches apply to a source that has those of the rules.
    patches.extend(options.patches)
    commands: list[Command] = []
    for patch in patches:
        name = patch.rpartition("/")[2]
        argv = ("git", "apply", "--whitespace=nowarn", f"${{patches}}/{patch}")
        commands.append(Command(f"patch {name}", argv))
    for rule in rules:
        commands.extend(Command(argv[0], argv) for argv in rule.prepare)
    return PlannedTree(
        kit=kit,
        patches=tuple(patches),
        user_patches=options.patches,
        preparation=tuple(commands),
        required_folders=tuple(required_folders),
    )


def _build_command(rules: Sequence[Rule], package: Package, source: Source | None) -> Command:
    """Return the command that builds the wheel.

    It is `python setup.py` for setuptools, and PEP 517's front end for other build backends. The
    fetched source tells its backend. Without a source, the last rule that names a front end
    decides, as for variables.
    """
    front_end = "setup.py"
    if source is None:
        for rule in rules:
            front_end = rule.front_end or front_end
    elif source.build_backend and not source.build_backend.startswith("setuptools."):
        front_end = "pep517"
    if front_end == "pep517":
        argv = ["${python}", "-m", "build", "--wheel", "--no-isolation", "--outdir", "${raw}"]
        if package.setup.kit:
            # The kit is not in the environment, and the check looks for requirements only there.
            argv.append("--skip-dependency-check")
    else:
        argv = ["${python}", "setup.py", "bdist_wheel"]
        # The wheel is packed again when it is repaired: to compress it now would be wasted time.
        argv += ["--compression", "stored", "--dist-dir", "${raw}"]
    return Command("build the wheel", tuple(argv))
