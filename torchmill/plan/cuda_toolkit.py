"""Choose toolkit, host compiler and libraries of a build with CUDA together.

The variant of a cell ("cu118") names the toolkit whose driver its wheel needs. A newer toolkit of
the same major version can compile it in place of that one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.toolkit import Toolkit
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.host.host import Host
from torchmill.host.provisioned import MAGMA
from torchmill.plan import cuda_libraries, matrix
from torchmill.plan.arch_choice import resolve_arch_list
from torchmill.plan.arch_toolkits import find_toolkit
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.host_compiler import choose_host_compiler
from torchmill.plan.plan import Plan
from torchmill.plan.providers import board_kind
from torchmill.plan.rules import Case, CellConstraints, make_case


def choose_toolkit(facts: Facts, cell: Cell, requested: str | None, identifier: str) -> str | None:
    """Return the version of the toolkit that compiles a cell; None for a build without CUDA.

    It is the variant's toolkit, or another that the user requests with `--toolkit`. `identifier`
    is the cell's, for messages. Raises ConfigError for a version that is not known or cannot
    replace the variant's, ImpossibleBuildError for a version that the release does not build with.
    """
    usual = cell.build.cuda
    if requested is None or requested == usual:
        return usual
    if usual is None:
        raise ConfigError(
            f"--toolkit {requested}: {identifier} is built without CUDA; omit the option, or "
            "choose a CUDA build (`nox -l` lists them)",
            code="toolkit-without-cuda",
        )
    toolkit = find_toolkit(facts, "--toolkit", requested)
    if not _can_replace(toolkit.version, usual):
        # Toolkits are sorted by version, and the usual one can replace itself.
        newest = usual
        for candidate in facts.toolkits:
            if _can_replace(candidate.version, usual):
                newest = candidate.version
        usable = f"CUDA {usual}" if newest == usual else f"CUDA {usual} to {newest}"
        raise ConfigError(
            f"--toolkit {requested}: {identifier} must run where CUDA {usual} does, so only "
            f"{usable} can compile it; use that, or build the variant {toolkit.variant}",
            code="toolkit-cannot-replace",
        )
    reasons = _obstacles(facts, cell, toolkit)
    if reasons:
        raise ImpossibleBuildError(
            f"--toolkit {requested} cannot be used for {cell.release}: {'; '.join(reasons)}",
            code="toolkit-impossible",
        )
    return toolkit.version


def _can_replace(version: str, usual: str) -> bool:
    """Tell whether code that one toolkit compiles runs with the driver for another.

    It does if the toolkits are of one major version, and the first is not older.
    https://docs.nvidia.com/deploy/cuda-compatibility/
    """
    same_major = Version(version).major == Version(usual).major
    return same_major and Version(version) >= Version(usual)


def usable_toolkits(facts: Facts, cell: Cell, versions: Iterable[str]) -> list[str]:
    """Return the versions that can compile a cell in place of its own toolkit, oldest first.

    A cell without CUDA has none.
    """
    usual = cell.build.cuda
    if usual is None:
        return []
    candidates = set(versions) - {usual}
    usable: list[str] = []
    for toolkit in facts.toolkits:
        if toolkit.version not in candidates or not _can_replace(toolkit.version, usual):
            continue
        if not _obstacles(facts, cell, toolkit):
            usable.append(toolkit.version)
    return usable


def _obstacles(facts: Facts, cell: Cell, toolkit: Toolkit) -> tuple[str, ...]:
    """Return the reasons for which the matrix rejects a cell if the toolkit compiles it.

    The cell keeps its own variant.
    """
    compiled = cell_with_toolkit(cell, toolkit.version)
    return matrix.make_cell(facts, compiled.release, compiled.build).reasons


@dataclass(frozen=True, slots=True)
class CudaSelection:
    """The toolkit, compiler and libraries of a cell on a host.

    `libraries` are those that the build takes from the user's cache, `provisioned` are their
    folders there, and `case.provisioned_libraries` has their names. `case.absent_libraries` has the
    libraries that rules ask about, and that neither the host nor the cache has.
    """

    cell: Cell  # the version in `cell.build.cuda` is that of the toolkit that compiles it
    case: Case  # what the conditions of rules are compared with
    variables: Mapping[str, str]  # CC, CXX …: they name the compiler; {}: it is the usual one
    libraries: Mapping[str, str]  # versions from the user's cache: "cudnn" -> "8.5.0.96"
    provisioned: Mapping[str, str]  # their folders' names: "cudnn" -> "cudnn-8.5.0.96-cu11"
    arch_list: str | None  # TORCH_CUDA_ARCH_LIST; None: the build decides
    requires: str  # NVIDIA's packages that the wheel requires, with a bar between them; "": none


def select_cuda(
    facts: Facts, cell: Cell, host: Host, options: Options, provider: str | None
) -> CudaSelection:
    """Return the toolkit, compiler and libraries with which a cell is compiled.

    `provider` is the source's: "git", "debian". Raises ConfigError and ImpossibleBuildError
    if the options ask for a toolkit or compute capabilities that the cell cannot have.
    """
    cuda = choose_toolkit(facts, cell, options.toolkit, cell.build.identifier(host.arch))
    compiled = cell_with_toolkit(cell, cuda)
    constraints = CellConstraints(facts, compiled, provider)
    compiler, variables = choose_host_compiler(constraints, host, options.settings)
    arch_list = resolve_arch_list(facts, compiled, host, options.arch_list)
    settings = options.settings
    libraries = cuda_libraries.choose_libraries(constraints, host, settings, arch_list or "")
    provisioned = {
        name: cuda_libraries.library_key(name, version, str(cuda))
        for name, version in libraries.items()
    }
    magma = cuda_libraries.choose_magma(constraints, host, settings, arch_list or "")
    if magma is not None:
        libraries[MAGMA] = magma.version
        provisioned[MAGMA] = magma.name
    absent = cuda_libraries.lacking_libraries(constraints, host, settings)
    case = replace(
        make_case(facts, compiled.build, cell.release, provider, compiler),
        provisioned_libraries=frozenset(libraries),
        absent_libraries=absent - libraries.keys(),
        board=board_kind(host),
        another_toolkit=cuda != cell.build.cuda,
    )
    requires = cuda_libraries.required_nvidia_packages(constraints, libraries)
    return CudaSelection(
        cell=compiled,
        case=case,
        variables=variables,
        libraries=libraries,
        provisioned=provisioned,
        arch_list=arch_list,
        # The separator that setup.py of torch expects in PYTORCH_EXTRA_INSTALL_REQUIREMENTS.
        requires="|".join(requires),
    )


def cell_with_toolkit(cell: Cell, cuda: str | None) -> Cell:
    """Return a cell with the version of the toolkit that compiles it, for conditions of rules.

    The variant, and so the identifier, stays the same.
    """
    return replace(cell, build=replace(cell.build, cuda=cuda))


def cuda_placeholders(plan: Plan, host: Host) -> dict[str, str]:
    """Return the folders for ${cuda_home}, ${cudnn_home} and so on in a plan's commands.

    Folders that the host does not have are left out; a build without CUDA has none.
    """
    if plan.cuda.toolkit is None:
        return {}
    placeholders: dict[str, str] = {}
    home = host.toolkits.homes.get(plan.cuda.toolkit)
    if home:
        placeholders["cuda_home"] = home
    for library, name in plan.cuda.provisioned.items():
        folder = host.toolkits.provisioned.get(name)
        if folder:
            placeholders[f"{library}_home"] = folder
    return placeholders
