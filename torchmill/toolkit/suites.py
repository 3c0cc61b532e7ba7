"""The suites of Debian and Ubuntu: where a machine finds one, and who signs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchmill.source.apt import BINARIES, Archive

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

# Names by which a machine's lists show that their archive is the distribution's, other suites and all.
_NAMES = {
    "debian": {
        "bullseye",
        "bookworm",
        "trixie",
        "forky",
        "sid",
        "oldoldstable",
        "oldstable",
        "stable",
        "testing",
    },
    "ubuntu": {"focal", "jammy", "noble", "questing", "resolute"},
}
_KEYRINGS = {"debian": "debian-archive-keyring.gpg", "ubuntu": "ubuntu-archive-keyring.gpg"}
# For machines whose lists name no archive of it.
_ARCHIVES = {"debian": "http://deb.debian.org/debian", "ubuntu": "http://archive.ubuntu.com/ubuntu"}


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite of one distribution, for one machine."""

    distribution: str  # "debian", "ubuntu"
    name: str  # "bookworm"
    components: tuple[str, ...]
    arch: str

    def __str__(self) -> str:
        """Return how messages call it: "Debian's bookworm"."""
        return f"{self.distribution.title()}'s {self.name}"

    @property
    def architecture(self) -> str:
        """Return what the distribution calls the machine: "amd64"."""
        return ARCHITECTURES[self.arch]

    @property
    def keyring(self) -> str:
        """Return the file name of the keys that sign it."""
        return _KEYRINGS[self.distribution]


def suite(where: Sequence[str], arch: str) -> Suite:
    """Read what facts say of a place: ("debian/bookworm/main", "debian/bookworm/non-free")."""
    parts = [one.split("/") for one in where]
    return Suite(parts[0][0], parts[0][1], tuple(component for _, _, component in parts), arch)


def archives(wanted: Suite, machine: Sequence[Archive], keyrings: Path) -> tuple[Archive, ...]:
    """Return where a suite is read: an archive that the machine uses, else the distribution's own.

    None where the machine uses neither, and has no keys (in the folder `keyrings`) to believe the latter.
    """
    for names in ({wanted.name}, _NAMES[wanted.distribution]):
        there = [one for one in machine if one.suite in names and "main" in one.components]
        if there:
            return tuple(dict.fromkeys(_reading(one, wanted) for one in there))
    keyring = keyrings / wanted.keyring
    if not keyring.exists():
        return ()
    own = Archive(_ARCHIVES[wanted.distribution], "", (), (("Signed-By", str(keyring)),))
    return (_reading(own, wanted),)


def _reading(archive: Archive, wanted: Suite) -> Archive:
    return replace(archive, suite=wanted.name, components=wanted.components, lists=BINARIES)


def pins(packages: Sequence[str], version: str) -> Mapping[str, str]:
    """Return the versions that facts name, "" where any will do.

    They write "libcub-dev", "nvidia-cuda-toolkit=11.2.2", "g++-{major}" (of the `version` "gcc-11": 11).
    """
    major = version.rpartition("-")[2]
    return dict(one.replace("{major}", major).partition("=")[::2] for one in packages)
