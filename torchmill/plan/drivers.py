"""Which drivers run the code of which CUDA toolkits.

A driver that is not known to be too old is taken to be new enough, so that nothing is refused
because a machine does not report its driver.
"""

from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.toolkit import Toolkit
from torchmill.host.host import Host
from torchmill.plan.boards import board_driver_support, board_runs


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
