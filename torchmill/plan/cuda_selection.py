"""Choose toolkit, host compiler and libraries of a build with CUDA together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchmill.config import arch_list_check
from torchmill.config.matrix import Cell
from torchmill.config.model import Case, Facts, Host, Options, Plan
from torchmill.config.rules import make_case
from torchmill.host import provisioned
from torchmill.plan import cuda_libraries, cuda_toolkit
from torchmill.plan.constraints import CellConstraints


@dataclass(frozen=True, slots=True)
class CudaSelection:
    """With what a cell is compiled on a host; without CUDA it is what the host has."""

    cell: Cell  # its build's `cuda` is that of the toolkit that compiles it
    case: Case  # that rules are held against
    variables: Mapping[str, str]  # that choose the compiler; none where it is the one that a build would use
    libraries: Mapping[str, str]  # "cudnn" -> "8.5.0.96": from the kept ones
    kept: Mapping[str, str]  # "cudnn" -> "cudnn-8.5.0.96-cu11": how they are called where they are kept
    arch_list: str | None  # compute capabilities; None: left to the build
    requires: str  # NVIDIA's packages that the wheel requires, as setup.py reads them; "": none

    @property
    def toolkit(self) -> str | None:
        """Return the version of CUDA that compiles the cell."""
        return self.cell.build.cuda


def select_cuda(
    facts: Facts, cell: Cell, host: Host, options: Options, provider: str | None
) -> CudaSelection:
    """Return with what a cell is compiled.

    Raises ConfigError and ImpossibleBuildError for a toolkit, or compute capabilities, that were asked for
    and cannot be had.
    """
    identifier = cell.build.identifier(host.arch)
    cuda = cuda_toolkit.choose_toolkit(facts, cell, options.toolkit, identifier)
    compiled = cell_with_toolkit(cell, cuda)
    constraints = CellConstraints(facts, compiled, provider)
    compiler, variables = cuda_toolkit.choose_host_compiler(constraints, host, options.settings)
    listed = arch_list_check.resolve_arch_list(facts, compiled, host, options.arch_list)
    taken = cuda_libraries.choose_libraries(constraints, host, options.settings)
    names = {name: cuda_libraries.library_key(name, version, str(cuda)) for name, version in taken.items()}
    if (own := cuda_libraries.choose_magma(constraints, host, options.settings, listed or "")) is not None:
        taken, names = (
            taken | {provisioned.MAGMA_NAME: own.version},
            names | {provisioned.MAGMA_NAME: own.name},
        )
    known = replace(
        make_case(facts, compiled.build, cell.release, provider, compiler),
        kept=frozenset(taken),
        lacking=cuda_libraries.lacking_libraries(constraints, host, options.settings) - taken.keys(),
        another_toolkit=cuda != cell.build.cuda,
    )
    requires = "|".join(cuda_libraries.required_nvidia_packages(constraints, taken))
    return CudaSelection(compiled, known, variables, taken, names, listed, requires)


def cell_with_toolkit(cell: Cell, cuda: str | None) -> Cell:
    """Return a cell as a toolkit compiles it: rules on versions of CUDA speak of that one."""
    return replace(cell, build=replace(cell.build, cuda=cuda))


def cuda_placeholders(plan: Plan, host: Host) -> dict[str, str]:
    """Return what ${cuda_home}, ${cudnn_home} and their kin stand for on a host, as far as it has them."""
    cuda = plan.toolkit
    if cuda is None:
        return {}
    libraries_ = {f"{name}_home": host.kept.get(kept) for name, kept in plan.kept.items()}
    found = {"cuda_home": host.toolkits.get(cuda), **libraries_}
    return {name: folder for name, folder in found.items() if folder}
