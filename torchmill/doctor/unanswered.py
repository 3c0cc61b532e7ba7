"""Why no GPU answers a program: what CUDA said, explained by what the machine has."""

from collections.abc import Iterator

from packaging.version import Version

from torchmill.diagnosis.causes import diagnose
from torchmill.doctor import driver
from torchmill.model import Facts, Host


def out_of_sight(host: Host) -> str | None:
    """Return why no program can reach a GPU of a measured host; None where one may be asked."""
    if not (host.gpus or host.driver or host.kernel_driver):
        return (
            "there is no GPU of NVIDIA's here, or no driver for it: try the wheels on a machine with one, "
            "where `nvidia-smi` lists it"
        )
    if host.kernel_driver and host.driver is None and host.system == "linux":
        return (
            f"the kernel has driver {host.kernel_driver}, but its library libcuda.so.1 is not where the "
            "loader looks: start a container with `--gpus all`, or install the library of that very version"
        )
    return None


def explained(facts: Facts, host: Host, toolkit: str | None, said: str) -> str:
    """Return why no GPU answers what a toolkit compiled, and what to do about it, as one sentence.

    `said` is what torch answered. What is seen of the driver goes before what the words alone tell.
    """
    words = (said.strip().splitlines() or ["no GPU answers"])[0].rstrip(". ")
    for because, cure in _seen(facts, host, toolkit):
        return f"{words}: {because}: {cure}"
    told = diagnose(facts.causes, [said]).told
    if told is not None:
        return f"{words}: {told.cause.cause}: {told.cause.cure}"
    return f"{words}: `invoke doctor` shows what is known of the GPU and its driver"


def _seen(facts: Facts, host: Host, toolkit: str | None) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the driver of a host, and the cure, the most certain first."""
    for finding in driver.mismatch(host):
        yield f"the driver's {finding.found} are of two versions", finding.cure
    yield from _too_old(facts, host, toolkit)
    for finding in driver.forward(host):
        if finding.verdict == "warning":
            yield f"the loader finds {finding.found}, and {finding.because}", finding.cure


def _too_old(facts: Facts, host: Host, toolkit: str | None) -> Iterator[tuple[str, str]]:
    known, version = facts.toolkit(toolkit), host.kernel_driver or host.driver
    if known is None or version is None:
        return
    oldest = known.driver_windows if host.system == "windows" else known.driver
    if oldest is None or Version(version) >= Version(oldest):
        return
    if host.compat and not driver.is_consumer(host):
        return
    because = f"driver {version} is older than {oldest}, the oldest that runs what CUDA {toolkit} makes"
    if host.compat:
        because += f", and {host.compat[0]} makes up for it only on GPUs of data centres"
    yield because, f"install driver {oldest} or newer, or build with an older toolkit"
