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
    version: str = ""  # VERSION_ID, "22.04"; "" for one without releases, such as Arch
    like: tuple[str, ...] = ()  # ID_LIKE, the nearest first: "rhel", "fedora"
    l4t: str | None = None  # release of Jetson Linux on a board of NVIDIA's: "36.4.3"; None: none

    def __str__(self) -> str:
        """Return "ubuntu 22.04", with "(JetPack 6)" if it is a Jetson's."""
        words = [self.id]
        if self.version:
            words.append(self.version)
        if self.jetpack:
            words.append(f"(JetPack {self.jetpack})")
        elif self.l4t:
            words.append(f"(L4T {self.l4t})")
        return " ".join(words)

    @property
    def jetpack(self) -> int | None:
        """Return the major version of JetPack; None if this is no Jetson, or has an unknown L4T."""
        major, _, _ = (self.l4t or "").partition(".")
        return JETPACKS.get(major)
