"""What is asked for, what there is, and what is decided: the words of this room."""

from __future__ import annotations

from dataclasses import dataclass

from torchmill.deliver.snippet.offers import Offer, Place
from torchmill.model import Arch, Release


@dataclass(frozen=True, slots=True)
class Stock:
    """What we have."""

    where: str  # for people: "/home/me/dist"
    place: Place
    offers: tuple[Offer, ...]
    warnings: tuple[str, ...] = ()  # about a version whose wheels do not go together: "torch 1.13.1+cpu: …"


@dataclass(frozen=True, slots=True)
class Request:
    """What a project wants of one variant."""

    releases: tuple[Release, ...]  # the base first
    variant: str
    platforms: tuple[Arch, ...]
    native: str  # the arch whose sessions are named without it

    def release(self, package: str) -> Release:
        """Return the release of a package."""
        return next(one for one in self.releases if one.package == package)


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of a package on one platform."""

    package: str
    version: str  # "1.13.1+cpu"
    variant: str  # which may be another than was asked for
    arch: Arch
    pythons: tuple[str, ...]
    place: Place
    offers: tuple[Offer, ...] = ()  # our wheels; none where they are somebody else's


@dataclass(frozen=True, slots=True)
class Decision:
    """What a project is told of one variant."""

    variant: str
    platforms: tuple[Arch, ...]
    pins: tuple[Pin, ...]  # by package, in the order of the platforms
    pythons: tuple[str, ...]  # for which there are all wheels, oldest first
    numpy: str | None  # "numpy<2"
    notes: tuple[str, ...]

    def of(self, package: str) -> tuple[Pin, ...]:
        """Return the pins of a package."""
        return tuple(pin for pin in self.pins if pin.package == package)

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the packages, the base first."""
        return tuple(dict.fromkeys(pin.package for pin in self.pins))
