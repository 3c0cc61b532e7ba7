"""Values: conda names, container images, and who provides toolkits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from packaging.specifiers import SpecifierSet

from torchmill.core.dataclass import dataclass

CONDA_BOUNDS = ("same", "major", "minor", "none")


@dataclass(frozen=True, slots=True)
class CondaName:
    """A project of PyPI's, as conda has it."""

    name: str  # "pytorch"
    bounds: str  # one of BOUNDS: what becomes of a version that is required exactly


@dataclass(frozen=True, slots=True)
class CondaFacts:
    """All of it."""

    subdirs: Mapping[str, str]  # arch -> folder of a channel, "linux-64"
    cuda: Mapping[str, str] = field(default_factory=dict)  # toolkit -> as build strings have it, "11.0.221"
    licenses: Mapping[str, str] = field(default_factory=dict)  # as METADATA has them -> SPDX
    compiled_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # package -> projects
    libstdcxx: Mapping[str, str] = field(default_factory=dict)  # version of symbols, "3.4.30" -> GCC
    names: Mapping[str, CondaName] = field(default_factory=dict)  # project on PyPI -> conda's


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
    requires: tuple[str, ...]
    source: str
    package: str = ""  # that must be installed too for it to count: "torchvision"; "": always


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Everything in images.toml."""

    bases: tuple[BaseImage, ...] = ()  # the first that fits is taken
    tools: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # manager -> packages of the suite itself
    uv: str = ""  # the release of uv that brings Pythons
    uv_pythons: tuple[str, ...] = ()  # that it can bring
    unsupported: Mapping[str, str] = field(default_factory=dict)  # word in an image's name -> why not
    companions: tuple[Companion, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolkitSource:
    """One kind of thing that a provider has: what it calls it, and where it lies."""

    provider: str  # "conda", "debian", "pypi"
    kind: str  # "toolkit", "compiler", "parts", "cudnn", "nccl", "cusparselt", "magma"
    versions: tuple[str, ...]  # that it is known to have, oldest first: "11.8", "gcc-11", "8.5.0.96"
    packages: tuple[str, ...]  # as the provider writes them, with pins; what {…} stands for, it knows
    arches: tuple[str, ...]
    where: tuple[str, ...]  # channels of conda, "bookworm/non-free" of Debian; (): it has one place
    cuda: str | None  # the toolkits that a library goes with, by their major version; of MAGMA "11.8"
    source: str
    capabilities: tuple[str, ...] = ()  # of a library with code of its own for GPUs: what that is for


@dataclass(frozen=True, slots=True)
class ProviderPackage:
    """One package of one provider: a file that is downloaded."""

    provider: str  # "conda", "debian", "pypi"
    name: str  # as the provider calls it: "nvidia-cuda-nvcc"
    version: str  # as the provider writes it: "13.0.88"
    file: str  # its name on the disk
    url: str  # "" where the provider's own program knows the way
    sha256: str  # as the provider's index says
    size: int  # bytes; 0 where that is not said


@dataclass(frozen=True, slots=True)
class ToolkitPart:
    """What a toolkit has beside its compiler: headers, and a library."""

    name: str  # "cublas"
    called: str  # "cuBLAS"
    package: str  # NVIDIA's on PyPI, without the major version at its end: "nvidia-cublas"
    headers: tuple[str, ...]  # that it is there with, below the folder of headers: "cublas_v2.h"
    libraries: tuple[str, ...]  # the same, by the names that linkers ask for: "libcublas.so"
    cuda: SpecifierSet | None  # the toolkits that have it so; None: all
    without: str  # what a build goes without that lacks it, as a clause; "": it stops
    source: str

    def belongs(self, version: str) -> bool:
        """Tell whether a toolkit of some version has it."""
        return self.cuda is None or version in self.cuda
