"""Everything of CUDA that a plan follows from, decided together: toolkit, host compiler, libraries."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchmill import capabilities
from torchmill.cuda import hostcompiler, libraries, magma, toolkit
from torchmill.demands import Demands
from torchmill.matrix import Cell
from torchmill.model import Case, Facts, Host, Options, Plan
from torchmill.rules import case


@dataclass(frozen=True, slots=True)
class Means:
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


def of(facts: Facts, cell: Cell, host: Host, options: Options, provider: str | None) -> Means:
    """Return with what a cell is compiled.

    Raises ConfigError and ImpossibleBuildError for a toolkit, or compute capabilities, that were asked for
    and cannot be had.
    """
    identifier = cell.build.identifier(host.arch)
    cuda = toolkit.chosen(facts, cell, options.toolkit, identifier)
    compiled = compiled_with(cell, cuda)
    demands = Demands(facts, compiled, provider)
    compiler, variables = hostcompiler.chosen(demands, host, options.settings)
    listed = capabilities.chosen(facts, compiled, host, options.arch_list)
    taken = libraries.taken(demands, host, options.settings)
    names = {name: libraries.key(name, version, str(cuda)) for name, version in taken.items()}
    if (own := magma.taken(demands, host, options.settings, listed or "")) is not None:
        taken, names = taken | {magma.NAME: own.version}, names | {magma.NAME: own.name}
    known = replace(
        case(facts, compiled.build, cell.release, provider, compiler),
        kept=frozenset(taken),
        lacking=libraries.lacking(demands, host, options.settings) - taken.keys(),
        another_toolkit=cuda != cell.build.cuda,
    )
    requires = "|".join(libraries.required(demands, taken))
    return Means(compiled, known, variables, taken, names, listed, requires)


def compiled_with(cell: Cell, cuda: str | None) -> Cell:
    """Return a cell as a toolkit compiles it: rules on versions of CUDA speak of that one."""
    return replace(cell, build=replace(cell.build, cuda=cuda))


def places(plan: Plan, host: Host) -> dict[str, str]:
    """Return what ${cuda_home}, ${cudnn_home} and their kin stand for on a host, as far as it has them."""
    cuda = plan.toolkit
    if cuda is None:
        return {}
    libraries_ = {f"{name}_home": host.kept.get(kept) for name, kept in plan.kept.items()}
    found = {"cuda_home": host.toolkits.get(cuda), **libraries_}
    return {name: folder for name, folder in found.items() if folder}
