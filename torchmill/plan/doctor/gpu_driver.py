"""Check GPUs and driver, and explain why no GPU answers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.gpu_names import gpu_capability, known_capabilities
from torchmill.config.served_gpus import how_served, ptx_runs
from torchmill.config.toolkit import Toolkit
from torchmill.host.host import Host
from torchmill.plan.arch_choice import library_gap, shortest_arch_list
from torchmill.plan.arch_toolkits import first_makers
from torchmill.plan.boards import board_driver_support
from torchmill.plan.causes import diagnose
from torchmill.plan.cuda_toolkit import cell_with_toolkit
from torchmill.plan.doctor import other_toolkits
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict, absence_text
from torchmill.plan.drivers import is_driven, is_ptx_compiled, oldest_driver
from torchmill.plan.local_gpus import takes_no_code

# GPUs for which NVIDIA does not support forward compatibility: it is for data centres.
_CONSUMER = re.compile(r"GeForce|TITAN|GTX|\bRTX [2-9]0[5-9]0\b", re.IGNORECASE)


def check_driver(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on what the wheel meets when it is run on this machine."""
    if context.toolkit is None:
        return
    yield _board(context, context.toolkit) or _driver(context, context.toolkit)
    yield from driver_mismatch(context.host)
    yield from forward_compatibility(context.host)
    for gpu in dict.fromkeys(context.host.gpus.devices):
        yield _gpu(context, context.toolkit, gpu, context.plan.arch_list)


def _driver(context: CheckContext, toolkit: Toolkit) -> Finding:
    host, subject = context.host, "GPU driver"
    oldest = oldest_driver(toolkit, host.system)
    needed = f">={oldest}, to run it" if oldest else f"for CUDA {toolkit.version}: not known"
    version = host.gpus.running_driver
    if version is None and host.gpus_unknown:
        return Finding(subject, "cannot tell", needed, "unknown", because=host.gpus_unknown)
    if version is None:
        verdict: Verdict = "ok" if host.complete and not host.gpus.devices else "unknown"
        because = (
            "a build needs no GPU; what the wheel does on one cannot be tried here"
            if host.complete
            else ""
        )
        found = "does not say its version" if host.gpus.devices else absence_text(host)
        return Finding(subject, found, needed, verdict, because=because)
    if oldest is None or is_driven(toolkit, host):
        return Finding(subject, version, needed, "ok" if oldest else "unknown")
    if host.gpus.compat_folders and not has_consumer_gpu(host):
        because = "forward compatibility bridges the difference"
        return Finding(subject, version, needed, "ok", because=because)
    because = "the wheel builds, but does not find a GPU here until the driver is newer"
    finding = Finding(subject, version, needed, "warning", because=because)
    newer = f"install driver {oldest} or newer"
    if host.packages.may_use_root is False:
        newer = f"ask whoever administers this machine for driver {oldest} or newer"
    return _undriven(context, toolkit, finding, newer)


def _board(context: CheckContext, toolkit: Toolkit) -> Finding | None:
    """Return the finding on the driver of a board, which is a part of its JetPack; None for another machine."""
    host, cuda = context.host, toolkit.version
    drive = board_driver_support(host, cuda)
    if drive is None:
        return None
    subject, found, needed = (
        "GPU driver",
        str(host.platform.distribution),
        f"a JetPack that runs CUDA {cuda}",
    )
    if drive == "own":
        return Finding(subject, found, needed, "ok")
    if drive == "unrecorded":
        because = f"whether its driver runs what CUDA {cuda} makes is not recorded"
        return Finding(subject, found, needed, "unknown", because=because)
    if drive == "compat" and host.gpus.compat_folders:
        because = f"it runs CUDA {cuda} with the libraries in {host.gpus.compat_folders[0]}"
        return Finding(subject, found, needed, "ok", because=because)
    if drive == "compat":
        package = f"cuda-compat-{cuda.replace('.', '-')}"
        because = (
            f"its driver runs CUDA {cuda} only with NVIDIA's libraries of forward compatibility"
        )
        finding = Finding(subject, found, needed, "warning", because=because)
        return _undriven(
            context, toolkit, finding, f"install {package} from NVIDIA's repository for the board"
        )
    because = f"its driver does not run what CUDA {cuda} makes"
    finding = Finding(subject, found, needed, "warning", because=because)
    return _undriven(context, toolkit, finding, "install a newer JetPack")


def _driver_ways(context: CheckContext, toolkit: Toolkit, newer: str) -> list[str]:
    """Return what helps if the driver does not run a toolkit, the best way first; `newer` is how to get another driver.

    Another driver is no way if the toolkit makes no code for the GPUs. A toolkit that nobody has tried goes last,
    unless the user cannot install a driver.
    """
    tried = other_toolkits.tried_toolkit(context)
    untried = other_toolkits.untried_toolkit(context, "runs with this driver")
    compiled = cell_with_toolkit(context.cell, toolkit.version)
    coded = other_toolkits.coded_gpus(context.facts, compiled, context.host)
    useful = coded or not known_capabilities(context.facts, context.host.gpus.devices)
    ways = [tried, newer if useful else "", "" if tried else untried]
    if context.host.packages.may_use_root is False:
        ways.sort(key=lambda way: way == newer)
    return [way for way in ways if way]


def _undriven(context: CheckContext, toolkit: Toolkit, finding: Finding, newer: str) -> Finding:
    """Return a finding on a driver that does not run a toolkit, with its cures."""
    ways = _driver_ways(context, toolkit, newer)
    because = finding.because
    if not ways:
        because += (
            f", and CUDA {toolkit.version} makes no code for the GPUs here: "
            "no toolkit of this release serves them"
        )
    best, *others = ways or [""]
    return replace(
        finding,
        verdict="warning",
        cure=best,
        because=because,
        runs_here=False,
        other_cures=tuple(others),
    )


def driver_mismatch(host: Host) -> Iterator[Finding]:
    """Yield a finding where the driver's library is not the one of the running kernel."""
    library, kernel = host.gpus.driver, host.gpus.kernel_driver
    if library and kernel and library != kernel:
        found = f"library {library}, kernel {kernel}"
        because = "programs stop with Error 804 or 803 until both halves of the driver have the same version"
        yield Finding(
            "driver's halves",
            found,
            "one version",
            "warning",
            "restart the machine: `sudo reboot`",
            because,
        )


def forward_compatibility(host: Host) -> Iterator[Finding]:
    """Yield the findings on forward-compatibility libraries that the loader finds."""
    for folder in host.gpus.compat_folders:
        subject, needed = "forward compatibility", "only on data-centre GPUs"
        if not host.gpus.devices:
            yield Finding(subject, folder, needed, "unknown")
        elif has_consumer_gpu(host):
            names = ", ".join(sorted({gpu.name for gpu in host.gpus.devices}))
            because = f"{names} may not use them: programs stop with Error 804"
            yield Finding(subject, folder, needed, "warning", loader_path_without(folder), because)
        else:
            yield Finding(subject, folder, needed, "ok")


def loader_path_without(folder: str) -> str:
    """Return the command that takes a folder out of the loader's path."""
    return f"export LD_LIBRARY_PATH=$(echo $LD_LIBRARY_PATH | tr : '\\n' | grep -vxF {folder} | paste -sd :)"


def has_consumer_gpu(host: Host) -> bool:
    """Tell whether a host has a GPU that is not for data centres."""
    return any(_CONSUMER.search(gpu.name) for gpu in host.gpus.devices)


def _gpu(context: CheckContext, toolkit: Toolkit, gpu: Gpu, listed: str) -> Finding:
    capability = gpu_capability(context.facts, gpu)
    needed = f"one of {listed}" if listed else "a capability that is listed"
    if capability is None or not listed:
        return Finding("GPU", gpu.name, needed, "unknown")
    found = f"{gpu.name} ({capability.name})"
    targets, _ = arch_list.parse_arch_list(
        context.facts, listed, context.cell.release.torch_version
    )
    way = how_served(context.facts, targets, capability)
    if way == "code":
        return Finding("GPU", found, needed, "ok")
    others = _serves_another(context, targets, capability)
    if way == "PTX":
        return _served_by_ptx(
            context, toolkit, capability, Finding("GPU", found, needed, "ok", runs_here=others)
        )
    because, cured = _without_code(context, toolkit, capability, targets)
    cure = (
        f"{context.session} -- --arch-list '{arch_list.format_arch_list(cured)}'" if cured else ""
    )
    missing = Finding("GPU", found, needed, "warning", cure, because, runs_here=others)
    if takes_no_code(context.facts, context.cell, toolkit, capability):
        return _made_elsewhere(context, toolkit, capability, missing)
    return missing


def _served_by_ptx(
    context: CheckContext, toolkit: Toolkit, gpu: Capability, finding: Finding
) -> Finding:
    """Return a finding on a GPU for which the list has PTX alone, which its driver compiles if it is new enough."""
    because = "the list has only PTX for this GPU"
    if not is_ptx_compiled(toolkit, context.host):
        because += f", which a driver before {toolkit.driver_ptx} does not compile"
        cure = f"install driver {toolkit.driver_ptx} or newer"
        return replace(finding, verdict="warning", cure=cure, because=because)
    because += ": the driver compiles it when it is first used"
    if gap := library_gap(toolkit, gpu):
        partly = replace(
            finding, verdict="warning", because=f"{because}, but {gap}", runs_here=True
        )
        return _made_elsewhere(context, toolkit, gpu, partly)
    return replace(finding, because=because, runs_here=True)


def _made_elsewhere(
    context: CheckContext, toolkit: Toolkit, gpu: Capability, finding: Finding
) -> Finding:
    """Return a finding on a GPU for which a build can make no code: with what can first, and with PTX last."""
    facts, because, others = context.facts, finding.because, []
    if context.cell.release.torch is None and (first := first_makers(facts, gpu, toolkit)):
        because += f"; the first with code for {gpu.name} are {first}"
        others.append(
            f"`invoke build --gpu {gpu.name}` chooses a release and a toolkit with code for it"
        )
    if command := other_toolkits.tried_toolkit(context, gpu.name):
        others.insert(0, command)
    elif clause := other_toolkits.untried_toolkit(context, "makes code for it", gpu.name):
        others.append(clause)
    gap = library_gap(toolkit, gpu)
    if finding.cure and gap:
        others.append(f"`{finding.cure}`: the driver compiles PTX, but {gap}")
    elif finding.cure:
        others.insert(0, finding.cure)
    best, *rest = others or [""]
    return replace(finding, cure=best, because=because, other_cures=tuple(rest))


def _serves_another(
    context: CheckContext, targets: Sequence[ArchTarget], missed: Capability
) -> bool:
    """Tell whether a list has code for another GPU of the host than one that it has none for."""
    here = [gpu_capability(context.facts, gpu) for gpu in context.host.gpus.devices]
    others = [gpu for gpu in here if gpu and gpu.name != missed.name]
    return any(how_served(context.facts, targets, gpu) for gpu in others)


def _without_code(
    context: CheckContext, toolkit: Toolkit, gpu: Capability, targets: Sequence[ArchTarget]
) -> tuple[str, Sequence[ArchTarget]]:
    """Return what it means that a list has no code for a GPU, and a list that has; an empty one if none can have."""
    facts = context.facts
    because = "the wheel builds, but holds no code for this GPU"
    if takes_no_code(facts, context.cell, toolkit, gpu):
        unable = gpu.name not in toolkit.capabilities
        because += (
            f", nor can {f'CUDA {toolkit.version}' if unable else context.cell.release} make any"
        )
        cured = _with_ptx(facts, targets, gpu)
        if gpu.tegra:
            because += "; a board runs no code for another capability"
            because += ", but its driver compiles PTX" if cured else ""
        return because, cured
    if gpu.tegra:
        because += f", and a board runs no code for another capability: {gpu.name} is required"
    here = [one for each in context.host.gpus.devices if (one := gpu_capability(facts, each))]
    able = [one for one in here if not takes_no_code(facts, context.cell, toolkit, one)]
    return because, shortest_arch_list(facts, able)


def _with_ptx(facts: Facts, targets: Sequence[ArchTarget], gpu: Capability) -> Sequence[ArchTarget]:
    """Return a list with PTX that runs on a GPU, for a board nothing but that; () if there is none.

    Drivers compile PTX for GPUs of the same capability and of newer ones, boards included. Code for another capability
    never runs on a board ("Binary Compatibility" of the CUDA C++ Programming Guide:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility).
    """
    heirs = [
        ArchTarget(one.capability, ptx=True) for one in sorted(targets, key=arch_list.target_key)
    ]
    if gpu.tegra:
        return [one for one in heirs if ptx_runs(facts, one, gpu)][-1:]
    return (*targets, heirs[-1]) if ptx_runs(facts, heirs[-1], gpu) else ()


def why_no_gpu(host: Host) -> str | None:
    """Return why no program can reach a GPU of a measured host; None where one may be asked."""
    if host.gpus_unknown:
        return f"cannot tell which GPUs are here: {host.gpus_unknown}, as happens where a GPU or its driver failed"
    if not (host.gpus.devices or host.gpus.running_driver):
        return "no NVIDIA GPU here, or no driver for it: try the wheels on a machine where `nvidia-smi` lists one"
    if host.gpus.kernel_driver and host.gpus.driver is None and host.system == "linux":
        return (
            f"the kernel has driver {host.gpus.kernel_driver}, but its library libcuda.so.1 is not where the "
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
    bridged = host.gpus.compat_folders and not has_consumer_gpu(host)
    if known is not None and board_driver_support(host, known.version):
        if not is_driven(known, host):
            because = f"the driver of {host.platform.distribution} does not run what CUDA {toolkit} makes by itself"
            yield (
                because,
                "build with the toolkit of that JetPack; `invoke doctor` on the board names another way",
            )
    elif known is not None and not is_driven(known, host) and not bridged:
        oldest = oldest_driver(known, host.system)
        because = (
            f"driver {host.gpus.running_driver} is older than {oldest}, "
            f"the oldest that runs what CUDA {toolkit} makes"
        )
        if host.gpus.compat_folders:
            because += (
                f", and {host.gpus.compat_folders[0]} makes up for it only on data-centre GPUs"
            )
        yield because, f"install driver {oldest} or newer, or build with an older toolkit"
    for finding in forward_compatibility(host):
        if finding.verdict == "warning":
            yield f"the loader finds {finding.found}, and {finding.because}", finding.cure
