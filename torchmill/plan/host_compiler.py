"""Choose the C++ compiler of a build.

The release must be able to be built with it. In a build with CUDA, nvcc must take it too: nvcc
calls it, as its host compiler, for all code that does not run on a GPU.
"""

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_within
from torchmill.host.compilers import CXX_COMPILER
from torchmill.host.host import Compiler, Host
from torchmill.plan.rules import CellConstraints

COMPILER_VARIABLES = ("CC", "CXX", "CUDAHOSTCXX")


def choose_host_compiler(
    constraints: CellConstraints, host: Host, settings: Mapping[str, str]
) -> tuple[Compiler | None, dict[str, str]]:
    """Return the compiler of a build, None if no such is known, and the variables that select it.

    The variables are {} if the build would use the compiler anyway. A compiler that the user names
    is never replaced: the doctor reports if it cannot be used. The usual compiler of the host is
    replaced only if it is refused for a build with CUDA on Linux, and another one fits. A crossed
    build always names its compiler.
    """
    if "CXX" in settings:
        return host.compilers.of_command(settings["CXX"]), {}
    if host.crosses:
        return _choose_cross_compiler(constraints, host)
    usual = host.compilers.default
    is_for_cuda = constraints.cell.build.cuda is not None and host.system == "linux"
    if not is_for_cuda or _user_names_compiler(host, settings):
        return usual, {}
    if usual is not None and not _is_refused(constraints, usual):
        return usual, {}
    command = best_compiler(constraints, host.compilers.by_command)
    if command is None:
        return usual, {}
    return host.compilers.by_command[command], variables_for_compiler(command, cuda=True)


def _choose_cross_compiler(
    constraints: CellConstraints, host: Host
) -> tuple[Compiler | None, dict[str, str]]:
    """Return the cross compiler of a build, and the variables that select it.

    If none fits, it is the newest, which the doctor then refuses. None without any.
    """
    compilers = host.compilers.by_command
    command = best_compiler(constraints, compilers)
    if command is None:
        command = max(compilers, key=lambda name: Version(compilers[name].version), default=None)
    if command is None:
        return None, {}
    cuda = constraints.cell.build.cuda is not None
    return compilers[command], variables_for_compiler(command, cuda=cuda)


def planned_compilers(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of a plan's variables that name compilers."""
    return {name: variables[name] for name in COMPILER_VARIABLES if name in variables}


def best_compiler(constraints: CellConstraints, compilers: Mapping[str, Compiler]) -> str | None:
    """Return the command of the best compiler that fits a cell; None if none fits.

    The keys of `compilers` are their commands: "g++-11". Compilers with which somebody is known to
    have built the release are preferred to others, gcc to clang, and newer versions to older ones.
    """
    fitting: list[str] = []
    fitting_and_tried: list[str] = []
    for command, compiler in compilers.items():
        if compiler_fits(constraints, compiler):
            fitting.append(command)
            if not is_untried(constraints, compiler):
                fitting_and_tried.append(command)

    def preference(command: str) -> tuple[bool, Version]:
        compiler = compilers[command]
        return compiler.family == "gcc", Version(compiler.version)

    return max(fitting_and_tried or fitting, key=preference, default=None)


def variables_for_compiler(command: str, *, cuda: bool) -> dict[str, str]:
    """Return the variables by which a whole build uses a C++ compiler and its C compiler.

    `command` is a name or path of a gcc or clang: "g++-11", "/opt/bin/clang++".
    """
    folder, slash, name = command.rpartition("/")
    # First clang, because "clang++" contains "g++".
    c_name = name.replace("clang++", "clang").replace("g++", "gcc")
    variables = {"CC": folder + slash + c_name, "CXX": command}
    if cuda:
        variables["CUDAHOSTCXX"] = command
    return variables


def versions_for_nvcc(toolkit: Toolkit, family: str) -> SpecifierSet | None:
    """Return the versions of a family of compilers, "gcc", that nvcc takes; None if unknown."""
    bounds = {"gcc": toolkit.gcc, "clang": toolkit.clang, "msvc": toolkit.msvc}
    # Empty bounds are not "any version": nothing is recorded of that family.
    return bounds.get(family) or None


def nvcc_takes(toolkit: Toolkit, compiler: Compiler) -> bool:
    """Tell whether nvcc is known to take a host compiler."""
    bounds = versions_for_nvcc(toolkit, compiler.family)
    return bounds is not None and is_within(bounds, compiler.version)


def compiler_fits(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether the release takes a compiler and, if the build has CUDA, nvcc is known to."""
    if not constraints.needs(compiler.family, compiler).allows(compiler.version):
        return False
    toolkit = constraints.facts.toolkit(constraints.cell.build.cuda)
    return toolkit is None or nvcc_takes(toolkit, compiler)


def is_untried(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether nobody is known to have built a cell's release with a compiler."""
    return not constraints.advises(compiler.family, compiler).allows(compiler.version)


def _is_refused(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether the release or nvcc is known to refuse a compiler.

    This is not the opposite of `compiler_fits`. If nobody knows which versions of a family nvcc
    takes, a compiler of that family neither fits nor is refused.
    """
    if not constraints.needs(compiler.family, compiler).allows(compiler.version):
        return True
    toolkit = constraints.facts.toolkit(constraints.cell.build.cuda)
    if toolkit is None:
        return False
    bounds = versions_for_nvcc(toolkit, compiler.family)
    return bounds is not None and not is_within(bounds, compiler.version)


def _user_names_compiler(host: Host, settings: Mapping[str, str]) -> bool:
    """Tell whether the user names a compiler, in the shell or with `--set`.

    The variables of the shell show in the host: its default compiler has another command than the
    usual ones if CXX names it, and it has a compiler for CUDA only if CUDAHOSTCXX names one.
    """
    default_command = host.programs.paths.get("c++")
    names_cxx = default_command not in {None, *CXX_COMPILER.usual_commands}
    names_cuda_host = host.compilers.cuda is not None
    is_in_settings = any(name in settings for name in COMPILER_VARIABLES)
    return names_cxx or names_cuda_host or is_in_settings
