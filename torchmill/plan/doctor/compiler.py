"""Check the C++ compiler against the release, the toolkit, and the processor of the wheel."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from packaging.specifiers import SpecifierSet

from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import format_bounds, is_within
from torchmill.host.host import Compiler, Host
from torchmill.host.processor import processor_problems, unknown_name_hint
from torchmill.plan import host_compiler
from torchmill.plan.doctor import crossing
from torchmill.plan.doctor.compiler_cures import compiler_cures, missing_compiler_cures
from torchmill.plan.doctor.finding import (
    CheckContext,
    Finding,
    Verdict,
    absence_finding,
    with_cures,
)
from torchmill.plan.rules import Constraint

_SUBJECT = "C++ compiler"
_OLDEST_TOOLSET = 10  # of Visual Studio 2017: its compilers are 19.10 and newer


def check_compiler(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the compiler, and on the compiler that nvcc gets in a build with CUDA.

    Between them may come one on the C++ library that the compiler links.
    """
    compilers = context.host.compilers
    compiler = context.compiler
    if compiler is None:
        cures = _cures(context) if context.host.crosses else missing_compiler_cures(context)
        yield no_compiler(context.host, _needed_standard(context), cures)
    elif compiler == compilers.default and compilers.fault:
        yield faulty_compiler(context.host, _needed_standard(context), _cures(context))
    else:
        yield _release_finding(context, compiler)
    # The facts of a host name a libstdc++ only if its usual compiler does not link the system's.
    library = context.host.toolkits.libraries.get("libstdc++")
    if library and compiler == compilers.default:
        because = (
            "on systems whose library is older, wheels get no tag, or do not load: "
            "the gcc of gcc-toolset links the system's"
        )
        yield Finding("C++ library", library, "the system's", "warning", because=because)
    nvcc_command = context.plan.variables.get("CUDAHOSTCXX")
    if nvcc_command is None:
        nvcc_compiler = compilers.cuda or compiler
    else:
        nvcc_compiler = compilers.of_command(nvcc_command)
    if context.toolkit is not None and nvcc_compiler is not None:
        yield _toolkit_finding(context, context.toolkit, nvcc_compiler)


def no_compiler(host: Host, needed: str, cures: Sequence[str]) -> Finding:
    """Return the finding on a host of which no C++ compiler is known.

    `needed` is the standard or the family that is needed, and `cures` are those for Linux.
    """
    command = host.programs.paths.get("c++")
    if command is not None:
        program = PurePath(command.partition(" ")[0]).name
        silence = host.programs.unanswered.get(program, "does not say what it is")
        return Finding(_SUBJECT, f"{command}, which {silence}", needed, "unknown")
    if host.system == "windows":
        # A build finds Visual Studio even if it is not on PATH.
        return Finding(_SUBJECT, "none on PATH", needed, "unknown")
    if host.system == "macos":
        cures = ["xcode-select --install"]
    because = (
        "if yours has another name, or is not on PATH, set CC and CXX to it; "
        "correct them if they name none"
    )
    return absence_finding(host, _SUBJECT, needed, cures=cures, because=because)


def faulty_compiler(host: Host, needed: str, cures: Sequence[str]) -> Finding:
    """Return the finding on a host whose default C++ compiler cannot make even an empty program.

    `needed` is the standard or the family that is needed.
    """
    finding = Finding(
        _SUBJECT,
        f"{host.compilers.default}, which makes no program",
        needed,
        "failure",
        because=f"of a file that only includes <vector> it says: {host.compilers.fault}",
    )
    complete = "install its parts (on Debian and Ubuntu: g++, on Fedora and RHEL: gcc-c++)"
    return with_cures(finding, [*cures, complete])


def _release_finding(context: CheckContext, compiler: Compiler) -> Finding:
    """Return the finding on a compiler by the versions of it that the release takes.

    Outside the bounds that the release needs, a build fails. Outside the bounds that were tried, it
    may fail.
    """
    needs = context.needs(compiler.family)
    advises = context.constraints.advises(compiler.family, compiler)
    bounds = str(Constraint(needs.bounds & advises.bounds))
    needed = _needed_standard(context)
    if bounds:
        needed = f"{compiler.family} {bounds}, {needed}"
    # The graver first: a compiler outside both bounds is a failure.
    constraints: list[tuple[Constraint, Verdict]] = [(needs, "failure"), (advises, "warning")]
    for constraint, verdict in constraints:
        if not constraint.allows(compiler.version):
            because = f"{context.cell.release}: {'; '.join(constraint.reasons)}"
            finding = Finding(_SUBJECT, str(compiler), needed, verdict, because=because)
            return with_cures(finding, _cures(context))
    return Finding(_SUBJECT, str(compiler), needed, "ok")


def _cures(context: CheckContext) -> Sequence[str]:
    """Return how to build with a compiler that fits, the best first."""
    if context.host.crosses:
        return crossing.compiler_cures(context)
    return compiler_cures(context)


def _needed_standard(context: CheckContext) -> str:
    """Return the C++ standard that a release is written in, "C++17", or that one is needed."""
    rules = context.constraints.rules_with_base(context.compiler)
    standards = [rule.cxx for rule in rules if rule.cxx is not None]
    return f"C++{max(standards)}" if standards else "a C++ compiler"


def _toolkit_finding(context: CheckContext, toolkit: Toolkit, compiler: Compiler) -> Finding:
    """Return the finding on the compiler that nvcc gets, by the versions that it takes."""
    subject = "host compiler of nvcc"
    versions = host_compiler.versions_for_nvcc(toolkit, compiler.family)
    if versions is None:
        needed = f"what CUDA {toolkit.version} takes: not known"
        return Finding(subject, str(compiler), needed, "unknown")
    needed = f"{compiler.family} {format_bounds(versions)}"
    if is_within(versions, compiler.version):
        because = _replacement_reason(context, toolkit)
        return Finding(subject, str(compiler), needed, "ok", because=because)
    because = f"nvcc of CUDA {toolkit.version} takes {needed}"
    cures: Sequence[str]
    if compiler.family == "msvc":
        because += "; 19.2x is Visual Studio 2019, 19.3x and 19.4x 2022"
        cures = [_older_toolset_cure(versions, compiler)]
    else:
        cures = _cures(context)
    finding = Finding(subject, str(compiler), needed, "failure", because=because)
    return with_cures(finding, cures)


def _older_toolset_cure(versions: SpecifierSet, compiler: Compiler) -> str:
    """Return how to use the newest older toolset of Visual Studio that nvcc takes; "" if none.

    The toolset of compiler 19.29 is called 14.29, and Visual Studio's installer lists older ones as
    single components:
    https://learn.microsoft.com/en-us/cpp/build/building-on-the-command-line
    """
    newest = int(compiler.version.split(".")[1])
    for minor in range(newest, _OLDEST_TOOLSET - 1, -1):
        if is_within(versions, f"19.{minor}"):
            return (
                f"install toolset 14.{minor} beside it (Visual Studio Installer, single "
                "components), then start the build "
                f"after `vcvarsall.bat x64 -vcvars_ver=14.{minor}`"
            )
    return ""


def _replacement_reason(context: CheckContext, toolkit: Toolkit) -> str:
    """Return why the whole build has another compiler than the host's usual one.

    "" if it has the usual one, or if that was not refused.
    """
    usual = context.host.compilers.default
    if usual is None or context.compiler == usual:
        return ""
    if host_compiler.compiler_fits(context.constraints, usual):
        return ""  # the user named the other one, or somebody built the release with it
    refuser = str(context.cell.release)
    if not host_compiler.nvcc_takes(toolkit, usual):
        refuser = f"CUDA {toolkit.version}"
    command = context.plan.variables["CXX"]
    return f"{command} compiles everything, because {refuser} does not take {usual}"


def check_processor(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on whether the host runs code for the processor that `--cpu` names.

    A wheel that the host cannot run cannot be verified.
    """
    processor = context.plan.wheel.processor
    if processor is None:
        return
    subject = f"processor {processor.name}"
    needed = ", ".join(processor.needs) or "?"
    hint = unknown_name_hint(context.build.arch, processor.name)
    if hint is not None and not processor.needs:
        because = (
            "torchmill knows no processor of this name, "
            f"and compilers refuse a name that they do not know{hint}"
        )
        cure = "`g++ -Q --help=target` on that machine lists the names that its gcc knows"
        yield Finding(subject, "not known", needed, "warning", cure=cure, because=because)
        return
    features: tuple[str, ...] = ()
    if context.host.arch == context.build.arch:
        features = context.host.platform.processor_features
    problems = "".join(processor_problems(processor.needs, features))
    if problems:
        because = (
            f"{problems}: the checks at the end of the build have to run what was compiled for it"
        )
        cure = (
            "build on a machine that has it, or name another --cpu; "
            "without it torch chooses its kernels as it runs"
        )
        yield Finding(subject, problems, needed, "failure", cure=cure, because=because)
        return
    verdict: Verdict = "ok" if features and processor.needs else "unknown"
    yield Finding(subject, "all that is known", needed, verdict)
