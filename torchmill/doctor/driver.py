"""The GPUs of a machine and their driver: a wheel may build here and still not run here.

Nothing in this module is ever more than a warning, for a build needs no GPU.
"""

import re
from collections.abc import Iterator

from packaging.version import Version

from torchmill import matrix
from torchmill.capabilities import gpus
from torchmill.capabilities.reading import read
from torchmill.capabilities.targets import number, serves
from torchmill.doctor.finding import Finding, Question, Verdict, nothing
from torchmill.errors import ConfigError
from torchmill.model import Capability, Facts, Gpu, Host, Toolkit

# GPUs for which NVIDIA does not support forward compatibility: it is for data centres.
_CONSUMER = re.compile(r"GeForce|TITAN|GTX|\bRTX [2-9]0\d0\b", re.IGNORECASE)


def check(question: Question) -> Iterator[Finding]:
    """Yield the findings on what the wheel meets when it is run on this machine."""
    if question.toolkit is None:
        return
    yield _driver(question, question.toolkit)
    yield from mismatch(question.host)
    yield from forward(question.host)
    listed = question.plan.set.get("TORCH_CUDA_ARCH_LIST", "")
    for gpu in dict.fromkeys(question.host.gpus):
        yield _gpu(question, question.toolkit, gpu, listed)


def _driver(question: Question, toolkit: Toolkit) -> Finding:
    host, subject = question.host, "GPU driver"
    oldest = toolkit.driver_windows if host.system == "windows" else toolkit.driver
    needed = f">={oldest}, to run it" if oldest else f"for CUDA {toolkit.version}: not known"
    version = host.kernel_driver or host.driver
    if version is None:
        verdict: Verdict = "ok" if host.complete and not host.gpus else "unknown"
        because = (
            "a build needs no GPU; what the wheel does on one cannot be tried here" if host.complete else ""
        )
        return Finding(subject, nothing(host), needed, verdict, because=because)
    if oldest is None:
        return Finding(subject, version, needed, "unknown")
    if Version(version) >= Version(oldest):
        return Finding(subject, version, needed, "ok")
    if host.compat and not is_consumer(host):
        because = "forward compatibility bridges the difference"
        return Finding(subject, version, needed, "ok", because=because)
    because = "the wheel builds, but does not find a GPU here until the driver is newer"
    cure = _runnable(question, version) or f"install driver {oldest} or newer"
    return Finding(subject, version, needed, "warning", cure, because)


def _runnable(question: Question, driver: str) -> str | None:
    """Return the command that builds for the newest toolkit that a driver runs, None where there is none."""
    build = question.build
    runs = {
        one.version
        for one in question.facts.toolkits
        if one.driver and Version(one.driver) <= Version(driver)
    }
    cells = [
        cell
        for cell in matrix.grid(question.facts, question.cell.release)
        if cell.possible and (cell.build.python, cell.build.arch) == (build.python, build.arch)
        if cell.build.cuda in runs
    ]
    return f"nox -s {cells[-1].build.identifier(question.host.arch)}" if cells else None


def mismatch(host: Host) -> Iterator[Finding]:
    """Yield a finding where the driver's library is not the one of the running kernel."""
    library, kernel = host.driver, host.kernel_driver
    if library is None or kernel is None or library == kernel:
        return
    because = "programs stop with Error 804 or 803 until both halves of the driver are of one version"
    yield Finding(
        "driver's halves",
        f"library {library}, kernel {kernel}",
        "one version",
        "warning",
        "sudo reboot",
        because,
    )


def forward(host: Host) -> Iterator[Finding]:
    """Yield the findings on forward-compatibility libraries that the loader finds."""
    for folder in host.compat:
        subject, needed = "forward compatibility", "only on GPUs of data centres"
        if not host.gpus:
            yield Finding(subject, folder, needed, "unknown")
        elif is_consumer(host):
            names = ", ".join(sorted({gpu.name for gpu in host.gpus}))
            because = f"{names} may not use them: programs stop with Error 804"
            yield Finding(subject, folder, needed, "warning", without(folder), because)
        else:
            yield Finding(subject, folder, needed, "ok")


def without(folder: str) -> str:
    """Return the command that takes a folder out of the loader's path."""
    return f"export LD_LIBRARY_PATH=$(echo $LD_LIBRARY_PATH | tr : '\\n' | grep -vxF {folder} | paste -sd :)"


def is_consumer(host: Host) -> bool:
    """Tell whether a host has a GPU that is not for data centres."""
    return any(_CONSUMER.search(gpu.name) for gpu in host.gpus)


def capability_of(facts: Facts, gpu: Gpu) -> Capability | None:
    """Return a GPU's compute capability: what the driver says, else what the facts say of its name."""
    try:
        return gpus.of_host(facts, (gpu,))[0].capability
    except ConfigError:  # newer than the facts, or a name that they lack
        return Capability(gpu.capability, "", ()) if gpu.capability else None


def _gpu(question: Question, toolkit: Toolkit, gpu: Gpu, listed: str) -> Finding:
    capability = capability_of(question.facts, gpu)
    needed = f"one of {listed}" if listed else "a capability that is listed"
    if capability is None or not listed:
        return Finding("GPU", gpu.name, needed, "unknown")
    found = f"{gpu.name} ({capability.name})"
    targets, _ = read(question.facts, listed, question.cell.release.torch_version)
    way = serves(question.facts, targets, capability)
    if way == "code":
        return Finding("GPU", found, needed, "ok")
    if way == "PTX":
        return _compiled_by_driver(question.host, toolkit, found, needed)
    because = "the wheel builds, but holds no code for this GPU"
    cure = f"{question.session} -- --arch-list '{capability.name}'"
    if capability.name not in toolkit.capabilities:
        because += f", nor can CUDA {toolkit.version} make any"
        newer = number(capability.name) > max(number(one.rstrip("af")) for one in toolkit.capabilities)
        cure = f"{question.session} -- --arch-list '{listed}+PTX'" if newer else ""
    return Finding("GPU", found, needed, "warning", cure, because)


def _compiled_by_driver(host: Host, toolkit: Toolkit, found: str, needed: str) -> Finding:
    version, oldest = host.kernel_driver or host.driver, toolkit.driver_ptx
    if version and oldest and Version(version) < Version(oldest):
        because = f"the list holds only PTX for this GPU, which a driver before {oldest} does not compile"
        return Finding("GPU", found, needed, "warning", f"install driver {oldest} or newer", because)
    because = "the list holds only PTX for this GPU: the driver compiles it when it is first used"
    return Finding("GPU", found, needed, "ok", because=because)
