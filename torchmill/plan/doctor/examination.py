"""Examine a machine for a build, or for all it could build."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.release import Release
from torchmill.config.release_lookup import all_pythons, base_package, newest_release
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import format_bounds
from torchmill.core.errors import HostError
from torchmill.fetch.source import apt_archives
from torchmill.host.cuda_toolkits import format_part_names, lacking_toolkit_parts
from torchmill.host.host import Host
from torchmill.host.programs import installed_packages, make_runner
from torchmill.plan import system_packages
from torchmill.plan.cuda_toolkit import nvcc_takes
from torchmill.plan.doctor import (
    base_wheel,
    compiler,
    cuda,
    gpu_driver,
    judgement,
    package_cures,
    settings,
    system,
)
from torchmill.plan.doctor.finding import (
    CheckContext,
    Finding,
    Verdict,
    absence_finding,
    absence_text,
    absence_verdict,
)
from torchmill.plan.matrix import buildable_cells
from torchmill.plan.providers import has_other_libc, has_own_cuda

_CHECKS = (
    system.check_interpreter,
    compiler.check_compiler,
    compiler.check_processor,
    system.check_tools,
    cuda.check_cuda,
    cuda.check_toolkit_parts,
    base_wheel.check_base_wheel,
    judgement.check_trial,
    judgement.check_result,
    system.check_system,
    settings.check_settings,
    system.check_room,
    system.check_published,
)
_COMPILERS = {"linux": "gcc or clang", "macos": "clang", "windows": "Visual Studio's"}


def examine_build(context: CheckContext) -> tuple[Finding, ...]:
    """Return what a build finds on its host, in the order of a build."""
    found = [finding for check in _CHECKS for finding in check(context)]
    named = {finding.subject for finding in found}
    more = [*system.check_shortfalls(context), *unanswered(context.host)]
    return (*found, *(one for one in more if one.subject not in named))


def can_start(findings: Iterable[Finding]) -> bool:
    """Tell whether nothing stands in the way of a build."""
    return all(finding.verdict != "failure" for finding in findings)


def survey_host(facts: Facts, host: Host, environ: Mapping[str, str]) -> Host:
    """Return a measured host with what facts ask of it.

    That is the parts that its toolkits lack, and the system packages that any rule names, installed or not.
    """
    lacks = {
        version: [
            one.name for one in lacking_toolkit_parts(Path(home), version, facts.toolkit_parts)
        ]
        for version, home in host.toolkits.items()
    }
    named = {version: ", ".join(names) for version, names in lacks.items() if names}
    host = replace(
        host, lacking=named, archives=apt_archives.trusted_distributions(Path("/etc/apt"))
    )
    try:
        manager = find_host_manager(environ, host.distribution)
    except HostError:
        return host
    run = make_runner(environ)
    there = installed_packages(manager, environ, run)
    if run.unanswered:
        return replace(host, manager=manager, unanswered={**host.unanswered, **run.unanswered})
    asked = {
        name
        for package in facts.packages.values()
        for rule in package.rules
        for name in system_packages.package_choices(
            rule.system_packages.get(system_packages.names_of(manager), ())
        )
    }
    return replace(
        host, manager=manager, packages={name: there.get(name, "") for name in sorted(asked)}
    )


def find_host_manager(environ: Mapping[str, str], distribution: LinuxDistribution | None) -> str:
    """Return the package manager of this machine. Raises HostError if it has none that the facts know."""

    def path_has(program: str) -> bool:
        return shutil.which(program, path=environ.get("PATH")) is not None

    return system_packages.find_manager(path_has, distribution, conda="CONDA_PREFIX" in environ)


def examine_machine(facts: Facts, host: Host, release: Release | None) -> tuple[Finding, ...]:
    """Return what a host has for building `release`, or any release where none is named."""
    return (
        _cells(facts, host, release),
        *_interpreters(facts, host, release),
        _compilers(facts, host, release),
        *_toolkits(facts, host),
        system.git_finding(host, _item_cure(facts, host, release, "git")),
        system.cache_finding(host, next(iter(host.toolkits), None)),
        *system.libc_finding(host),
        *([system.xcode_finding(host)] if host.system == "macos" else []),
        *gpu_driver.driver_mismatch(host),
        *gpu_driver.forward_compatibility(host),
        *_gpus(facts, host),
        *unanswered(host),
        *system.package_room(host, base_package(facts)),
    )


def _cells(facts: Facts, host: Host, release: Release | None) -> Finding:
    """Return how many builds the machine has the interpreter and the toolkit for."""
    cells = buildable_cells(facts, release, host.arch)
    usable = _usable_interpreters(host)
    ready = [
        cell
        for cell in cells
        if cell.build.python in usable
        if cell.build.cuda is None or cell.build.cuda in host.toolkits
    ]
    subject, needed, of = (
        "can be built",
        "an interpreter, a toolkit",
        release.tag if release else "any release",
    )
    count = f"{len(ready)} of" if ready or host.complete else "not known which of"
    found = f"{count} {len(cells)} builds of {of}"
    if ready:
        because = "`invoke matrix` lists every build, `nox -l` those of the selected release"
        return Finding(subject, found, needed, "ok", because=because)
    return Finding(subject, found, needed, absence_verdict(host), "invoke matrix")


def _interpreters(facts: Facts, host: Host, release: Release | None) -> Iterator[Finding]:
    known = release.pythons if release else all_pythons(facts)
    wanted, newest = ", ".join(known), [one for one in known if not one.endswith("t")][-1]
    if usable := _usable_interpreters(host):
        yield Finding("interpreters", ", ".join(usable), f"any of {wanted}", "ok")
    else:
        yield absence_finding(
            host, "interpreters", f"any of {wanted}", system.how_to_install(host, newest)
        )
    for version in {**host.interpreters, **host.broken_interpreters}:
        if version not in usable:
            yield replace(
                system.interpreter_finding(host, version),
                subject=f"Python {version}",
                verdict="warning",
            )


def _usable_interpreters(host: Host) -> list[str]:
    return [
        one for one in host.interpreters if system.interpreter_finding(host, one).verdict == "ok"
    ]


def _item_cure(facts: Facts, host: Host, release: Release | None, item: str) -> str:
    """Return how to install something that builds of a release, or of the newest one, need."""
    if item in host.tools:
        return ""
    cells = buildable_cells(facts, release or newest_release(facts), host.arch)
    return package_cures.item_cure(host, item, facts, cells)


def _compilers(facts: Facts, host: Host, release: Release | None) -> Finding:
    needed = _COMPILERS.get(host.system, "gcc or clang")
    if host.compiler is None:
        return compiler.no_compiler(host, needed, [_item_cure(facts, host, release, "compiler")])
    others = ", ".join(f"{name} {one.version}" for name, one in host.compilers.items())
    return Finding(
        "C++ compiler", f"{host.compiler}{f' (of {others})' * bool(others)}", needed, "ok"
    )


def _toolkits(facts: Facts, host: Host) -> Iterator[Finding]:
    known = {one.version: one for one in facts.toolkits}
    for version, home in host.toolkits.items():
        subject = f"CUDA {version}"
        if version not in known:
            yield Finding(subject, home, "a toolkit that some release builds with", "unknown")
        else:
            yield _toolkit(known[version], host, subject, home)
        if lacks := cuda.lacking_parts(facts, host, version):
            cure = (
                ""
                if has_other_libc(host) or has_own_cuda(host)
                else f"invoke toolkit --complete {version}"
            )
            yield Finding(
                subject, f"no {format_part_names(lacks)}", cuda.NEEDED_PARTS, "warning", cure
            )
    if not host.toolkits:
        verdict: Verdict = "ok" if host.complete else "unknown"
        because = "builds without CUDA need none" if host.complete else ""
        yield Finding(
            "CUDA toolkits",
            absence_text(host),
            "one, for builds with CUDA",
            verdict,
            because=because,
        )


def _toolkit(toolkit: Toolkit, host: Host, subject: str, found: str) -> Finding:
    """Return the finding on a toolkit: that some compiler here goes with it."""
    every = filter(None, (host.compiler, *host.compilers.values()))
    fitting = [one for one in every if nvcc_takes(toolkit, one)]
    known = toolkit.gcc if host.system == "linux" else None
    needed = f"gcc {format_bounds(known)}" if known else "a host compiler: not known which"
    if fitting:
        best = max(fitting, key=lambda one: (one.family == "gcc", Version(one.version)))
        return Finding(subject, f"{found}, with {best}", needed, "ok")
    if not known or host.compiler is None:
        return Finding(subject, found, needed, "unknown")
    return Finding(
        subject, found, needed, "warning", because="no compiler here is one that its nvcc takes"
    )


def unanswered(host: Host) -> Iterator[Finding]:
    """Yield what programs did not tell: that is not known, and no proof that it is not there."""
    others = {
        name: said
        for name, said in host.unanswered.items()
        if not (name == "nvidia-smi" and host.gpus_unknown)
    }
    for program, said in others.items():
        because = "what it would tell is not known here: run it yourself to see what it waits for"
        yield Finding(program, said, "an answer", "unknown", because=because)


def _gpus(facts: Facts, host: Host) -> Iterator[Finding]:
    if host.gpus_unknown:
        yield Finding("GPU", "cannot tell", "none, to build", "unknown", because=host.gpus_unknown)
    for gpu in dict.fromkeys(host.gpus):
        capability = gpu_capability(facts, gpu)
        driver = f"driver {host.running_driver}" if host.running_driver else ""
        parts = gpu.name, capability.name if capability else "", driver
        yield Finding("GPU", ", ".join(filter(None, parts)), "none, to build", "ok")
