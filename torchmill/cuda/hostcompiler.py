"""Which compiler a build with CUDA uses: the machine's own, or one that both nvcc and the release take."""

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.demands import Demands
from torchmill.host.compilers import CPP
from torchmill.model import Compiler, Host, Toolkit
from torchmill.rules import within

VARIABLES = ("CC", "CXX", "CUDAHOSTCXX")


def chosen(
    demands: Demands, host: Host, settings: Mapping[str, str]
) -> tuple[Compiler | None, dict[str, str]]:
    """Return the compiler of a build, and the variables that make it the one; none where it is as it is.

    A compiler that the user names stays, whatever it is: the doctor says where it cannot be.
    """
    if "CXX" in settings:
        return host.compilers.get(settings["CXX"], host.compiler), {}
    used = host.compiler
    if demands.cell.build.cuda is None or host.system != "linux" or _is_named(host, settings):
        return used, {}
    if used is not None and not _refused(demands, used):
        return used, {}
    command = best(demands, host.compilers)
    if command is None:
        return used, {}
    return host.compilers[command], choice(command, cuda=True)


def named(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of a plan's variables that name compilers."""
    return {name: variables[name] for name in VARIABLES if name in variables}


def best(demands: Demands, there: Mapping[str, Compiler]) -> str | None:
    """Return the command of the newest compiler that fits; one that the release was tried with goes first."""
    fitting = {command: one for command, one in there.items() if fits(demands, one)}
    tried = {command: one for command, one in fitting.items() if not is_untried(demands, one)} or fitting
    return max(tried, key=lambda one: (tried[one].family == "gcc", Version(tried[one].version)), default=None)


def choice(command: str, *, cuda: bool) -> dict[str, str]:
    """Return the variables that make a compiler the one of a whole build."""
    folder, slash, name = command.rpartition("/")
    c = folder + slash + name.replace("clang++", "clang").replace("g++", "gcc")
    return {"CC": c, "CXX": command} | ({"CUDAHOSTCXX": command} if cuda else {})


def taken_by(toolkit: Toolkit, family: str) -> SpecifierSet | None:
    """Return the host compilers of a family that nvcc takes, None where that is not known."""
    return {"gcc": toolkit.gcc, "clang": toolkit.clang}.get(family) or None


def takes(toolkit: Toolkit, compiler: Compiler) -> bool:
    """Tell whether nvcc is known to take a host compiler."""
    taken = taken_by(toolkit, compiler.family)
    return taken is not None and within(taken, compiler.version)


def fits(demands: Demands, compiler: Compiler) -> bool:
    """Tell whether the release takes a compiler, and nvcc is known to, where there is one."""
    toolkit = demands.facts.toolkit(demands.cell.build.cuda)
    if not demands.needs(compiler.family, compiler).met(compiler.version):
        return False
    return toolkit is None or takes(toolkit, compiler)


def is_untried(demands: Demands, compiler: Compiler) -> bool:
    """Tell whether nobody is known to have built the release with a compiler."""
    return not demands.advises(compiler.family, compiler).met(compiler.version)


def _refused(demands: Demands, compiler: Compiler) -> bool:
    """Tell whether the release or nvcc is known not to take a compiler."""
    toolkit = demands.facts.toolkit(demands.cell.build.cuda)
    taken = taken_by(toolkit, compiler.family) if toolkit else None
    needs = demands.needs(compiler.family, compiler)
    return not needs.met(compiler.version) or (taken is not None and not within(taken, compiler.version))


def _is_named(host: Host, settings: Mapping[str, str]) -> bool:
    """Tell whether the user says which compiler to take: by CXX or CC, for nvcc, or for this build."""
    usual = CPP[1]
    named = host.tools.get("c++", usual[0]) not in usual
    return named or host.cuda_compiler is not None or any(name in settings for name in VARIABLES)
