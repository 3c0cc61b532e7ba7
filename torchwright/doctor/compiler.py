"""The C++ compiler, against the release and against the toolkit whose nvcc drives it."""

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchwright.doctor.finding import Demand, Finding, Question, absent, installed_by, nothing
from torchwright.matrix import bounds
from torchwright.model import Compiler, Toolkit
from torchwright.rules import within

_OLDEST, _NEWEST = 4, 20  # major versions of gcc that are looked through for one that fits
_PACKAGES = {
    "apt": ("gcc-{major}", "g++-{major}"),
    "dnf": ("gcc-toolset-{major}-gcc-c++",),
    "brew": ("gcc@{major}",),
    "conda": ("gxx={major}",),
}
_COMMANDS = {"dnf": "/opt/rh/gcc-toolset-{major}/root/usr/bin/g++", "conda": "g++"}


def check(question: Question) -> Iterator[Finding]:
    """Yield the finding on the compiler, and on nvcc's where the build has CUDA."""
    compiler = question.host.compiler
    if compiler is None:
        yield _missing(question)
    else:
        yield _against_release(question, compiler)
    driven = question.host.cuda_compiler or compiler
    if question.toolkit is not None and driven is not None:
        yield _against_toolkit(question, question.toolkit, driven)


def _missing(question: Question) -> Finding:
    host, needed = question.host, _standard(question)
    if "c++" in host.tools:
        silent = f"{host.tools['c++']}, which does not say what it is"
        return Finding("C++ compiler", silent, needed, "unknown")
    if host.system == "windows":  # the build finds Visual Studio where PATH does not
        return Finding("C++ compiler", "none on PATH", needed, "unknown")
    cure = "xcode-select --install" if host.system == "macos" else "invoke deps"
    because = "where one has another name, or is not on PATH, set CC and CXX to it" if host.complete else ""
    return Finding("C++ compiler", nothing(host), needed, absent(host), cure, because)


def _against_release(question: Question, compiler: Compiler) -> Finding:
    needs = question.needs(compiler.family)
    advises = question.advises(compiler.family)
    spoken = str(Demand(needs.bounds & advises.bounds))
    needed = ", ".join(filter(None, (f"{compiler.family} {spoken}" if spoken else "", _standard(question))))
    if not needs.met(compiler.version):
        because = f"{question.cell.release}: {_reasons(needs)}"
        return Finding("C++ compiler", str(compiler), needed, "failure", cure(question), because)
    if not advises.met(compiler.version):
        because = f"{question.cell.release}: {_reasons(advises)}"
        return Finding("C++ compiler", str(compiler), needed, "warning", cure(question), because)
    return Finding("C++ compiler", str(compiler), needed, "ok")


def _against_toolkit(question: Question, toolkit: Toolkit, compiler: Compiler) -> Finding:
    taken = _taken_by(toolkit, compiler.family)
    subject = "host compiler of nvcc"
    if taken is None:
        return Finding(subject, str(compiler), f"what CUDA {toolkit.version} takes: not known", "unknown")
    needed = f"{compiler.family} {bounds(taken)}"
    if within(taken, compiler.version):
        return Finding(subject, str(compiler), needed, "ok")
    because = f"nvcc of CUDA {toolkit.version} takes {compiler.family} {bounds(taken)}"
    return Finding(subject, str(compiler), needed, "failure", cure(question), because)


def cure(question: Question) -> str:
    """Return the command that builds with a compiler that fits: one that is there, else one to install."""
    fitting = [
        (_untried(question, one), one.family == "gcc", Version(one.version), name)
        for name, one in question.host.compilers.items()
        if _fits(question, one)
    ]
    if fitting:
        tried = [one for one in fitting if not one[0]] or fitting
        return f"{_choice(question, max(tried, key=lambda one: one[1:3])[3])} {question.session}"
    major = _major(question)
    if major is None:
        return ""
    host = question.host
    packages = [name.format(major=major) for name in _PACKAGES.get(host.manager or "", (f"gcc {major}",))]
    command = _COMMANDS.get(host.manager or "", "g++-{major}").format(major=major)
    return f"{installed_by(host, packages)} && {_choice(question, command)} {question.session}"


def _fits(question: Question, compiler: Compiler) -> bool:
    if not question.needs(compiler.family, compiler).met(compiler.version):
        return False
    if question.toolkit is None:
        return True
    return takes(question.toolkit, compiler)


def _taken_by(toolkit: Toolkit, family: str) -> SpecifierSet | None:
    """Return the host compilers of a family that nvcc takes, None where that is not known."""
    return {"gcc": toolkit.gcc, "clang": toolkit.clang}.get(family) or None


def takes(toolkit: Toolkit, compiler: Compiler) -> bool:
    """Tell whether nvcc is known to take a host compiler."""
    taken = _taken_by(toolkit, compiler.family)
    return taken is not None and within(taken, compiler.version)


def _untried(question: Question, compiler: Compiler) -> bool:
    return not question.advises(compiler.family, compiler).met(compiler.version)


def _choice(question: Question, command: str) -> str:
    folder, slash, name = command.rpartition("/")
    c = folder + slash + name.replace("clang++", "clang").replace("g++", "gcc")
    variables = [f"CC={c}", f"CXX={command}"]
    return " ".join([*variables, f"CUDAHOSTCXX={command}"] if question.toolkit else variables)


def _major(question: Question) -> int | None:
    """Return the gcc to install: of those that fit, the nearest to what the machine has."""
    compiler = question.host.compiler
    has = Version(compiler.version).major if compiler and compiler.family == "gcc" else _NEWEST
    known = [(major, Compiler("gcc", f"{major}.99")) for major in range(_OLDEST, _NEWEST)]
    fitting = [
        (_untried(question, one), abs(major - has), major) for major, one in known if _fits(question, one)
    ]
    return min(fitting)[2] if fitting else None


def _standard(question: Question) -> str:
    standards = [rule.cxx for rule in question.demanding(None) if rule.cxx is not None]
    return f"C++{max(standards)}" if standards else "a C++ compiler"


def _reasons(demand: Demand) -> str:
    return "; ".join(demand.reasons)
