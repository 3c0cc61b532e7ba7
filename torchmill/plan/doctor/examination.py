"""Examine a machine for one build, or for everything that it could build."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.release import Release
from torchmill.config.release_lookup import all_pythons, base_package, newest_release
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import format_bounds
from torchmill.host.cuda_toolkits import format_part_names
from torchmill.host.host import Compiler, Host
from torchmill.plan.doctor import (
    arch,
    base_wheel,
    blas,
    c_library,
    compiler,
    crossing,
    cuda,
    gpu_driver,
    interpreter,
    judgement,
    official_wheel,
    package_cures,
    packages,
    resources,
    settings,
    source,
    target_libraries,
    tools,
    vulnerabilities,
)
from torchmill.plan.doctor.finding import (
    CheckContext,
    Finding,
    absence_finding,
    absence_text,
    absence_verdict,
)
from torchmill.plan.host_compiler import nvcc_takes
from torchmill.plan.matrix import buildable_cells
from torchmill.plan.providers import has_other_libc, has_own_cuda

# Checks of a build on a host. In the order of a build: a user reads first of the obstacles that
# come first.
_BUILD_CHECKS: tuple[Callable[[CheckContext], Iterable[Finding]], ...] = (
    interpreter.check_interpreter,
    compiler.check_compiler,
    compiler.check_processor,
    tools.check_tools,
    cuda.check_cuda,
    cuda.check_toolkit_parts,
    base_wheel.check_base_wheel,
    judgement.check_trial,
    judgement.check_result,
    target_libraries.check_target_libraries,
    target_libraries.check_loader_path,
    arch.check_arch,
    crossing.check_crossing,
    source.check_source,
    packages.check_packages,
    blas.check_blas,
    c_library.check_c_library,
    settings.check_settings,
    resources.check_resources,
    official_wheel.check_published,
    vulnerabilities.check_vulnerabilities,
)
# Checks of a host alone, whatever it builds: the examination of a build and that of a machine both
# end with them.
HOST_CHECKS: tuple[Callable[[Host], Iterable[Finding]], ...] = (
    resources.check_processor_time,
    resources.check_limits,
    resources.check_certificates,
    gpu_driver.check_stubs,
    tools.check_unanswered,
)
_COMPILERS = {"linux": "gcc or clang", "macos": "clang", "windows": "Visual Studio's"}


def examine_build(context: CheckContext) -> tuple[Finding, ...]:
    """Return the findings of a build on its host, in the order of a build.

    General findings on the host come last, and only on subjects that no other finding has.
    """
    findings: list[Finding] = []
    for check in _BUILD_CHECKS:
        findings.extend(check(context))
    subjects = {finding.subject for finding in findings}
    # The finding of a check on the same subject says more than one of these.
    general = [*official_wheel.check_shortfalls(context), *_check_host(context.host)]
    findings.extend(finding for finding in general if finding.subject not in subjects)
    return tuple(findings)


def can_start(findings: Iterable[Finding]) -> bool:
    """Tell whether no finding is a failure: warnings, and what is not known, stop no build."""
    return all(finding.verdict != "failure" for finding in findings)


def examine_machine(facts: Facts, host: Host, release: Release | None) -> tuple[Finding, ...]:
    """Return the findings on a host for all builds of a release; None: of every release."""
    first_toolkit = next(iter(host.toolkits.homes), None)
    findings = [_builds_finding(facts, host, release)]
    findings += _check_interpreters(facts, host, release)
    findings.append(_compiler_finding(facts, host, release))
    findings += _check_toolkits(facts, host)
    findings.append(tools.git_finding(host, _item_cure_for_release(facts, host, release, "git")))
    findings.append(tools.cache_finding(host, first_toolkit))
    findings += c_library.check_host_library(host)
    if host.system == "macos":
        findings.append(tools.xcode_finding(host))
    findings += gpu_driver.driver_mismatch(host)
    findings += gpu_driver.forward_compatibility(host)
    findings += _check_gpus(facts, host)
    findings += resources.check_package_resources(host, base_package(facts))
    findings += _check_host(host)
    return tuple(findings)


def _check_host(host: Host) -> Iterator[Finding]:
    """Yield the findings of the checks of a host alone."""
    for check in HOST_CHECKS:
        yield from check(host)


def _builds_finding(facts: Facts, host: Host, release: Release | None) -> Finding:
    """Return the finding on the number of builds for which a host has interpreter and toolkit."""
    cells = buildable_cells(facts, release, host.arch)
    pythons = _usable_interpreters(host)
    toolkits = {None, *host.toolkits.homes}  # None: a build without CUDA needs no toolkit
    ready = [cell for cell in cells if cell.build.python in pythons and cell.build.cuda in toolkits]
    subject = "can be built"
    needed = "an interpreter, a toolkit"
    # A host that is described in part may be ready for all of them.
    count = f"{len(ready)} of" if ready or host.complete else "not known which of"
    state = f"{count} {len(cells)} builds of {release.tag if release else 'any release'}"
    if ready:
        because = "`invoke matrix` lists every build, `nox -l` those of the selected release"
        return Finding(subject, state, needed, "ok", because=because)
    return Finding(subject, state, needed, absence_verdict(host), cure="invoke matrix")


def _check_interpreters(facts: Facts, host: Host, release: Release | None) -> Iterator[Finding]:
    """Yield the finding on usable interpreters, and one for each interpreter that is not usable."""
    subject = "interpreters"
    pythons = release.pythons if release else all_pythons(facts)
    needed = f"any of {', '.join(pythons)}"
    usable = _usable_interpreters(host)
    if usable:
        yield Finding(subject, ", ".join(usable), needed, "ok")
    else:
        # The usual Python, as opposed to the free-threaded "3.13t".
        newest = [python for python in pythons if not python.endswith("t")][-1]
        yield absence_finding(host, subject, needed, cures=interpreter.python_cure(host, newest))
    for version in {**host.interpreters.paths, **host.interpreters.broken}:
        if version not in usable:
            finding = interpreter.interpreter_finding(host, version)
            # No more than a warning: builds for other Pythons do without this interpreter.
            yield replace(finding, subject=f"Python {version}", verdict="warning")


def _usable_interpreters(host: Host) -> list[str]:
    """Return the Pythons of which a host has an interpreter that can build: "3.10"."""
    return [
        version
        for version in host.interpreters.paths
        if interpreter.interpreter_finding(host, version).verdict == "ok"
    ]


def _item_cure_for_release(facts: Facts, host: Host, release: Release | None, item: str) -> str:
    """Return how to install an item of system_packages.toml, such as "git", on a host.

    "" if the host has it. The item is meant for builds of a release; None: of the newest one.
    """
    if item in host.programs.paths:
        return ""
    cells = buildable_cells(facts, release or newest_release(facts), host.arch)
    return package_cures.item_cure(host, item, facts, cells)


def _compiler_finding(facts: Facts, host: Host, release: Release | None) -> Finding:
    """Return the finding on the usual C++ compiler of a host, with a list of all that were found."""
    needed = _COMPILERS.get(host.system, "gcc or clang")
    if host.compilers.default is None:
        return compiler.no_compiler(
            host, needed, [_item_cure_for_release(facts, host, release, "compiler")]
        )
    if host.compilers.fault:
        return compiler.faulty_compiler(host, needed, [])
    state = str(host.compilers.default)
    if host.compilers.by_command:
        listed = ", ".join(
            f"{name} {other.version}" for name, other in host.compilers.by_command.items()
        )
        state += f" (of {listed})"
    return Finding("C++ compiler", state, needed, "ok")


def _check_toolkits(facts: Facts, host: Host) -> Iterator[Finding]:
    """Yield the findings on the CUDA toolkits of a host, and on parts that they lack."""
    for version, folder in host.toolkits.homes.items():
        subject = f"CUDA {version}"
        toolkit = facts.toolkit(version)
        if toolkit is None:
            yield Finding(subject, folder, "a toolkit that some release builds with", "unknown")
        else:
            yield _toolkit_finding(toolkit, host, subject, folder)
        parts = cuda.missing_parts(facts, host, version)
        if parts:
            # The packages that complete a toolkit are for glibc, and for no Jetson of old JetPacks.
            is_completable = not has_other_libc(host) and not has_own_cuda(host)
            cure = f"invoke toolkit --complete {version}" if is_completable else ""
            state = f"no {format_part_names(parts)}"
            yield Finding(subject, state, cuda.NEEDED_PARTS, "warning", cure=cure)
    if not host.toolkits.homes:
        yield Finding(
            "CUDA toolkits",
            absence_text(host),
            "one, for builds with CUDA",
            "ok" if host.complete else "unknown",
            because="builds without CUDA need none" if host.complete else "",
        )


def _toolkit_finding(toolkit: Toolkit, host: Host, subject: str, folder: str) -> Finding:
    """Return the finding on whether a toolkit's nvcc takes some compiler of the host."""
    compilers = list(host.compilers.by_command.values())
    if host.compilers.default is not None:
        compilers.insert(0, host.compilers.default)
    fitting = [candidate for candidate in compilers if nvcc_takes(toolkit, candidate)]
    gcc = toolkit.gcc if host.system == "linux" else None
    needed = f"gcc {format_bounds(gcc)}" if gcc else "a host compiler: not known which"
    if fitting:
        best = max(fitting, key=_compiler_preference)
        return Finding(subject, f"{folder}, with {best}", needed, "ok")
    if not gcc or host.compilers.default is None:
        return Finding(subject, folder, needed, "unknown")
    because = "no compiler here is one that its nvcc takes"
    return Finding(subject, folder, needed, "warning", because=because)


def _compiler_preference(candidate: Compiler) -> tuple[bool, Version]:
    """Return the key by which the best of some compilers is the greatest: gcc, then the newest."""
    return candidate.family == "gcc", Version(candidate.version)


def _check_gpus(facts: Facts, host: Host) -> Iterator[Finding]:
    """Yield a finding on each GPU of a host, GPUs alike once."""
    needed = "none, to build"
    if host.unknown_gpus_reason:
        yield Finding("GPU", "cannot tell", needed, "unknown", because=host.unknown_gpus_reason)
    for gpu in dict.fromkeys(host.gpus.devices):
        parts = [gpu.name]
        capability = gpu_capability(facts, gpu)
        if capability:
            parts.append(capability.name)
        if host.gpus.running_driver:
            parts.append(f"driver {host.gpus.running_driver}")
        yield Finding("GPU", ", ".join(part for part in parts if part), needed, "ok")
