"""Choose toolkit, host compiler and libraries of a build with CUDA together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.core.lenient_paths import real_path
from torchmill.host.host import Compiler, Host
from torchmill.host.programs import CPP
from torchmill.host.provisioned import COMPLETED, MAGMA
from torchmill.plan import cuda_libraries, matrix
from torchmill.plan.arch_choice import resolve_arch_list
from torchmill.plan.arch_toolkits import find_toolkit
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.plan import Plan
from torchmill.plan.rules import Case, CellConstraints, make_case

COMPILER_VARIABLES = ("CC", "CXX", "CUDAHOSTCXX")
TOOLKIT_VARIABLES = ("CUDA_HOME", "CUDA_PATH")  # by which a user names a toolkit


def choose_host_compiler(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str]
) -> tuple[Compiler | None, dict[str, str]]:
    """Return the compiler of a build, and the variables that make it the one; none where it is as it is.

    A compiler that the user names stays, whatever it is: the doctor says where it cannot be.
    """
    if "CXX" in settings:
        return host.named_compiler(settings["CXX"]), {}
    used, with_cuda = host.compiler, constraints.cell.build.cuda is not None
    free = with_cuda and host.system == "linux" and not _user_names_compiler(host, settings)
    another = free and (used is None or _is_refused(constraints, used))
    if (command := best_compiler(constraints, host.compilers) if another else None) is None:
        return used, {}
    return host.compilers[command], variables_for_compiler(command, cuda=True)


def compiler_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of a plan's variables that name compilers."""
    return {name: variables[name] for name in COMPILER_VARIABLES if name in variables}


def best_compiler(constraints: CellConstraints, compilers: Mapping[str, Compiler]) -> str | None:
    """Return the command of the newest compiler that fits; one that the release was tried with goes first."""
    fitting = {
        command: one for command, one in compilers.items() if compiler_fits(constraints, one)
    }
    tried = {
        command: one for command, one in fitting.items() if not is_untried(constraints, one)
    } or fitting
    return max(
        tried,
        key=lambda one: (tried[one].family == "gcc", Version(tried[one].version)),
        default=None,
    )


def variables_for_compiler(command: str, *, cuda: bool) -> dict[str, str]:
    """Return the variables that make a compiler the one of a whole build."""
    folder, slash, name = command.rpartition("/")
    c = folder + slash + name.replace("clang++", "clang").replace("g++", "gcc")
    return {"CC": c, "CXX": command} | ({"CUDAHOSTCXX": command} if cuda else {})


def compilers_of_nvcc(toolkit: Toolkit, family: str) -> SpecifierSet | None:
    """Return the host compilers of a family that nvcc takes, None where that is not known."""
    return {"gcc": toolkit.gcc, "clang": toolkit.clang, "msvc": toolkit.msvc}.get(family) or None


def nvcc_takes(toolkit: Toolkit, compiler: Compiler) -> bool:
    """Tell whether nvcc is known to take a host compiler."""
    taken = compilers_of_nvcc(toolkit, compiler.family)
    return taken is not None and is_within(taken, compiler.version)


def compiler_fits(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether the release takes a compiler, and nvcc is known to, where there is one."""
    toolkit = constraints.facts.toolkit(constraints.cell.build.cuda)
    if not constraints.needs(compiler.family, compiler).allows(compiler.version):
        return False
    return toolkit is None or nvcc_takes(toolkit, compiler)


def is_untried(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether nobody is known to have built the release with a compiler."""
    return not constraints.advises(compiler.family, compiler).allows(compiler.version)


def _is_refused(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether the release or nvcc is known not to take a compiler."""
    toolkit = constraints.facts.toolkit(constraints.cell.build.cuda)
    taken = compilers_of_nvcc(toolkit, compiler.family) if toolkit else None
    needs = constraints.needs(compiler.family, compiler)
    return not (needs.allows(compiler.version) and is_within(taken, compiler.version))


def _user_names_compiler(host: Host, settings: Mapping[str, str]) -> bool:
    """Tell whether the user says which compiler to take: by CXX or CC, for nvcc, or for this build."""
    usual = CPP[1]
    named = host.tools.get("c++", usual[0]) not in usual
    return (
        named
        or host.cuda_compiler is not None
        or any(name in settings for name in COMPILER_VARIABLES)
    )


def choose_toolkit(facts: Facts, cell: Cell, requested: str | None, identifier: str) -> str | None:
    """Return the version of the toolkit that compiles a cell, None for a build without CUDA.

    Raises ConfigError for a version that is not known or cannot stand for the variant's,
    ImpossibleBuildError for one that the release does not build with.
    """
    own = cell.build.cuda
    if requested is None or requested == own:
        return own
    if own is None:
        raise ConfigError(
            f"--toolkit {requested}: {identifier} is built without CUDA; omit the option, or choose a CUDA "
            "build (`nox -l` lists them)",
            code="toolkit-without-cuda",
        )
    toolkit = find_toolkit(facts, "--toolkit", requested)
    if not _can_replace(toolkit.version, own):
        newer = [one.version for one in facts.toolkits if _can_replace(one.version, own)]
        usable = f"CUDA {own}" if newer == [own] else f"CUDA {own} to {newer[-1]}"
        raise ConfigError(
            f"--toolkit {requested}: {identifier} must run where CUDA {own} does, so only {usable} can "
            f"compile it; use that, or build the variant {toolkit.variant}",
            code="toolkit-cannot-replace",
        )
    if reasons := _obstacles(facts, cell, toolkit):
        raise ImpossibleBuildError(
            f"--toolkit {requested} cannot be used for {cell.release}: {'; '.join(reasons)}",
            code="toolkit-impossible",
        )
    return toolkit.version


def _can_replace(version: str, own: str) -> bool:
    return Version(version).major == Version(own).major and Version(version) >= Version(own)


def usable_toolkits(facts: Facts, cell: Cell, versions: Iterable[str]) -> list[str]:
    """Return those of some toolkits that can compile a cell in place of its own, oldest first."""
    own = str(cell.build.cuda)
    known = [one for one in facts.toolkits if one.version in set(versions)]
    newer = [one for one in known if one.version != own and _can_replace(one.version, own)]
    return [one.version for one in newer if not _obstacles(facts, cell, one)]


def _obstacles(facts: Facts, cell: Cell, toolkit: Toolkit) -> tuple[str, ...]:
    """Return why no build of the release on that machine can have a toolkit."""
    return matrix.make_cell(facts, cell.release, replace(cell.build, cuda=toolkit.version)).reasons


def describe_passed_over(environ: Mapping[str, str], host: Host, version: str | None) -> str | None:
    """Return a sentence on a toolkit that the user's shell names and that a build does not use."""
    if version is None:
        return None
    used = host.toolkits.get(version)
    completed = host.completed.get(version, "").partition(COMPLETED)[0]
    for name in TOOLKIT_VARIABLES:
        folder = environ.get(name)
        if folder and real_path(folder) not in {
            real_path(home) for home in (used, completed) if home
        }:
            there = next(
                (
                    each
                    for each, home in host.toolkits.items()
                    if real_path(home) == real_path(folder)
                ),
                None,
            )
            found = f"CUDA {there}" if there else "no toolkit that can be used"
            takes = f"takes from {used}" if used else "finds nowhere"
            return (
                f"{name}={folder} holds {found}; the build needs CUDA {version}, which it {takes}"
            )
    return None


@dataclass(frozen=True, slots=True)
class CudaSelection:
    """With what a cell is compiled on a host; without CUDA it is what the host has."""

    cell: Cell  # its build's `cuda` is that of the toolkit that compiles it
    case: Case  # that rules are held against
    variables: Mapping[
        str, str
    ]  # that choose the compiler; none where it is the one that a build would use
    libraries: Mapping[str, str]  # "cudnn" -> "8.5.0.96": from the kept ones
    kept: Mapping[
        str, str
    ]  # "cudnn" -> "cudnn-8.5.0.96-cu11": how they are called where they are kept
    arch_list: str | None  # compute capabilities; None: left to the build
    requires: str  # NVIDIA's packages that the wheel requires, as setup.py reads them; "": none


def select_cuda(
    facts: Facts, cell: Cell, host: Host, options: Options, provider: str | None
) -> CudaSelection:
    """Return with what a cell is compiled.

    Raises ConfigError and ImpossibleBuildError for a toolkit, or compute capabilities, that were asked for
    and cannot be had.
    """
    cuda = choose_toolkit(facts, cell, options.toolkit, cell.build.identifier(host.arch))
    compiled = cell_with_toolkit(cell, cuda)
    constraints = CellConstraints(facts, compiled, provider)
    compiler, variables = choose_host_compiler(constraints, host, options.settings)
    listed = resolve_arch_list(facts, compiled, host, options.arch_list)
    taken = cuda_libraries.choose_libraries(constraints, host, options.settings, listed or "")
    names = {
        name: cuda_libraries.library_key(name, version, str(cuda))
        for name, version in taken.items()
    }
    if (
        own := cuda_libraries.choose_magma(constraints, host, options.settings, listed or "")
    ) is not None:
        taken[MAGMA], names[MAGMA] = own.version, own.name
    known = replace(
        make_case(facts, compiled.build, cell.release, provider, compiler),
        kept=frozenset(taken),
        lacking=cuda_libraries.lacking_libraries(constraints, host, options.settings)
        - taken.keys(),
        another_toolkit=cuda != cell.build.cuda,
    )
    requires = "|".join(cuda_libraries.required_nvidia_packages(constraints, taken))
    return CudaSelection(compiled, known, variables, taken, names, listed, requires)


def cell_with_toolkit(cell: Cell, cuda: str | None) -> Cell:
    """Return a cell as a toolkit compiles it: rules on versions of CUDA speak of that one."""
    return replace(cell, build=replace(cell.build, cuda=cuda))


def cuda_placeholders(plan: Plan, host: Host) -> dict[str, str]:
    """Return what ${cuda_home}, ${cudnn_home} and their kin stand for on a host, as far as it has them."""
    cuda = plan.cuda.toolkit
    if cuda is None:
        return {}
    found = {"cuda_home": host.toolkits.get(cuda)}
    found |= {f"{name}_home": host.kept.get(kept) for name, kept in plan.cuda.provisioned.items()}
    return {name: folder for name, folder in found.items() if folder}
