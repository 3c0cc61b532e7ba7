"""Boards of NVIDIA's: which toolkits the driver of their Jetson Linux runs."""

from functools import cache
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.model import Host
from torchmill.core.files import read_table_beside

Drive = Literal["own", "compat", "unrecorded", "none"]
_WAYS: tuple[Drive, ...] = ("own", "compat", "unrecorded")


@cache
def _table() -> dict[str, dict[str, str]]:
    return read_table_beside(__file__, "boards.toml")


def board_drive(host: Host, cuda: str) -> Drive | None:
    """Return how the driver of a board runs what a toolkit makes.

    "own" is by itself, "compat" with NVIDIA's package cuda-compat, "none" not at all. None for a machine that is no
    board, and for one whose driver counts as those of graphics cards do.
    """
    release = (host.distribution.l4t if host.distribution else None) or ""
    fitting = [one for one in _table() if f"{release}.".startswith(f"{one}.")]
    if not fitting:
        return None
    limits = _table()[max(fitting, key=len)]
    return next(
        (way for way in _WAYS if way in limits and cuda in SpecifierSet(limits[way])), "none"
    )


def board_runs(host: Host, cuda: str) -> bool:
    """Tell whether nothing keeps the driver of a machine, if it is a board, from running what a toolkit makes."""
    drive = board_drive(host, cuda)
    return drive != "none" and (drive != "compat" or bool(host.compat))
