"""Choose the C++ compiler of a build: one that the release takes, and nvcc as its host compiler."""

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
    """Return the compiler of a build, and the variables that select it.

    There are no variables if it is the one that a build would use anyway. A compiler that the user
    names stays, whatever it is: the doctor tells if it cannot be used.
    """
    if "CXX" in settings:
        return host.compilers.of_command(settings["CXX"]), {}
    usual = host.compilers.default
    if constraints.cell.build.cuda is None or host.system != "linux":
        return usual, {}
    if _user_names_compiler(host, settings):
        return usual, {}
    if usual is not None and not _is_refused(constraints, usual):
        return usual, {}
    command = best_compiler(constraints, host.compilers.by_command)
    if command is None:
        return usual, {}
    return host.compilers.by_command[command], variables_for_compiler(command, cuda=True)


def compiler_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of a plan's variables that name compilers."""
    return {name: variables[name] for name in COMPILER_VARIABLES if name in variables}


def best_compiler(constraints: CellConstraints, compilers: Mapping[str, Compiler]) -> str | None:
    """Return the command of the best compiler that fits; None if none does.

    Compilers that somebody is known to have built the release with go first, then gcc before clang,
    then the newest.
    """
    fitting: list[str] = []
    tried: list[str] = []
    for command, compiler in compilers.items():
        if compiler_fits(constraints, compiler):
            fitting.append(command)
            if not is_untried(constraints, compiler):
                tried.append(command)

    def preference(command: str) -> tuple[bool, Version]:
        compiler = compilers[command]
        return compiler.family == "gcc", Version(compiler.version)

    return max(tried or fitting, key=preference, default=None)


def variables_for_compiler(command: str, *, cuda: bool) -> dict[str, str]:
    """Return the variables that make a C++ compiler, and its C compiler, those of a whole build."""
    folder, slash, name = command.rpartition("/")
    c_name = name.replace("clang++", "clang").replace("g++", "gcc")
    variables = {"CC": folder + slash + c_name, "CXX": command}
    if cuda:
        variables["CUDAHOSTCXX"] = command
    return variables


def compilers_of_nvcc(toolkit: Toolkit, family: str) -> SpecifierSet | None:
    """Return the host compilers of a family that nvcc takes; None if that is not known."""
    bounds = {"gcc": toolkit.gcc, "clang": toolkit.clang, "msvc": toolkit.msvc}
    # Empty bounds are not "any version": nothing is recorded of that family.
    return bounds.get(family) or None


def nvcc_takes(toolkit: Toolkit, compiler: Compiler) -> bool:
    """Tell whether nvcc is known to take a host compiler."""
    bounds = compilers_of_nvcc(toolkit, compiler.family)
    return bounds is not None and is_within(bounds, compiler.version)


def compiler_fits(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether the release takes a compiler and, if the build has CUDA, nvcc is known to."""
    if not constraints.needs(compiler.family, compiler).allows(compiler.version):
        return False
    toolkit = constraints.facts.toolkit(constraints.cell.build.cuda)
    return toolkit is None or nvcc_takes(toolkit, compiler)


def is_untried(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether nobody is known to have built the release with a compiler."""
    return not constraints.advises(compiler.family, compiler).allows(compiler.version)


def _is_refused(constraints: CellConstraints, compiler: Compiler) -> bool:
    """Tell whether the release or nvcc is known not to take a compiler.

    That is less than not `compiler_fits`: what is not known of nvcc refuses nothing.
    """
    if not constraints.needs(compiler.family, compiler).allows(compiler.version):
        return True
    toolkit = constraints.facts.toolkit(constraints.cell.build.cuda)
    if toolkit is None:
        return False
    return not is_within(compilers_of_nvcc(toolkit, compiler.family), compiler.version)


def _user_names_compiler(host: Host, settings: Mapping[str, str]) -> bool:
    """Tell whether the user names a compiler: by CXX, for nvcc, or for this build."""
    usual_commands = CXX_COMPILER[1]
    if host.programs.paths.get("c++", usual_commands[0]) not in usual_commands:
        return True
    if host.compilers.cuda is not None:
        return True
    return any(name in settings for name in COMPILER_VARIABLES)
