"""What is known of container images to build on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True, slots=True)
class BaseImage:
    """An image that others are built on."""

    role: str  # "manylinux", "system", "cuda", "toolkit", "python": see images.toml
    image: str  # in full, without tag and digest: "docker.io/library/debian"
    tag: str  # "bookworm-slim"; "": none was said
    digest: (
        str  # "sha256:…" of an index of all its arches, or of the image of its only one; "": none is known
    )
    arches: tuple[str, ...]
    distribution: str  # ID in its /etc/os-release: "debian", "almalinux"; "": not known
    version: str  # how VERSION_ID begins there: "12"
    manager: str  # "apt", "dnf", "yum"
    glibc: str | None = None
    pythons: tuple[str, ...] = ()  # that it has, or that its package manager can bring
    toolkit: str | None = None  # the CUDA toolkit in /usr/local/cuda-<toolkit>
    gcc: str | None = None  # the major version of the compiler that it uses
    compilers: tuple[str, ...] = ()  # further major versions of gcc that its package manager can bring
    compiler: str = ""  # what such a compiler's package is called: "gcc-toolset-{major}-gcc-c++"
    lacks: tuple[str, ...] = ()  # packages that its archives do not have
    source: str = ""  # where the digest was read

    @property
    def reference(self) -> str:
        """Return what stands after FROM: the digest without the tag, as not every engine takes both."""
        if self.digest:
            return f"{self.image}@{self.digest}"
        return f"{self.image}:{self.tag}" if self.tag else self.image

    @property
    def named(self) -> str:
        """Return what people call it: "docker.io/library/debian:bookworm-slim"."""
        return f"{self.image}:{self.tag}" if self.tag else self.image


@dataclass(frozen=True, slots=True)
class Companion:
    """What pip must be told beside a wheel, because the wheel does not."""

    release: SpecifierSet  # of torch
    package: str  # that must be installed too for it to count: "torchvision"; "": always
    requires: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Images:
    """Everything in images.toml."""

    bases: tuple[BaseImage, ...] = ()  # the first that fits is taken
    tools: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # manager -> packages of the suite itself
    uv: str = ""  # the release of uv that brings Pythons
    uv_pythons: tuple[str, ...] = ()  # that it can bring
    unsupported: Mapping[str, str] = field(default_factory=dict)  # word in an image's name -> why not
    companions: tuple[Companion, ...] = ()
