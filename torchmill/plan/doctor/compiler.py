"""Check the C++ compiler against the release and the toolkit."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from packaging.specifiers import SpecifierSet

from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import format_bounds, is_within
from torchmill.host.host import Compiler, Host
from torchmill.host.processor import processor_problems, unknown_name_hint
from torchmill.plan import host_compiler
from torchmill.plan.doctor.compiler_cures import compiler_cures, missing_compiler_cures
from torchmill.plan.doctor.finding import (
    CheckContext,
    Finding,
    Verdict,
    absence_finding,
    with_cures,
)
from torchmill.plan.rules import Constraint


def check_compiler(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the compiler, and on nvcc's where the build has CUDA."""
    compiler = context.compiler
    if compiler is None:
        yield no_compiler(context.host, _standard(context), missing_compiler_cures(context))
    else:
        yield _against_release(context, compiler)
    if (
        own := context.host.toolkits.libraries.get("libstdc++")
    ) and compiler == context.host.compilers.default:
        because = "where the system's is older, wheels get no tag, or do not load: gcc-toolset links that one"
        yield Finding("C++ library", own, "the system's", "warning", because=because)
    chosen = "CUDAHOSTCXX" in context.plan.variables
    driven = compiler if chosen else context.host.compilers.cuda or compiler
    if context.toolkit is not None and driven is not None:
        yield _against_toolkit(context, context.toolkit, driven)


def check_processor(context: CheckContext) -> Iterator[Finding]:
    """Yield whether this machine runs what is compiled for a processor: a wheel that it cannot try is not verified."""
    if (wanted := context.plan.wheel.processor) is None:
        return
    subject, needed = f"processor {wanted.name}", ", ".join(wanted.needs) or "?"
    hint = unknown_name_hint(context.build.arch, wanted.name)
    if hint is not None and not wanted.needs:
        because = f"torchmill knows no processor of this name, and compilers refuse a name that they do not know{hint}"
        cure = "`g++ -Q --help=target` on that machine lists the names that its gcc knows"
        yield Finding(subject, "not known", needed, "warning", cure, because)
        return
    flags = (
        context.host.platform.processor_features if context.host.arch == context.build.arch else ()
    )
    if lacking := "".join(processor_problems(wanted.needs, flags)):
        because = (
            f"{lacking}: the checks at the end of the build have to run what was compiled for it"
        )
        cure = "build on a machine that has it, or name another --cpu; without it torch chooses its kernels as it runs"
        yield Finding(subject, lacking, needed, "failure", cure, because)
        return
    verdict: Verdict = "ok" if flags and wanted.needs else "unknown"
    yield Finding(subject, "all that is known", needed, verdict)


def no_compiler(host: Host, needed: str, cures: Sequence[str]) -> Finding:
    """Return the finding on a compiler that nobody names; `cures` are those of Linux."""
    if "c++" in host.programs.paths:
        command = host.programs.paths["c++"]
        silence = host.programs.unanswered.get(
            PurePath(command.partition(" ")[0]).name, "does not say what it is"
        )
        return Finding("C++ compiler", f"{command}, which {silence}", needed, "unknown")
    if host.system == "windows":  # the build finds Visual Studio where PATH does not
        return Finding("C++ compiler", "none on PATH", needed, "unknown")
    ways = ["xcode-select --install"] if host.system == "macos" else cures
    because = "if yours has another name, or is not on PATH, set CC and CXX to it; correct them if they name none"
    return absence_finding(host, "C++ compiler", needed, ways, because)


def _against_release(context: CheckContext, compiler: Compiler) -> Finding:
    needs = context.needs(compiler.family)
    advises = context.constraints.advises(compiler.family, compiler)
    spoken = str(Constraint(needs.bounds & advises.bounds))
    needed = ", ".join(
        filter(None, (f"{compiler.family} {spoken}" if spoken else "", _standard(context)))
    )
    terms: tuple[tuple[Constraint, Verdict], ...] = ((needs, "failure"), (advises, "warning"))
    for term, verdict in terms:
        if not term.allows(compiler.version):
            because = f"{context.cell.release}: {'; '.join(term.reasons)}"
            finding = Finding("C++ compiler", str(compiler), needed, verdict, because=because)
            return with_cures(finding, compiler_cures(context))
    return Finding("C++ compiler", str(compiler), needed, "ok")


def _against_toolkit(context: CheckContext, toolkit: Toolkit, compiler: Compiler) -> Finding:
    taken = host_compiler.compilers_of_nvcc(toolkit, compiler.family)
    subject = "host compiler of nvcc"
    if taken is None:
        return Finding(
            subject, str(compiler), f"what CUDA {toolkit.version} takes: not known", "unknown"
        )
    needed = f"{compiler.family} {format_bounds(taken)}"
    if is_within(taken, compiler.version):
        return Finding(subject, str(compiler), needed, "ok", because=_instead(context, toolkit))
    years = (
        "; 19.2x is Visual Studio 2019, 19.3x and 19.4x 2022" if compiler.family == "msvc" else ""
    )
    because = f"nvcc of CUDA {toolkit.version} takes {needed}{years}"
    ways = (
        (_other_toolset(taken, compiler),) if compiler.family == "msvc" else compiler_cures(context)
    )
    return with_cures(Finding(subject, str(compiler), needed, "failure", because=because), ways)


def _other_toolset(taken: SpecifierSet, compiler: Compiler) -> str:
    """Return how to choose the newest older toolset of Visual Studio that nvcc takes; "" if there is none.

    The toolset of compiler 19.29 is called 14.29, and Visual Studio's installer lists older ones as single components:
    https://learn.microsoft.com/en-us/cpp/build/building-on-the-command-line
    """
    minors = [
        minor
        for minor in range(10, int(compiler.version.split(".")[1]) + 1)
        if is_within(taken, f"19.{minor}")
    ]
    if not minors:
        return ""
    toolset = f"14.{minors[-1]}"
    return (
        f"install toolset {toolset} beside it (Visual Studio Installer, single components), then start the build "
        f"after `vcvarsall.bat x64 -vcvars_ver={toolset}`"
    )


def _instead(context: CheckContext, toolkit: Toolkit) -> str:
    """Return why the whole build has another compiler than the machine's usual one, if it has."""
    usual = context.host.compilers.default
    if (
        usual is None
        or context.compiler == usual
        or host_compiler.compiler_fits(context.constraints, usual)
    ):
        return ""
    refuses = (
        f"CUDA {toolkit.version}"
        if not host_compiler.nvcc_takes(toolkit, usual)
        else str(context.cell.release)
    )
    return f"{context.plan.variables['CXX']} compiles everything, because {refuses} does not take {usual}"


def _standard(context: CheckContext) -> str:
    rules = context.constraints.rules_with_base(context.compiler)
    standards = [rule.cxx for rule in rules if rule.cxx is not None]
    return f"C++{max(standards)}" if standards else "a C++ compiler"
