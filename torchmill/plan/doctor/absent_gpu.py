"""Explain why no GPU answers on a machine: before a wheel is tried there, and after that failed.

A board is a computer with a GPU of its own, such as a Jetson, whose driver comes with its JetPack.
Libraries of forward compatibility make up for an old driver, but only on data-centre GPUs.
"""

from collections.abc import Iterator
from typing import NamedTuple

from torchmill.config.facts import Facts
from torchmill.host.host import Host
from torchmill.plan.boards import board_driver_support
from torchmill.plan.causes import diagnose
from torchmill.plan.diagnosis.host_facts import host_facts
from torchmill.plan.diagnosis.situation import Fact
from torchmill.plan.doctor.gpu_driver import driver_mismatch, forward_compatibility
from torchmill.plan.drivers import (
    driver_range,
    driver_runs,
    find_bridge,
    has_consumer_gpu,
    oldest_driver,
)


def absence_reason(host: Host) -> str | None:
    """Return why programs cannot reach a GPU of a host, with the cure; None if they may.

    The host must have been measured: what it does not name is taken to be absent.
    """
    if host.unknown_gpus_reason:
        return (
            f"cannot tell which GPUs are here: {host.unknown_gpus_reason}, "
            "as happens if a GPU or its driver has failed"
        )
    if not host.gpus.devices and not host.gpus.running_driver:
        return (
            "no NVIDIA GPU here, or no driver for it: "
            "try the wheels on a machine where `nvidia-smi` lists one"
        )
    if host.gpus.kernel_driver and host.gpus.driver is None and host.system == "linux":
        return (
            f"the kernel has driver {host.gpus.kernel_driver}, but its library libcuda.so.1 is not "
            "where the loader looks: start a container with `--gpus all`, "
            "or install the library of exactly that version"
        )
    return None


def explain_no_gpu(facts: Facts, host: Host, cuda: str | None, message: str) -> str:
    """Return a sentence that says why no GPU runs a wheel, with the cure.

    `cuda` is the version of the wheel's toolkit, and `message` is the error of torch. If the driver
    is seen to have a fault, the fault is the reason: torch has one message for several faults.
    """
    lines = message.strip().splitlines()
    headline = lines[0].rstrip(". ") if lines else "no GPU answers"
    fault = next(_driver_faults(facts, host, cuda), None)
    if fault is not None:
        return f"{headline}: {fault.reason}: {fault.cure}"
    # A session tries the wheels, so its own options are named in a cure.
    known_facts = [Fact("suite", "torchmill", "session"), *host_facts(host, "host")]
    match = diagnose(facts.causes, [message], rules=facts, machine_facts=known_facts).match
    # A cause with the precedence "report" only says that something failed.
    if match is not None and match.cause.precedence != "report":
        return f"{headline}: {match.cause.cause}: {match.cause.cure}"
    return f"{headline}: `invoke doctor` shows what is known of the GPU and its driver"


class _Fault(NamedTuple):
    """A fault of a driver."""

    reason: str  # as a clause
    cure: str


def _driver_faults(facts: Facts, host: Host, cuda: str | None) -> Iterator[_Fault]:
    """Yield the faults of a host's driver for a wheel of a toolkit, the most certain first."""
    for finding in driver_mismatch(host):
        # The state is "library 535.54, kernel 550.1".
        yield _Fault(f"the driver's {finding.state} are of two versions", finding.cure)
    toolkit = facts.toolkit(cuda)
    if toolkit is not None and not driver_runs(toolkit, host):
        if board_driver_support(host, toolkit.version):
            # The board's driver runs this code only with libraries of forward compatibility.
            reason = (
                f"the driver of {host.platform.distribution} does not run "
                f"what CUDA {cuda} makes by itself"
            )
            cure = (
                "build with the toolkit of that JetPack; "
                "`invoke doctor` on the board names another way"
            )
            yield _Fault(reason, cure)
        elif find_bridge(toolkit, host).makes_up == "no":
            oldest = oldest_driver(toolkit, host.system)
            reason = (
                f"driver {host.gpus.running_driver} is older than {oldest}, "
                f"the oldest that runs what CUDA {cuda} makes"
            )
            folder = host.gpus.compat_folders[0] if host.gpus.compat_folders else ""
            if folder and has_consumer_gpu(host):
                reason += f", and {folder} makes up for it only on data-centre GPUs"
            elif folder:
                reason += f", and so are the libraries in {folder}"
            wanted = driver_range(facts, oldest or "", host)
            yield _Fault(reason, f"install driver {wanted}, or build with an older toolkit")
    for finding in forward_compatibility(host):
        if finding.verdict == "warning":
            reason = f"the loader finds {finding.state}, and {finding.because}"
            yield _Fault(reason, finding.cure)
