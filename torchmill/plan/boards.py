"""NVIDIA's Jetson boards: which CUDA toolkits the driver of their system, Jetson Linux, runs.

The driver is a part of Jetson Linux (L4T), so the release of Jetson Linux decides.
"""

from functools import cache
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.core.package_data import read_table_beside
from torchmill.host.host import Host

# "native": the driver runs the toolkit's code by itself. "compat": it does with NVIDIA's package
# cuda-compat. "unrecorded": nobody recorded whether it does. "none": it does not.
DriverSupport = Literal["native", "compat", "unrecorded", "none"]
# Keys of the tables in boards.toml. The driver does not run toolkits outside all their ranges.
_RECORDED: tuple[DriverSupport, ...] = ("native", "compat", "unrecorded")


@cache
def _boards_table() -> dict[str, dict[str, str]]:
    """Return the ranges of toolkits by release of Jetson Linux: "35" -> "native" -> "==11.4"."""
    return read_table_beside(__file__, "boards.toml")


def board_driver_support(host: Host, cuda: str) -> DriverSupport | None:
    """Return how the driver of a board supports the code that a CUDA toolkit makes.

    Return None for a machine that is not a board, and for a board whose driver follows the same
    version rules as the driver of a graphics card.
    """
    distribution = host.platform.distribution
    if distribution is None or distribution.l4t is None:
        return None
    # The full stops keep numbers whole: release "36.4" begins with "36", and not with "3".
    release = f"{distribution.l4t}."
    matching = [name for name in _boards_table() if release.startswith(f"{name}.")]
    if not matching:
        return None
    most_specific = max(matching, key=len)
    ranges = _boards_table()[most_specific]
    for support in _RECORDED:
        if support in ranges and cuda in SpecifierSet(ranges[support]):
            return support
    return "none"


def board_runs(host: Host, cuda: str) -> bool:
    """Tell whether a machine may run the code of a CUDA toolkit, as far as its board decides.

    True also for machines that are not boards, and if the support is not recorded.
    """
    support = board_driver_support(host, cuda)
    if support == "compat":
        # Folders of cuda-compat are found only if the package is installed.
        return bool(host.gpus.compat_folders)
    return support != "none"
