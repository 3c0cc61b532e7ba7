"""Which drivers run the code of which CUDA toolkits, and which GPUs.

A driver that is not known to be too old is taken to be new enough, so that nothing is refused
because a machine does not report its driver.

An old driver may run the code of a newer toolkit with NVIDIA's libraries of forward compatibility
(the package cuda-compat), on some GPUs: https://docs.nvidia.com/deploy/cuda-compatibility/
"""

import re
from typing import Literal, NamedTuple

from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import known_capabilities
from torchmill.config.toolkit import Toolkit
from torchmill.host.host import Host
from torchmill.plan.boards import board_driver_support, board_runs

# GPUs for which NVIDIA does not support forward compatibility, which is for data centres and
# workstations. "RTX 3080" is such a GPU; "RTX 4000" and "RTX A4000" are for workstations.
_CONSUMER = re.compile(r"GeForce|TITAN|GTX|\bRTX [2-9]0[5-9]0\b", re.IGNORECASE)


class Bridge(NamedTuple):
    """The libraries of forward compatibility of a machine with an old driver."""

    # Whether they make up for the driver. The kernel's driver must also be one of those that
    # NVIDIA's table lists for them, which is not recorded.
    makes_up: Literal["yes", "no", "unknown"]
    folder: str  # "/usr/local/cuda-12.1/compat"; "": there are none


def driver_runs(toolkit: Toolkit, host: Host) -> bool:
    """Tell whether a host's driver runs a toolkit's code, as far as is known."""
    if board_driver_support(host, toolkit.version):
        return board_runs(host, toolkit.version)
    return not is_known_older(host.gpus.running_driver, bound=oldest_driver(toolkit, host.system))


def driver_compiles_ptx(toolkit: Toolkit, host: Host) -> bool:
    """Tell whether a host's driver compiles a toolkit's PTX, as far as is known."""
    if host.system == "windows":
        return True  # the driver that it takes is recorded for Linux only
    return not is_known_older(host.gpus.running_driver, bound=toolkit.driver_ptx)


def driver_cuda(facts: Facts, driver: str | None) -> str:
    """Return the CUDA version that a Linux driver has, "13.0"; if it is not known, the newest.

    It is that of the newest toolkit that came with such a driver or an older one; "" for a driver
    that is older than all of them.
    """
    versions = []
    for toolkit in facts.toolkits:
        came_with = toolkit.driver_ptx or toolkit.driver
        if came_with and not is_known_older(driver, came_with):
            versions.append(toolkit.version)
    return max(versions, key=Version, default="")


def oldest_driver(toolkit: Toolkit, system: str) -> str | None:
    """Return the oldest driver that runs a toolkit's code on a system; None if not known."""
    return toolkit.driver_windows if system == "windows" else toolkit.driver


def is_known_older(version: str | None, bound: str | None) -> bool:
    """Tell whether a version is older than a bound; False if either is not known, None or ""."""
    if not version or not bound:
        return False
    return Version(version) < Version(bound)


def find_bridge(toolkit: Toolkit, host: Host) -> Bridge:
    """Return whether a host's libraries of forward compatibility make up for its old driver.

    They are the libraries of a newer driver, which has to be new enough for the toolkit.
    """
    folders = host.gpus.compat_folders
    if not folders:
        return Bridge("no", "")
    if has_consumer_gpu(host):
        return Bridge("no", folders[0])
    oldest = oldest_driver(toolkit, host.system)
    if host.gpus.compat_driver is None or oldest is None:
        return Bridge("unknown", folders[0])
    is_old = is_known_older(host.gpus.compat_driver, bound=oldest)
    return Bridge("no" if is_old else "yes", folders[0])


def has_consumer_gpu(host: Host) -> bool:
    """Tell whether a host has a GPU that is neither for data centres nor for workstations."""
    return any(_CONSUMER.search(gpu.name) for gpu in host.gpus.devices)


def unserved_by_driver(facts: Facts, host: Host) -> list[Capability]:
    """Return the capabilities of a host's GPUs that its driver is too new for, each once."""
    driver = host.gpus.running_driver
    unserved: dict[str, Capability] = {}
    for capability in _named_capabilities(facts, host):
        end = capability.dropped_by_driver
        if driver and end and not is_known_older(driver, bound=end):
            unserved[capability.name] = capability
    return list(unserved.values())


def no_driver_clause(capability: Capability, host: Host) -> str:
    """Return why a host's driver, which is too new, does not run GPUs of a capability."""
    return (
        f"driver {host.gpus.running_driver} does not run GPUs of {capability.name}: NVIDIA's "
        f"drivers do no more from {capability.dropped_by_driver} on"
    )


def driver_range(facts: Facts, oldest: str, host: Host) -> str:
    """Return the drivers that run a toolkit's code on a host's GPUs: "525.60.13 or newer".

    `oldest` is the oldest that runs the code. The newest do not run old GPUs: then the text is
    "525.60.13 or newer, but before 590".
    """
    ends = [
        capability.dropped_by_driver
        for capability in _named_capabilities(facts, host)
        if capability.dropped_by_driver
    ]
    if not ends:
        return f"{oldest} or newer"
    return f"{oldest} or newer, but before {min(ends, key=Version)}"


def _named_capabilities(facts: Facts, host: Host) -> list[Capability]:
    """Return the capabilities of the GPUs that a host is known to have.

    A GPU without a name stands for an arch list, which may be for older GPUs than any there.
    """
    return known_capabilities(facts, [gpu for gpu in host.gpus.devices if gpu.name])
