"""Check the GPU driver of a machine against the CUDA toolkit of a build.

A board is a Jetson, whose driver comes with its JetPack.
"""

from collections.abc import Iterator
from dataclasses import replace

from torchmill.config.gpu_names import known_capabilities
from torchmill.config.toolkit import Toolkit
from torchmill.host.host import Host
from torchmill.plan.boards import board_driver_support
from torchmill.plan.cuda_toolkit import cell_with_toolkit
from torchmill.plan.doctor import other_toolkits
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict, absence_text
from torchmill.plan.drivers import (
    driver_range,
    driver_runs,
    find_bridge,
    has_consumer_gpu,
    no_driver_clause,
    oldest_driver,
    unserved_by_driver,
)

DRIVER = "GPU driver"  # the subject of the findings on it


def check_driver(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the driver that the wheel meets when it runs on this machine."""
    toolkit = context.toolkit
    if toolkit is None:
        return
    yield _board_finding(context, toolkit) or _driver_finding(context, toolkit)
    yield from driver_mismatch(context.host)
    yield from forward_compatibility(context.host)


def _driver_finding(context: CheckContext, toolkit: Toolkit) -> Finding:
    """Return the finding on the driver of graphics cards."""
    host = context.host
    oldest = oldest_driver(toolkit, host.system)
    needed = f">={oldest}, to run it" if oldest else f"for CUDA {toolkit.version}: not known"
    version = host.gpus.running_driver
    if version is None:
        return _unknown_driver(host, needed)
    if oldest is None:
        return Finding(DRIVER, version, needed, "unknown")
    wanted = driver_range(context.facts, oldest, host)
    new_driver = f"install driver {wanted}"
    if host.packages.may_use_root is False:
        new_driver = f"ask whoever administers this machine for driver {wanted}"
    too_old = unserved_by_driver(context.facts, host)
    if too_old:
        because = no_driver_clause(too_old[0], host)
        return Finding(
            DRIVER, version, needed, "warning", because=because, cure=new_driver, runs_here=False
        )
    if driver_runs(toolkit, host):
        return Finding(DRIVER, version, needed, "ok")
    bridge = find_bridge(toolkit, host)
    if bridge.makes_up != "no":
        because = (
            f"the libraries in {bridge.folder} are those of driver {host.gpus.compat_driver}: they "
            "make up for it, if NVIDIA's table of forward compatibility lists this driver for them"
        )
        if bridge.makes_up == "unknown":
            because = (
                f"the libraries in {bridge.folder} make up for it if they are those of driver "
                f"{oldest} or newer, which is not known"
            )
        verdict: Verdict = "ok" if bridge.makes_up == "yes" else "unknown"
        return Finding(DRIVER, version, needed, verdict, because=because)
    because = "the wheel builds, but does not find a GPU here until the driver is newer"
    finding = Finding(DRIVER, version, needed, "warning", because=because)
    return _with_driver_cures(context, toolkit, finding, new_driver)


def _unknown_driver(host: Host, needed: str) -> Finding:
    """Return the finding on a driver whose version is not known."""
    if host.unknown_gpus_reason:
        return Finding(DRIVER, "cannot tell", needed, "unknown", because=host.unknown_gpus_reason)
    if host.gpus.devices:
        return Finding(DRIVER, "does not say its version", needed, "unknown")
    if not host.complete:
        return Finding(DRIVER, absence_text(host), needed, "unknown")
    because = "a build needs no GPU, but the wheel cannot be tried on one here"
    return Finding(DRIVER, absence_text(host), needed, "ok", because=because)


def _board_finding(context: CheckContext, toolkit: Toolkit) -> Finding | None:
    """Return the finding on the driver of a board, which is a part of its JetPack.

    None for a machine that is not a board.
    """
    host = context.host
    cuda = toolkit.version
    support = board_driver_support(host, cuda)
    if support is None:
        return None
    state = str(host.platform.distribution)
    needed = f"a JetPack that runs CUDA {cuda}"
    if support == "native":
        return Finding(DRIVER, state, needed, "ok")
    if support == "unrecorded":
        because = f"whether its driver runs what CUDA {cuda} makes is not recorded"
        return Finding(DRIVER, state, needed, "unknown", because=because)
    if support == "compat" and host.gpus.compat_folders:
        because = f"it runs CUDA {cuda} with the libraries in {host.gpus.compat_folders[0]}"
        return Finding(DRIVER, state, needed, "ok", because=because)
    if support == "compat":
        package = f"cuda-compat-{cuda.replace('.', '-')}"
        cure = f"install {package} from NVIDIA's repository for the board"
        because = (
            f"its driver runs CUDA {cuda} only with NVIDIA's libraries of forward compatibility"
        )
    else:
        cure = "install a newer JetPack"
        because = f"its driver does not run what CUDA {cuda} makes"
    finding = Finding(DRIVER, state, needed, "warning", because=because)
    return _with_driver_cures(context, toolkit, finding, cure)


def _with_driver_cures(
    context: CheckContext, toolkit: Toolkit, finding: Finding, new_driver: str
) -> Finding:
    """Return the finding on a driver that does not run a toolkit's code, with its cures.

    The best cure is a toolkit that somebody has tried, then a new driver, then a toolkit that
    nobody has tried. If the user cannot become root, the driver goes last. `new_driver` is how to
    get it; it cures nothing if the toolkit makes no code for the GPUs.
    """
    tried = other_toolkits.tried_toolkit(context)
    cures = [tried]
    if _has_code_for_gpus(context, toolkit):
        cures.append(new_driver)
    if not tried:
        cures.append(other_toolkits.untried_toolkit(context, "runs with this driver"))
    if context.host.packages.may_use_root is False:
        cures.sort(key=lambda cure: cure == new_driver)  # stable: the others keep their order
    cures = [cure for cure in cures if cure]
    if not cures:
        because = (
            f"{finding.because}, and CUDA {toolkit.version} makes no code for the GPUs here: "
            "no toolkit of this release serves them"
        )
        return replace(finding, because=because, runs_here=False)
    return replace(finding, cure=cures[0], other_cures=tuple(cures[1:]), runs_here=False)


def _has_code_for_gpus(context: CheckContext, toolkit: Toolkit) -> bool:
    """Tell whether a build can have code for a GPU of the host; True if its GPUs are not known."""
    if not known_capabilities(context.facts, context.host.gpus.devices):
        return True
    cell = cell_with_toolkit(context.cell, toolkit.version)
    return bool(other_toolkits.compilable_gpus(context.facts, cell, context.host))


def driver_mismatch(host: Host) -> Iterator[Finding]:
    """Yield a finding if the driver's library and its kernel module are of two versions.

    They are after an update of the driver, until the machine is restarted.
    """
    library = host.gpus.driver
    kernel = host.gpus.kernel_driver
    if library and kernel and library != kernel:
        yield Finding(
            "driver's halves",
            f"library {library}, kernel {kernel}",
            "one version",
            "warning",
            cure="restart the machine: `sudo reboot`",
            because="programs stop with Error 804 or 803 "
            "until both halves of the driver have the same version",
        )


def forward_compatibility(host: Host) -> Iterator[Finding]:
    """Yield the findings on forward-compatibility libraries that the loader finds."""
    subject = "forward compatibility"
    needed = "only on data-centre GPUs"
    for folder in host.gpus.compat_folders:
        if not host.gpus.devices:
            yield Finding(subject, folder, needed, "unknown")
        elif has_consumer_gpu(host):
            names = ", ".join(sorted({gpu.name for gpu in host.gpus.devices}))
            because = f"{names} may not use them: programs stop with Error 804"
            yield Finding(
                subject,
                folder,
                needed,
                "warning",
                cure=loader_path_without(folder),
                because=because,
            )
        else:
            yield Finding(subject, folder, needed, "ok")


def check_stubs(host: Host) -> Iterator[Finding]:
    """Yield a finding for each folder in which the loader finds a stub in place of the driver."""
    for folder in host.gpus.stub_folders:
        because = "programs load the toolkit's stub of the driver, and find no GPU"
        cure = loader_path_without(folder)
        yield Finding(
            "driver's stub",
            folder,
            "not on the loader's path",
            "warning",
            cure=cure,
            because=because,
        )


def loader_path_without(folder: str) -> str:
    """Return the command that takes a folder out of the loader's path."""
    split = "echo $LD_LIBRARY_PATH | tr : '\\n'"  # one folder a line
    return f"export LD_LIBRARY_PATH=$({split} | grep -vxF {folder} | paste -sd :)"
