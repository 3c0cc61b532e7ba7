"""Check what a build needs that is crossed: cross compilers, QEMU, a Python of the target."""

from collections.abc import Iterator

from torchmill.host import crossing
from torchmill.host.host import Compiler, HostCrossing
from torchmill.plan.doctor.finding import CheckContext, Finding, absence_finding
from torchmill.plan.doctor.package_cures import host_manager, package_cure
from torchmill.plan.host_compiler import compiler_fits
from torchmill.plan.system_packages import PACKAGES, naming_manager

_MAJORS = range(9, 20)  # the major versions of gcc that are tried against a build's bounds


def check_crossing(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on how a crossed build is tried on a host; none for any other build."""
    arch = context.host.crosses
    if not arch:
        return
    means = context.host.crossings.get(arch, HostCrossing())
    because = (
        f"what is compiled is for {arch}, and this machine is {context.host.arch}: the compilers "
        "run here, and what they made is tried by an emulator"
    )
    yield Finding("machine", f"{context.host.arch}, crosses", arch, "ok", because=because)
    yield _emulator_finding(context, means)
    yield _system_finding(context, means)
    yield _python_finding(context, means)


def _emulator_finding(context: CheckContext, means: HostCrossing) -> Finding:
    """Return the finding on the emulator that runs the target's Python."""
    arch = context.host.crosses
    needed = f"QEMU for {arch}, to try the wheel"
    if means.emulator:
        return Finding("emulator", means.emulator, needed, "ok")
    because = f"a wheel that was not imported is not put into dist/, and {arch} does not run here"
    cure = _package_cure(context, "emulator", "", crossing.emulator_name(arch))
    return absence_finding(context.host, "emulator", needed, cures=cure, because=because)


def _system_finding(context: CheckContext, means: HostCrossing) -> Finding:
    """Return the finding on the C library of the target, with which its programs run."""
    arch = context.host.crosses
    needed = f"the loader and C library of {arch}"
    if means.system:
        return Finding("system of the target", means.system, needed, "ok")
    cure = _package_cure(context, "cross_compiler", "", f"g++ for {arch}")
    return absence_finding(context.host, "system of the target", needed, cures=cure)


def _python_finding(context: CheckContext, means: HostCrossing) -> Finding:
    """Return the finding on the CPython of the target, which imports the wheel."""
    arch = context.host.crosses
    python = context.build.python
    subject = "Python of the target"
    needed = f"CPython {python} for {arch}"
    path = means.interpreters.get(python)
    if path:
        return Finding(subject, path, needed, "ok")
    cures = [
        f"uv python install cpython-{python}-linux-{arch}-gnu",
        f"name the folder of a whole {arch} system that has it in {crossing.ROOT_VARIABLE}",
    ]
    because = "it imports the wheel and computes with it, under QEMU"
    return absence_finding(context.host, subject, needed, cures=cures, because=because)


def compiler_cures(context: CheckContext) -> tuple[str, ...]:
    """Return how to get a cross compiler for a build, the best first.

    Of the compilers that fit, the newest that the system is known to have is the best.
    """
    host = context.host
    arch = host.crosses
    if not host.compilers.by_command:
        return (_package_cure(context, "cross_compiler", "", f"g++ for {arch}"),)
    fitting = []
    for major in _MAJORS:
        # Its minor version is taken to be the newest.
        if compiler_fits(context.constraints, Compiler("gcc", f"{major}.99")):
            fitting.append(str(major))
    cures = []
    for name in reversed(fitting):
        cures.append(_package_cure(context, "cross_compiler", name, f"g++ {name} for {arch}"))
    return tuple(cures)


def _package_cure(context: CheckContext, item: str, major: str, name: str) -> str:
    """Return how to install an item for the target, or a sentence that names it."""
    host = context.host
    triplet = crossing.triplet(host.crosses)
    template = PACKAGES[item].get(naming_manager(host_manager(host)))
    if template is None:
        return f"install {name}, or build in a container (`{context.session} -- --engine docker`)"
    package = template.format(triplet=triplet, major=f"-{major}" if major else "")
    return package_cure(host, [package])
