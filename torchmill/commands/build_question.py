"""The question that `invoke build` is given: for which GPUs, and which cells of a pattern."""

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from torchmill.config import arch_list
from torchmill.config.build import CPU, Build
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import (
    NamedGpu,
    find_gpus,
    gpus_of_host,
    known_capabilities,
    split_names,
)
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, newest_release
from torchmill.core.console import format_for_user
from torchmill.core.errors import ConfigError
from torchmill.core.exits import print_now
from torchmill.host.host import Host
from torchmill.host.installed_packages import find_installed
from torchmill.plan import cell_lookup, gpu_hosts, published
from torchmill.plan.base_package import base_version
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.cell import Cell
from torchmill.plan.cell_choice import BuildQuestion, is_pattern, running_python
from torchmill.plan.crossing import is_crossed
from torchmill.plan.package_request import (
    GivenTorch,
    choose_package_builds,
    torch_of_path,
)


def buildable_against(
    facts: Facts, question: BuildQuestion, cells: Sequence[Cell], options: Options
) -> Sequence[Cell]:
    """Return the cells of a pattern that can be built against the torch of --torch.

    Without --torch, that is all of them. The reasons against the others are printed. Raises the
    ConfigError of the first one if no cell is left. Cells that the user named one by one all stay:
    their sessions refuse them.
    """
    if options.torch is None or not any(is_pattern(name) for name in question.names):
        return cells
    fitting: list[Cell] = []
    refusals: list[ConfigError] = []
    for cell in cells:
        try:
            base_version(facts, cell, options)
        except ConfigError as error:
            refusals.append(error)
        else:
            fitting.append(cell)
    if not fitting:
        raise refusals[0]
    for line in dict.fromkeys(f"left out: {refusal}" for refusal in refusals):
        print_now(format_for_user(line))
    return fitting


# The environment that a shell has activated; conda names its own in another variable.
_ENVIRONMENT_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")


class AskedBuilds(NamedTuple):
    """What a user asks for, with the cells of packages in place of their names."""

    question: BuildQuestion
    options: Options  # with the torch that packages are built against
    release: Release | None  # of torch; None: any


def name_cells_of_packages(
    facts: Facts,
    question: BuildQuestion,
    packages: Mapping[str, Package],
    *,
    host: Host,
    options: Options,
    selected: Release | None,
    has_tag: bool,
    described: bool,
    arch: str,
) -> AskedBuilds:
    """Return a question with the names of cells in place of those of packages, "flash-attn".

    `packages` are those that the question names, and `arch` is the machine that they are for.
    Prints which torch they are built against: that in the user's environment, unless the host is a
    `described` machine, or the torch there is of another release than `selected` and the user named
    that by its tag (`has_tag`). Raises what `torch_of_path` and `choose_package_builds` raise.
    """
    if not packages:
        return AskedBuilds(question, options, selected)
    named_options = options
    if base_package(facts) not in packages.values() and not described:
        options = with_active_torch(facts, options, os.environ)
    torch: GivenTorch | None = None
    if options.torch not in {None, PYPI}:
        torch = torch_of_path(facts, options)
    if torch is not None and named_options.torch is None and has_tag and torch.release != selected:
        options = named_options
        torch = None
    builds = choose_package_builds(
        facts,
        list(packages.values()),
        question,
        host=host,
        arch=arch,
        torch=torch,
        selected=selected,
    )
    if builds.torch is not None:
        print_now(format_for_user(f"against {builds.torch}; --torch names another"))
        options = replace(options, torch=builds.torch.option)
    names = [name for name in question.names if name not in packages]
    names += builds.names
    question = question._replace(names=names, with_base=options.torch is None)
    # A torch of `--torch` that is of another release than the tag is refused with the cell.
    return AskedBuilds(question, options, selected if has_tag else builds.release)


def with_active_torch(facts: Facts, options: Options, environ: Mapping[str, str]) -> Options:
    """Return options with the torch that is installed in the user's environment as `--torch`.

    That is the environment which is active in the shell, or else that of this program. Without a
    torch there, and if `--torch` names one, the options are as before.
    """
    if options.torch is not None:
        return options
    folders = [environ.get(variable, "") for variable in _ENVIRONMENT_VARIABLES]
    for folder in (*folders, sys.prefix):
        installed = find_installed(base_package(facts).name, Path(folder)) if folder else ()
        if installed:
            return replace(options, torch=folder, torch_installed=installed)
    return options


def other_wheel_for(
    facts: Facts,
    capabilities: Sequence[Capability],
    host: Host,
    cells: Sequence[Cell],
    selected: Release | None,
) -> str:
    """Return a sentence on the official wheel of another release that would do for some GPUs.

    It is for the Pythons of all cells. "" if there is none, and if a release is selected: then the
    user wants that release.
    """
    if not capabilities or selected is not None:
        return ""
    machine = host
    if known_capabilities(facts, host.gpus.devices) != list(capabilities):
        machine = published.with_gpus(host, [capability.name for capability in capabilities])
    releases = facts.releases[base_package(facts).name]
    pythons = {cell.build.python for cell in cells}
    wheel = published.newest_published(facts, releases, machine, pythons=sorted(pythons))
    if wheel is None or not wheel.is_known_to_fit:
        return ""
    version = wheel.version.partition("+")[0]
    versions = {cell.release.torch_version for cell in cells}
    if version in versions:
        return ""
    is_older = all(Version(version) < Version(other) for other in versions)
    return f"of {'an older' if is_older else 'another'} release, {wheel}"


def choose_machine_of(
    facts: Facts,
    gpus: Sequence[NamedGpu],
    host: Host,
    names: Iterable[str],
    packages: Collection[Package],
) -> str:
    """Return the architecture that wheels for some GPUs are for: the host's, or that of a board.

    A board (a Jetson, a superchip) may have another one than `host`. Then the wheels of `packages`
    are crossed for it, which is printed. `names` are those of cells: if one of them ends in the
    board's architecture, the user has chosen it, and the host's is returned. Raises ConfigError if
    a wheel for the board cannot be crossed here. The message names what else serves: official
    wheels, and indexes for the board. Raises ImpossibleBuildError for a board that torchmill builds
    nothing for.
    """
    board = gpu_hosts.find_board(facts, gpus)
    if board is None or board.arch == host.arch:
        return host.arch
    gpu_hosts.refuse_unbuilt(facts, board, gpus[0])
    names = list(names)
    if any(name.endswith(f"-{board.arch}") for name in names):
        return host.arch
    if (
        packages
        and not names
        and all(_is_crossed(facts, package, host, board.arch) for package in packages)
    ):
        clause = gpu_hosts.board_clause(board, gpus[0])
        print_now(
            format_for_user(f"{clause}: this one, {host.arch}, builds for it by cross compilers")
        )
        return board.arch
    capabilities = [gpu.capability for gpu in gpus]
    machine = published.with_gpus(
        gpu_hosts.board_machine(board, host), [capability.name for capability in capabilities]
    )
    releases = facts.releases[base_package(facts).name]
    wheel = published.newest_published(facts, releases, machine)
    hints = []
    if wheel:
        hints.append(f"for such a machine, {wheel}")
    for index in gpu_hosts.board_indexes(facts, capabilities):
        hints.append(gpu_hosts.index_clause(index))
    sentences = "".join(f". {hint[0].upper()}{hint[1:]}" for hint in hints)
    listed = ", ".join(gpu.name for gpu in gpus)
    sample = f"wheel-{gpu_hosts.usual_python_and_cuda(gpus[0])}-{board.arch}"
    raise ConfigError(
        f"--gpu {listed}: {gpu_hosts.board_clause(board, gpus[0])}, and this one is {host.arch}: "
        f"run this there, or name cells for it, such as {sample}{sentences}",
        code="gpu-of-a-board",
    )


def _is_crossed(facts: Facts, package: Package, host: Host, arch: str) -> bool:
    """Tell whether the wheels of a package for an architecture are crossed on a host."""
    build = Build(package.name, package.session, running_python(), CPU, arch)
    return is_crossed(facts, build, host.arch)


def find_named_gpus(
    facts: Facts, texts: Sequence[str], host: Host, *, use_local: bool
) -> list[NamedGpu]:
    """Return the GPUs that texts of --gpu name: "RTX 3090", "8.6", "Ampere", or "local".

    "local" stands for the GPUs of `host`, and is the default with `use_local`, if it has any.
    Raises ConfigError for a name that is no GPU's.
    """
    names: list[str] = []
    for text in texts:
        names += split_names(text)
    if not names and use_local and host.gpus.devices:
        names = ["local"]
    gpus: list[NamedGpu] = []
    for name in names:
        if name in cell_lookup.REFUSED_VARIANTS:
            raise ConfigError(
                f"--gpu {name}: {cell_lookup.REFUSED_VARIANTS[name]}", code="no-variant"
            )
        if name == "local":
            gpus += gpus_of_host(facts, host.gpus.devices, host.unknown_gpus_reason)
        else:
            gpus += _gpus_called(facts, name)
    return gpus


def why_without_cuda(host: Host, cells: Iterable[Cell], *, described: bool) -> str:
    """Return a sentence on cells without CUDA that were chosen because no GPU is known; "" for others.

    `described` says that the host is another machine, described in a file.
    """
    if host.system == "macos" or any(cell.build.cuda for cell in cells):
        return ""
    reason = "no NVIDIA GPU is described" if described else "no NVIDIA GPU was found here"
    if host.unknown_gpus_reason:
        reason = f"cannot tell which GPUs are here ({host.unknown_gpus_reason})"
    return (
        f"without CUDA: {reason}; for a wheel with CUDA, name the GPU, as in `--gpu 8.6` or "
        "`--gpu 'RTX 3090'`, or the toolkit, as in `--cuda 12.8`"
    )


def _gpus_called(facts: Facts, name: str) -> Sequence[NamedGpu]:
    """Return the GPUs that a name may mean: a list of compute capabilities, or a product."""
    torch_version = newest_release(facts).torch_version
    targets, problems = arch_list.parse_arch_list(facts, name, torch_version)
    if problems and arch_list.UNDOTTED.fullmatch(name):
        # "86" is a capability without its dot: no product has such a name.
        raise ConfigError(f"--gpu {name}: {problems[0]}", code="invalid-arch-list")
    capabilities = [facts.capability(target.capability) for target in targets]
    gpus = [NamedGpu(capability.name, capability) for capability in capabilities if capability]
    if problems or len(gpus) < len(targets):
        return find_gpus(facts, name)
    return gpus
