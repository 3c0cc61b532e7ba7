"""Which drivers run the code of which CUDA toolkits."""

from packaging.version import Version

from torchmill.config.toolkit import Toolkit
from torchmill.host.host import Host
from torchmill.plan.boards import board_driver_support, board_runs


def is_driven(toolkit: Toolkit, host: Host) -> bool:
    """Tell whether a host's driver may run a toolkit's code: it is not known to be too old."""
    if board_driver_support(host, toolkit.version):
        return board_runs(host, toolkit.version)
    return not is_known_older(host.gpus.running_driver, oldest_driver(toolkit, host.system))


def is_ptx_compiled(toolkit: Toolkit, host: Host) -> bool:
    """Tell whether a host's driver may compile a toolkit's PTX: it is not known to be too old.

    Which driver that takes is recorded for Linux only.
    """
    if host.system == "windows":
        return True
    return not is_known_older(host.gpus.running_driver, toolkit.driver_ptx)


def oldest_driver(toolkit: Toolkit, system: str) -> str | None:
    """Return the oldest driver that runs a toolkit's code on a system; None if not known."""
    return toolkit.driver_windows if system == "windows" else toolkit.driver


def is_known_older(version: str | None, bound: str | None) -> bool:
    """Tell whether a version is older than a bound; False if either is not known."""
    if not version or not bound:
        return False
    return Version(version) < Version(bound)
