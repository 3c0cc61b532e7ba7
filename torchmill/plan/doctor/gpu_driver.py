"""Check GPUs and driver, and explain why no GPU answers."""

import re
from collections.abc import Iterator

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.matrix import possible_cells
from torchmill.config.model import Capability, Facts, Gpu, Host, Toolkit
from torchmill.plan.causes import diagnose
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict, absence_text
from torchmill.plan.published import is_driven, is_ptx_compiled, oldest_driver

# GPUs for which NVIDIA does not support forward compatibility: it is for data centres.
_CONSUMER = re.compile(r"GeForce|TITAN|GTX|\bRTX [2-9]0[5-9]0\b", re.IGNORECASE)


def check_driver(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on what the wheel meets when it is run on this machine."""
    if context.toolkit is None:
        return
    yield _driver(context, context.toolkit)
    yield from driver_mismatch(context.host)
    yield from forward_compatibility(context.host)
    for gpu in dict.fromkeys(context.host.gpus):
        yield _gpu(context, context.toolkit, gpu, context.plan.arch_list)


def _driver(context: CheckContext, toolkit: Toolkit) -> Finding:
    host, subject = context.host, "GPU driver"
    oldest = oldest_driver(toolkit, host.system)
    needed = f">={oldest}, to run it" if oldest else f"for CUDA {toolkit.version}: not known"
    version = host.running_driver
    if version is None and host.gpus_unknown:
        return Finding(subject, "cannot tell", needed, "unknown", because=host.gpus_unknown)
    if version is None:
        verdict: Verdict = "ok" if host.complete and not host.gpus else "unknown"
        because = "a build needs no GPU; what the wheel does on one cannot be tried here" if host.complete else ""
        found = "does not say its version" if host.gpus else absence_text(host)
        return Finding(subject, found, needed, verdict, because=because)
    if oldest is None or is_driven(toolkit, host):
        return Finding(subject, version, needed, "ok" if oldest else "unknown")
    if host.compat and not has_consumer_gpu(host):
        because = "forward compatibility bridges the difference"
        return Finding(subject, version, needed, "ok", because=because)
    because = "the wheel builds, but does not find a GPU here until the driver is newer"
    cure = _runnable(context) or f"install driver {oldest} or newer"
    return Finding(subject, version, needed, "warning", cure, because)


def _runnable(context: CheckContext) -> str | None:
    """Return the command that builds for the newest toolkit that the driver runs, None where there is none."""
    build, host = context.build, context.host
    known = (one for one in context.facts.toolkits if oldest_driver(one, host.system))
    runs = {one.version for one in known if is_driven(one, host)}
    cells = [
        cell
        for cell in possible_cells(context.facts, context.cell.release, build.arch)
        if cell.build.python == build.python and cell.build.cuda in runs
    ]
    return f"nox -s {cells[-1].build.identifier(host.arch)}" if cells else None


def driver_mismatch(host: Host) -> Iterator[Finding]:
    """Yield a finding where the driver's library is not the one of the running kernel."""
    library, kernel = host.driver, host.kernel_driver
    if library and kernel and library != kernel:
        found = f"library {library}, kernel {kernel}"
        because = "programs stop with Error 804 or 803 until both halves of the driver have the same version"
        yield Finding("driver's halves", found, "one version", "warning", "restart the machine: `sudo reboot`", because)


def forward_compatibility(host: Host) -> Iterator[Finding]:
    """Yield the findings on forward-compatibility libraries that the loader finds."""
    for folder in host.compat:
        subject, needed = "forward compatibility", "only on data-centre GPUs"
        if not host.gpus:
            yield Finding(subject, folder, needed, "unknown")
        elif has_consumer_gpu(host):
            names = ", ".join(sorted({gpu.name for gpu in host.gpus}))
            because = f"{names} may not use them: programs stop with Error 804"
            yield Finding(subject, folder, needed, "warning", loader_path_without(folder), because)
        else:
            yield Finding(subject, folder, needed, "ok")


def loader_path_without(folder: str) -> str:
    """Return the command that takes a folder out of the loader's path."""
    return f"export LD_LIBRARY_PATH=$(echo $LD_LIBRARY_PATH | tr : '\\n' | grep -vxF {folder} | paste -sd :)"


def has_consumer_gpu(host: Host) -> bool:
    """Tell whether a host has a GPU that is not for data centres."""
    return any(_CONSUMER.search(gpu.name) for gpu in host.gpus)


def _gpu(context: CheckContext, toolkit: Toolkit, gpu: Gpu, listed: str) -> Finding:
    capability = arch_list.gpu_capability(context.facts, gpu)
    needed = f"one of {listed}" if listed else "a capability that is listed"
    if capability is None or not listed:
        return Finding("GPU", gpu.name, needed, "unknown")
    found = f"{gpu.name} ({capability.name})"
    targets, _ = arch_list.parse_arch_list(context.facts, listed, context.cell.release.torch_version)
    way = arch_list.how_served(context.facts, targets, capability)
    if way == "code":
        return Finding("GPU", found, needed, "ok")
    if way == "PTX":
        because = "the list has only PTX for this GPU"
        if not is_ptx_compiled(toolkit, context.host):
            because += f", which a driver before {toolkit.driver_ptx} does not compile"
            return Finding("GPU", found, needed, "warning", f"install driver {toolkit.driver_ptx} or newer", because)
        return Finding("GPU", found, needed, "ok", because=f"{because}: the driver compiles it when it is first used")
    because = "the wheel builds, but holds no code for this GPU"
    here = filter(None, (arch_list.gpu_capability(context.facts, one) for one in context.host.gpus))
    cured = arch_list.shortest_arch_list(context.facts, [one for one in here if not _refused(context, toolkit, one)])
    if _refused(context, toolkit, capability):
        unable = capability.name not in toolkit.capabilities
        because += f", nor can {f'CUDA {toolkit.version}' if unable else context.cell.release} make any"
        heir = ArchTarget(max(targets, key=arch_list.target_key).capability, ptx=True)
        cured = (*targets, heir) if arch_list.ptx_runs(context.facts, heir, capability) else ()
    cure = f"{context.session} -- --arch-list '{arch_list.format_arch_list(cured)}'" if cured else ""
    return Finding("GPU", found, needed, "warning", cure, because)


def _refused(context: CheckContext, toolkit: Toolkit, gpu: Capability) -> bool:
    """Tell whether toolkit or release takes no list with a capability."""
    return any(arch_list.find_arch_problems(context.facts, [ArchTarget(gpu.name)], toolkit, context.cell.release))


def why_no_gpu(host: Host) -> str | None:
    """Return why no program can reach a GPU of a measured host; None where one may be asked."""
    if host.gpus_unknown:
        return f"cannot tell which GPUs are here: {host.gpus_unknown}, as happens where a GPU or its driver failed"
    if not (host.gpus or host.running_driver):
        return "no NVIDIA GPU here, or no driver for it: try the wheels on a machine where `nvidia-smi` lists one"
    if host.kernel_driver and host.driver is None and host.system == "linux":
        return (
            f"the kernel has driver {host.kernel_driver}, but its library libcuda.so.1 is not where the "
            "loader looks: start a container with `--gpus all`, or install the library of that very version"
        )
    return None


def explain_no_gpu(facts: Facts, host: Host, toolkit: str | None, message: str) -> str:
    """Return why no GPU answers what a toolkit compiled, and what to do about it, as one sentence.

    `message` is what torch answered. What is seen of the driver goes before what the words alone tell.
    """
    words = (message.strip().splitlines() or ["no GPU answers"])[0].rstrip(". ")
    for because, cure in _visible_causes(facts, host, toolkit):
        return f"{words}: {because}: {cure}"
    told = diagnose(facts.causes, [message]).match
    if told is not None and told.cause.precedence != "report":
        return f"{words}: {told.cause.cause}: {told.cause.cure}"
    return f"{words}: `invoke doctor` shows what is known of the GPU and its driver"


def _visible_causes(facts: Facts, host: Host, toolkit: str | None) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the driver of a host, and the cure, the most certain first."""
    for finding in driver_mismatch(host):
        yield f"the driver's {finding.found} are of two versions", finding.cure
    known = facts.toolkit(toolkit)
    bridged = host.compat and not has_consumer_gpu(host)
    if known is not None and not is_driven(known, host) and not bridged:
        oldest = oldest_driver(known, host.system)
        because = f"driver {host.running_driver} is older than {oldest}, the oldest that runs what CUDA {toolkit} makes"
        if host.compat:
            because += f", and {host.compat[0]} makes up for it only on data-centre GPUs"
        yield because, f"install driver {oldest} or newer, or build with an older toolkit"
    for finding in forward_compatibility(host):
        if finding.verdict == "warning":
            yield f"the loader finds {finding.found}, and {finding.because}", finding.cure
