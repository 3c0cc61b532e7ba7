"""Builds that are crossed: compiled on this machine, by cross compilers, for another arch.

Everything that a build runs is of this machine, also the Python that runs setup.py, its torch and
nvcc. Only the compilers make code for the other arch, the *target*. Files that Python reads when it
starts make setup.py believe that it runs there. Packages with a setup.py of their own can be built
like that; a build by CMake is not crossed, and runs in a container of the other arch.
"""

from packaging.version import Version

from torchmill.config.arch_list import parse_checked_arch_list
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.host.crossing import crossed_arches, crossing_view, triplet
from torchmill.host.host import Host
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell

# The module with the values of sysconfig, which CPython looks up by this name:
# https://github.com/python/cpython/blob/3.13/Lib/sysconfig/__init__.py (_get_sysconfigdata_name)
SYSCONFIG_MODULE = "_sysconfigdata_torchmill"
# From this CUDA on, the libraries for Arm servers (SBSA) are those of boards as well. Orin was left
# out, and got CUDA 13 with JetPack 7.2: https://docs.nvidia.com/cuda/cuda-features-archive/index.html
# and https://developer.nvidia.com/blog/cuda-13-2-introduces-enhanced-cuda-tile-support-and-new-python-features/
FIRST_UNIFIED_CUDA = Version("13.0")


def can_be_crossed(facts: Facts, build: Build) -> bool:
    """Tell whether a build could be crossed on a machine of another arch."""
    package = facts.packages[build.package]
    return (
        package.after is not None
        and package.kind is not None
        and package.setup.compilers == "path"
        and build.arch in crossed_arches()
    )


def is_crossed(facts: Facts, build: Build, native: str) -> bool:
    """Tell whether a build is crossed on a machine of the arch `native`."""
    arch = facts.arches.get(native)
    is_linux = arch is not None and arch.system == "linux"
    return is_linux and native != build.arch and can_be_crossed(facts, build)


def building_host(facts: Facts, build: Build, host: Host) -> Host:
    """Return a host as a build sees it: with cross compilers alone if the build is crossed."""
    if host.crosses or not is_crossed(facts, build, host.arch):
        return host
    return crossing_view(host, build.arch)


def crossing_variables(build: Build) -> dict[str, str]:
    """Return the variables by which a setup.py believes that it runs on the target.

    The first two are CPython's own, which its build sets when it is cross compiled itself. The files
    in ${crossing} do the rest, and ${target} has the packages of the target.
    """
    return {
        "_PYTHON_HOST_PLATFORM": f"linux-{build.arch}",
        "_PYTHON_SYSCONFIGDATA_NAME": SYSCONFIG_MODULE,
        "PYTHONPATH": "${crossing}",
        "TORCHMILL_TARGET_MACHINE": build.arch,
        "TORCHMILL_TARGET_TRIPLET": triplet(build.arch),
        "TORCHMILL_TARGET_PACKAGES": "${target}",
    }


def require_torch(identifier: str, options: Options) -> None:
    """Raise ConfigError for a crossed build without --torch.

    Nothing here builds the torch of the target that it would be built against.
    """
    if options.torch is None:
        raise ConfigError(
            f"{identifier} is crossed, and needs a torch for both machines: add --torch PyPI, an "
            "environment of this machine that has torch, or a torch wheel for the other machine",
            code="crossed-without-torch",
        )


def refuse_libraries_of_servers(facts: Facts, cell: Cell, arch_list: str | None) -> None:
    """Raise ImpossibleBuildError for a board whose CUDA is not that of Arm servers.

    The libraries on PyPI for aarch64 are those of servers (SBSA).
    """
    cuda = cell.build.cuda
    if cuda is None or Version(cuda) >= FIRST_UNIFIED_CUDA:
        return
    for target in parse_checked_arch_list(facts, arch_list or ""):
        capability = facts.capability(target.capability)
        if capability is not None and capability.tegra:
            raise ImpossibleBuildError(
                f"code for {capability.name} ({capability.gpus[0]}) with CUDA {cuda}: it needs the "
                "CUDA of the board's JetPack, and the libraries for aarch64 on PyPI are those of "
                f"servers (SBSA): build on the board, or for CUDA {FIRST_UNIFIED_CUDA} and its JetPack",
                code="board-needs-own-cuda",
            )
