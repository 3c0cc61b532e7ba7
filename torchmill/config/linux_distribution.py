"""A Linux distribution, as its os-release file names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# major version of L4T -> of JetPack: https://developer.nvidia.com/embedded/jetpack-archive
JETPACKS: Mapping[str, int] = {"32": 4, "34": 5, "35": 5, "36": 6, "38": 7, "39": 7}


@dataclass(frozen=True, slots=True)
class LinuxDistribution:
    """A Linux distribution, as its os-release file names it."""

    id: str  # ID, "ubuntu"
    version: str = ""  # VERSION_ID, "22.04"; "" for one without releases, as Arch
    like: tuple[str, ...] = ()  # ID_LIKE, the nearest first: "rhel", "fedora"
    l4t: str | None = (
        None  # the release of Jetson Linux on a board of NVIDIA's, "36.4.3"; None: no Jetson
    )

    def __str__(self) -> str:
        """Return "ubuntu 22.04", with "JetPack 6" if it is a Jetson's."""
        board = (
            f"(JetPack {self.jetpack})" if self.jetpack else f"(L4T {self.l4t})" if self.l4t else ""
        )
        return " ".join(filter(None, (self.id, self.version, board)))

    @property
    def jetpack(self) -> int | None:
        """Return the major version of NVIDIA's JetPack; None if this is no Jetson, or its L4T is not recorded."""
        return JETPACKS.get((self.l4t or "").partition(".")[0])
