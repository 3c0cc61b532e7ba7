"""CUDA toolkits: what each compiles for, its parts, and who provides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import VersionText
from torchmill.core.units import Bytes

ToolkitKind = Literal[
    "toolkit", "compiler", "parts", "cudnn", "nccl", "cusparselt", "nvshmem", "magma"
]


PROVIDERS = ("conda", "debian", "pypi")  # of toolkits, in the order in which they are asked


@dataclass(frozen=True, slots=True)
class ToolkitSource:
    """One kind of thing that a provider has: what it calls it, and where it lies."""

    provider: str  # "conda", "debian", "pypi"
    kind: ToolkitKind
    versions: tuple[
        str, ...
    ]  # that it is known to have, oldest first: "11.8", "gcc-11", "8.5.0.96"
    packages: tuple[
        str, ...
    ]  # as the provider writes them, with pins; what {…} stands for, it knows
    arches: tuple[str, ...]
    where: tuple[str, ...]  # channels of conda, "bookworm/non-free" of Debian; (): it has one place
    cuda: (
        str | None
    )  # the toolkits that a library goes with, by their major version; of MAGMA "11.8"
    source: str
    capabilities: tuple[
        str, ...
    ] = ()  # of a library with code of its own for GPUs: what that is for
    glibc: VersionText | None = (
        None  # the oldest with which its programs are known to run; None: not recorded
    )
    download: Bytes | None = (
        None  # of all packages of its largest version, for the larger machine; None: not counted
    )
    isl: str = (
        ""  # of compilers: the number in the name of the libisl that they take from the system
    )


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
    source: str
    without: str = ""  # what a build goes without that lacks it, as a clause; "": it stops
    vital: SpecifierSet | None = None  # the releases of torch whose build stops all the same


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit's facts."""

    version: str  # "11.8"
    variant: str  # "cu118"
    arches: tuple[str, ...]
    gcc: SpecifierSet  # host compilers that nvcc takes
    clang: SpecifierSet
    capabilities: tuple[str, ...]  # that it compiles for, oldest first: "5.0" … "9.0", "9.0a"
    driver: str | None  # the oldest Linux driver that runs what it makes; None: not known
    source: str
    deprecated: tuple[str, ...] = ()  # capabilities that it warns about
    driver_windows: VersionText | None = None
    driver_ptx: VersionText | None = (
        None  # the Linux driver that came with it: sure to compile the PTX that it makes
    )
    jetson: tuple[
        str, ...
    ] = ()  # capabilities of the Jetson boards that its aarch64 means, if it does
    msvc: SpecifierSet | None = None  # Visual Studio's compilers that nvcc takes; None: not known
