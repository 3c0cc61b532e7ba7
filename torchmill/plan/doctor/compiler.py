"""Check the C++ compiler against the release and the toolkit."""

from collections.abc import Iterator

from packaging.version import Version

from torchmill.config.matrix import format_bounds
from torchmill.config.model import Compiler, Toolkit
from torchmill.config.rules import is_within
from torchmill.plan.constraints import Constraint
from torchmill.plan.cuda_toolkit import (
    best_compiler,
    compiler_fits,
    compilers_of_nvcc,
    is_untried,
    nvcc_takes,
    variables_for_compiler,
)
from torchmill.plan.doctor import remedy
from torchmill.plan.doctor.finding import BuildQuestion, Finding, absence_text, absence_verdict, install_hint

_OLDEST, _NEWEST = 4, 20  # major versions of gcc that are looked through for one that fits
_PACKAGES = {
    "apt": ("gcc-{major}", "g++-{major}"),
    "dnf": ("gcc-toolset-{major}-gcc-c++",),
    "brew": ("gcc@{major}",),
    "conda": ("gxx={major}",),
}
_COMMANDS = {"dnf": "/opt/rh/gcc-toolset-{major}/root/usr/bin/g++", "conda": "g++"}


def check_compiler(question: BuildQuestion) -> Iterator[Finding]:
    """Yield the finding on the compiler, and on nvcc's where the build has CUDA."""
    compiler = question.compiler
    if compiler is None:
        yield _missing(question)
    else:
        yield _against_release(question, compiler)
    chosen = "CUDAHOSTCXX" in question.plan.set
    driven = compiler if chosen else question.host.cuda_compiler or compiler
    if question.toolkit is not None and driven is not None:
        yield _against_toolkit(question, question.toolkit, driven)


def _missing(question: BuildQuestion) -> Finding:
    host, needed = question.host, _standard(question)
    if "c++" in host.tools:
        silent = f"{host.tools['c++']}, which does not say what it is"
        return Finding("C++ compiler", silent, needed, "unknown")
    if host.system == "windows":  # the build finds Visual Studio where PATH does not
        return Finding("C++ compiler", "none on PATH", needed, "unknown")
    cure = "xcode-select --install" if host.system == "macos" else "invoke deps"
    because = "where one has another name, or is not on PATH, set CC and CXX to it" if host.complete else ""
    return Finding("C++ compiler", absence_text(host), needed, absence_verdict(host), cure, because)


def _against_release(question: BuildQuestion, compiler: Compiler) -> Finding:
    needs = question.needs(compiler.family)
    advises = question.advises(compiler.family)
    spoken = str(Constraint(needs.bounds & advises.bounds))
    needed = ", ".join(filter(None, (f"{compiler.family} {spoken}" if spoken else "", _standard(question))))
    if not needs.met(compiler.version):
        because = f"{question.cell.release}: {_reasons(needs)}"
        return Finding("C++ compiler", str(compiler), needed, "failure", compiler_cure(question), because)
    if not advises.met(compiler.version):
        because = f"{question.cell.release}: {_reasons(advises)}"
        return Finding("C++ compiler", str(compiler), needed, "warning", compiler_cure(question), because)
    return Finding("C++ compiler", str(compiler), needed, "ok")


def _against_toolkit(question: BuildQuestion, toolkit: Toolkit, compiler: Compiler) -> Finding:
    taken = compilers_of_nvcc(toolkit, compiler.family)
    subject = "host compiler of nvcc"
    if taken is None:
        return Finding(subject, str(compiler), f"what CUDA {toolkit.version} takes: not known", "unknown")
    needed = f"{compiler.family} {format_bounds(taken)}"
    if is_within(taken, compiler.version):
        return Finding(subject, str(compiler), needed, "ok", because=_instead(question, toolkit))
    because = f"nvcc of CUDA {toolkit.version} takes {compiler.family} {format_bounds(taken)}"
    return Finding(subject, str(compiler), needed, "failure", compiler_cure(question), because)


def _instead(question: BuildQuestion, toolkit: Toolkit) -> str:
    """Return why the whole build has another compiler than the machine's usual one, if it has."""
    usual = question.host.compiler
    if usual is None or question.compiler == usual or compiler_fits(question.demands, usual):
        return ""
    refuses = f"CUDA {toolkit.version}" if not nvcc_takes(toolkit, usual) else str(question.cell.release)
    return f"{question.plan.set['CXX']} compiles everything, because {refuses} does not take {usual}"


def compiler_cure(question: BuildQuestion) -> str:
    """Return the command that builds with a compiler that fits: one that is there, else one to bring."""
    with_cuda = question.toolkit is not None
    command = best_compiler(question.demands, question.host.compilers)
    if command is not None:
        return f"{_named(command, cuda=with_cuda)} {question.session}"
    major = _major(question)
    if major is None:
        return ""
    if with_cuda and (brought := remedy.compiler_command(question, f"gcc-{major}")):
        return brought
    host = question.host
    packages = [name.format(major=major) for name in _PACKAGES.get(host.manager or "", (f"gcc {major}",))]
    command = _COMMANDS.get(host.manager or "", "g++-{major}").format(major=major)
    return f"{install_hint(host, packages)} && {_named(command, cuda=with_cuda)} {question.session}"


def _named(command: str, *, cuda: bool) -> str:
    return " ".join(f"{name}={value}" for name, value in variables_for_compiler(command, cuda=cuda).items())


def _major(question: BuildQuestion) -> int | None:
    """Return the gcc to install: of those that fit, the nearest to what the machine has."""
    compiler = question.compiler
    has = Version(compiler.version).major if compiler and compiler.family == "gcc" else _NEWEST
    known = [(major, Compiler("gcc", f"{major}.99")) for major in range(_OLDEST, _NEWEST)]
    fitting = [
        (is_untried(question.demands, one), abs(major - has), major)
        for major, one in known
        if compiler_fits(question.demands, one)
    ]
    return min(fitting)[2] if fitting else None


def _standard(question: BuildQuestion) -> str:
    standards = [rule.cxx for rule in question.demanding() if rule.cxx is not None]
    return f"C++{max(standards)}" if standards else "a C++ compiler"


def _reasons(demand: Constraint) -> str:
    return "; ".join(demand.reasons)
