"""The values of a snippet: wheels on offer, the request of a project, and its decision.

A snippet is what a project has to declare so that its tool installs our wheels. The base is
torch; the other packages (torchvision, …) are built against it.
"""

from dataclasses import dataclass

from millpress.file_names import BuildTag
from packaging.version import Version

from torchmill.config.build import Arch
from torchmill.config.release import Release


@dataclass(frozen=True, slots=True)
class WheelPlace:
    """A place where installers find wheels."""

    name: str  # "torchmill"
    url: str
    flat: bool = False  # a folder of wheels without pages (PEP 503)
    default: bool = False  # installers look there without being told


@dataclass(frozen=True, slots=True)
class WheelOffer:
    """A wheel of a package for one platform."""

    package: str
    version: Version
    variant: str  # "cpu", "cu118"; another label if that is all there is
    paired: str  # the rest of the label, which names the base: "torch2.11.0"; "" if it has none
    arch: str
    pythons: tuple[str, ...]  # oldest first
    file: str
    url: str
    sha256: str | None
    build: BuildTag


@dataclass(frozen=True, slots=True)
class WheelStock:
    """Our wheels in one place."""

    title: str  # for messages: "/home/me/dist"
    place: WheelPlace
    offers: tuple[WheelOffer, ...]
    # Lines such as "torch 1.13.1+cpu: …", for versions whose wheels have different requirements.
    warnings: tuple[str, ...] = ()
    # Versions of which it has wheel variants, too: "torch==2.15.0".
    variants: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SnippetRequest:
    """The releases that a project wants, of one variant."""

    releases: tuple[Release, ...]  # the base first
    variant: str
    platforms: tuple[Arch, ...]
    native: str  # this machine's arch; names of its sessions omit it
    direct: bool = False  # name our wheels by URL and hash, not by name and version


@dataclass(frozen=True, slots=True)
class PlatformPin:
    """One version of a package on one platform."""

    package: str
    version: str  # "1.13.1+cpu"
    variant: str  # may differ from the requested one
    arch: Arch
    pythons: tuple[str, ...]
    place: WheelPlace
    offers: tuple[WheelOffer, ...] = ()  # our wheels; none if official wheels are used
    direct: bool = False  # the wheels are named by URL and hash


@dataclass(frozen=True, slots=True)
class SnippetDecision:
    """The declarations of a project for one variant."""

    variant: str
    platforms: tuple[Arch, ...]
    pins: tuple[PlatformPin, ...]  # by package, in the order of the platforms
    pythons: tuple[str, ...]  # for which all wheels exist, oldest first
    numpy: str | None  # "numpy<2"
    notes: tuple[str, ...]

    def of_package(self, package: str) -> tuple[PlatformPin, ...]:
        """Return the pins of a package."""
        return tuple(pin for pin in self.pins if pin.package == package)

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the packages, the base first."""
        return tuple(dict.fromkeys(pin.package for pin in self.pins))
