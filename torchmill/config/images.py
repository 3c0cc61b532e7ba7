"""Container images that others are built on, and the archives that they download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import (
    CompilerTemplate,
    Pythons,
    Requirements,
    VersionText,
    no_entries,
)

SystemManager = Literal["apt", "dnf", "yum"]
ArchiveKind = Literal["toolkit", "cudnn", "nccl", "python"]
ImageRole = Literal["manylinux", "system", "cuda", "toolkit", "python"]


@dataclass(frozen=True, slots=True)
class BaseImage:
    """An image that others are built on."""

    role: ImageRole  # what it is for, as the head of images.toml explains
    image: str  # in full, without tag and digest: "docker.io/library/debian"
    tag: str  # "bookworm-slim"; "": none is recorded
    digest: str  # "sha256:…" of an index of all its arches, or of its only one; "": unknown
    arches: tuple[str, ...]
    distribution: str  # ID in its /etc/os-release: "debian", "almalinux"; "": unknown
    version: str  # the beginning of its VERSION_ID: "12"
    manager: SystemManager  # of its packages
    glibc: VersionText | None = None  # the version of its C library
    pythons: Pythons = ()  # that it has, or that its package manager can bring
    compiled: Pythons = ()  # that are compiled in it from the sources in archives.toml
    toolkit: VersionText | None = None  # the CUDA toolkit in /usr/local/cuda-<toolkit>
    # The version of the compiler that it uses, at least the major one.
    gcc: VersionText | None = None
    compilers: tuple[str, ...] = ()  # further major versions of gcc that `manager` can bring
    compiler: CompilerTemplate = ""  # the package of each: "gcc-toolset-{major}-gcc-c++"
    lacks: tuple[str, ...] = ()  # packages that its archives do not have
    source: str = ""  # of the digest

    @property
    def reference(self) -> str:
        """Return the image for FROM, by its digest if that is known.

        It never has both a tag and a digest, because not every engine accepts that.
        """
        return f"{self.image}@{self.digest}" if self.digest else self.name

    @property
    def name(self) -> str:
        """Return the name for people: "docker.io/library/debian:bookworm-slim"."""
        return f"{self.image}:{self.tag}" if self.tag else self.image


@dataclass(frozen=True, slots=True)
class Companion:
    """Requirements to install together with a wheel, because its metadata lacks them."""

    release: SpecifierSet  # of torch
    requires: Requirements
    source: str
    package: str = ""  # only if this is installed too: "torchvision"; "": always


@dataclass(frozen=True, slots=True)
class Archive:
    """A file that a builder image downloads from its vendor."""

    kind: ArchiveKind  # what is in it
    version: VersionText  # "11.0.3", "8.0.5.39"; of a Python "3.5"
    arches: tuple[str, ...]
    url: str
    cuda: str = ""  # the toolkit that it is for, "11.8"; "11" if it is for all of a major version
    sha256: str = ""  # "": the vendor publishes none, and the sum in `checksums` is compared
    checksums: str = ""  # URL of a list of MD5 sums that the vendor publishes
    source: str = ""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Everything in images.toml and archives.toml."""

    bases: tuple[BaseImage, ...] = ()  # the first that fits is taken
    # manager -> packages that torchmill itself needs in a builder, whatever it builds: "git"
    tools: Mapping[str, tuple[str, ...]] = no_entries()
    uv: str = ""  # the release of uv that brings Pythons
    uv_pythons: Pythons = ()  # that this release can bring
    unsupported: Mapping[str, str] = no_entries()  # word in an image's name -> why not
    companions: tuple[Companion, ...] = ()
    # manager -> packages that unpack an archive
    unpacking: Mapping[str, tuple[str, ...]] = no_entries()
    # manager -> packages that compile a Python
    compiling: Mapping[str, tuple[str, ...]] = no_entries()
    archives: tuple[Archive, ...] = ()
