"""NVIDIA's boards: which CUDA toolkits the driver of their Jetson Linux runs."""

from functools import cache
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.core.package_data import read_table_beside
from torchmill.host.host import Host

# "own": the driver runs the toolkit's code by itself. "compat": with NVIDIA's package cuda-compat.
# "unrecorded": nobody recorded whether it does. "none": it does not.
DriverSupport = Literal["own", "compat", "unrecorded", "none"]
# The keys of a table in boards.toml. Toolkits outside all of its ranges, the driver does not run.
_RECORDED: tuple[DriverSupport, ...] = ("own", "compat", "unrecorded")


@cache
def _boards_table() -> dict[str, dict[str, str]]:
    return read_table_beside(__file__, "boards.toml")


def board_driver_support(host: Host, cuda: str) -> DriverSupport | None:
    """Return how the driver of a board supports the code that a CUDA toolkit makes.

    Return None for a machine that is no board, and for a board whose driver follows the same
    version rules as the driver of a graphics card.
    """
    if host.platform.distribution is None or host.platform.distribution.l4t is None:
        return None
    release = host.platform.distribution.l4t
    # "36" must match "36.4", but not "3"; the full stop keeps numbers whole.
    matching = [name for name in _boards_table() if f"{release}.".startswith(f"{name}.")]
    if not matching:
        return None
    ranges = _boards_table()[max(matching, key=len)]
    for support in _RECORDED:
        if support in ranges and cuda in SpecifierSet(ranges[support]):
            return support
    return "none"


def board_runs(host: Host, cuda: str) -> bool:
    """Tell whether a machine may run the code of a CUDA toolkit, as far as its board decides.

    True also for machines that are no boards, and if the support is not recorded.
    """
    support = board_driver_support(host, cuda)
    if support == "compat":
        return bool(host.gpus.compat_folders)
    return support != "none"
