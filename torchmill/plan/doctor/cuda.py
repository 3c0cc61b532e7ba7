"""Check the CUDA toolkit of a build: its version, its parts, and the code that it is to make."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from packaging.specifiers import SpecifierSet

from torchmill.config import distributions
from torchmill.config.arch_list import parse_checked_arch_list
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import known_capabilities
from torchmill.config.toolkit import Toolkit, ToolkitPart
from torchmill.config.versions import format_bounds, is_within
from torchmill.core.units import format_bytes
from torchmill.host.cuda_toolkits import format_part_names
from torchmill.host.host import Host
from torchmill.host.provisioned import TOOLKIT
from torchmill.plan import link_overflow, system_packages
from torchmill.plan.cuda_toolkit import usable_toolkits
from torchmill.plan.doctor.container_cures import container_cures, glibc_cure
from torchmill.plan.doctor.finding import (
    CheckContext,
    Finding,
    absence_text,
    absence_verdict,
    completion_command,
    toolkit_command,
    with_cures,
)
from torchmill.plan.doctor.libraries import BOARD_ARCHIVE, check_libraries
from torchmill.plan.doctor.package_cures import board_package_cure, host_manager
from torchmill.plan.drivers import driver_runs
from torchmill.plan.providers import has_other_libc, libc_name

# The installers of all toolkits; they need no package manager.
_INSTALLERS = "https://developer.nvidia.com/cuda-toolkit-archive"
NEEDED_PARTS = "all that torch's build uses"


def check_cuda(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the toolkit, and on the libraries of CUDA that the package links.

    An extension links none of these: it uses those that torch has linked.
    """
    toolkit = context.toolkit
    if toolkit is None:
        return
    yield _toolkit_finding(context, toolkit.version)
    yield from _check_c_library(context, toolkit)
    yield from _check_deprecated(context, toolkit)
    if context.package.after is None:
        yield from check_libraries(context)
        yield from _check_link(context, toolkit.version)


def _toolkit_finding(context: CheckContext, cuda: str) -> Finding:
    """Return the finding on whether the host has the toolkit of the build."""
    subject = "CUDA toolkit"
    homes = context.host.toolkits.homes
    usual = context.build.cuda
    needed = cuda if cuda == usual else f"{cuda}, asked for in place of {usual}"
    if cuda in homes:
        return Finding(subject, f"{cuda} in {homes[cuda]}", needed, "ok")
    finding = Finding(subject, absence_text(context.host), needed, absence_verdict(context.host))
    if homes:
        finding = Finding(subject, f"CUDA {', '.join(homes)}", needed, "failure")
    because = _other_toolkit_clause(context)
    cure = toolkit_command(context, TOOLKIT, cuda)
    if cure is None:
        cure = _packaged_toolkit(context, cuda)
        if has_other_libc(context.host):
            library = libc_name(context.host)
            because = f"NVIDIA makes CUDA for glibc alone, and the C library here is {library}"
        elif not because:
            because = "one that is installed elsewhere is found through CUDA_HOME"
    finding = replace(finding, because=because)
    return with_cures(finding, [cure, *container_cures(context)])


def _other_toolkit_clause(context: CheckContext) -> str:
    """Return a clause on the newest toolkit of the host that can compile the cell instead, or "".

    Only toolkits count whose code the driver runs.
    """
    host = context.host
    driven: list[str] = []
    for version in host.toolkits.homes:
        toolkit = context.facts.toolkit(version)
        if toolkit is not None and driver_runs(toolkit, host):
            driven.append(version)
    usable = usable_toolkits(context.facts, context.cell, driven)
    if not usable:
        return ""
    newest = usable[-1]
    return f"on request {newest} compiles it: {context.session} -- --toolkit {newest}"


def _check_c_library(context: CheckContext, toolkit: Toolkit) -> Iterator[Finding]:
    """Yield a finding if the toolkit's headers cannot be read with those of the C library."""
    glibc = context.host.platform.glibc
    if glibc is None or is_within(toolkit.glibc, glibc):
        return
    fitting = [
        candidate.version
        for candidate in context.facts.toolkits
        if is_within(candidate.glibc, glibc)
    ]
    usable = usable_toolkits(context.facts, context.cell, fitting)
    cures = [f"{context.session} -- --toolkit {version}" for version in usable[:1]]
    cures += container_cures(context)
    if not cures:
        cures.append("build on a system, or in a container, with an older glibc")
    finding = Finding(
        "glibc and CUDA",
        f"glibc {glibc}",
        f"glibc {format_bounds(toolkit.glibc or SpecifierSet())}",
        "failure",
        because=(
            f"this glibc declares mathematical functions that the headers of CUDA "
            f"{toolkit.version} declare differently, and nothing with CUDA compiles"
        ),
    )
    yield with_cures(finding, cures)


def _packaged_toolkit(context: CheckContext, cuda: str) -> str:
    """Return how to install a toolkit that `invoke toolkit` cannot bring to the host."""
    host = context.host
    if has_other_libc(host):
        return glibc_cure(context)
    package = f"cuda-toolkit-{cuda.replace('.', '-')}"
    # NVIDIA's archive for a board has the one CUDA of its JetPack.
    board = distributions.find_jetson(host.platform.distribution)
    if board is not None and board.cuda != cuda:
        return f"build for CUDA {board.cuda}, which is that of this board's JetPack"
    if board is not None and board.toolkit:
        return board_package_cure(host, board.toolkit)
    if board is not None:
        return f"look for it as {package} in {BOARD_ARCHIVE}"
    place = system_packages.describe_place(host_manager(host), host.platform.distribution)
    return (
        f"look for it as {package} in NVIDIA's archive for {place}, "
        f"or take the installer of {_INSTALLERS}"
    )


def _check_deprecated(context: CheckContext, toolkit: Toolkit) -> Iterator[Finding]:
    """Yield a finding if the toolkit deprecates some entries of the arch list."""
    listed = context.plan.arch_list
    names = [target.name for target in parse_checked_arch_list(context.facts, listed)]
    deprecated = ", ".join(name for name in names if name in toolkit.deprecated)
    if deprecated:
        needed = f"what CUDA {toolkit.version} makes code for"
        because = f"CUDA {toolkit.version} warns about {deprecated}, which a later toolkit drops"
        yield Finding("compute capabilities", listed, needed, "ok", because=because)


def _check_link(context: CheckContext, cuda: str) -> Iterator[Finding]:
    """Yield a finding if the link of libtorch_cuda may overflow."""
    gpus = known_capabilities(context.facts, context.host.gpus.devices)
    risk = link_overflow.predict_overflow(
        context.facts, context.cell.release, cuda, context.plan.variables, gpus
    )
    if risk is None or risk.level == "none":
        return
    yield Finding(
        "libtorch_cuda",
        risk.expected.in_bytes,
        f"at most {format_bytes(risk.limit)}",
        "failure" if risk.level == "likely" else "warning",
        cure=f"build with {', or '.join(risk.cures)}",
        because='beyond it the link ends with "relocation truncated to fit"',
    )


def check_toolkit_parts(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding if the toolkit of the build lacks parts."""
    cuda = context.plan.cuda.toolkit or ""
    parts = missing_parts(context.facts, context.host, cuda)
    if not parts:
        return
    # A build stops without a required part. Without an optional part the wheel lacks something,
    # which `without` names, except for the releases in `vital`, whose builds stop.
    release = context.cell.release.torch_version
    stops_build = False
    for part in parts:
        is_vital = part.vital is not None and part.vital.contains(release)
        stops_build |= is_vital or part.is_required
    yield Finding(
        "parts of CUDA",
        f"no {format_part_names(parts)} in {context.host.toolkits.homes[cuda]}",
        NEEDED_PARTS,
        "failure" if stops_build else "warning",
        cure=completion_command(context, cuda, parts),
        because="; ".join(part.without for part in parts if part.without),
    )


def missing_parts(facts: Facts, host: Host, version: str) -> Sequence[ToolkitPart]:
    """Return the parts that a host's toolkit is known to lack; none of a toolkit that it lacks."""
    if version not in host.toolkits.homes:
        return []
    names = host.toolkits.lacking_parts.get(version, "").split(", ")
    return [part for part in facts.toolkit_parts if part.name in names]
