"""CUDA toolkits: the GPUs that each compiles for, its parts, and its providers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import Targets, VersionText
from torchmill.core.units import Bytes

ToolkitKind = Literal[
    "toolkit", "compiler", "parts", "cudnn", "nccl", "cusparselt", "nvshmem", "magma"
]
PROVIDERS = ("conda", "debian", "pypi")  # of toolkits, in the order in which they are tried


@dataclass(frozen=True, slots=True)
class Toolkit:
    """Facts about a CUDA toolkit."""

    version: str  # "11.8"
    variant: str  # "cu118"
    arches: tuple[str, ...]
    gcc: SpecifierSet  # host compilers that nvcc takes
    clang: SpecifierSet  # the same
    capabilities: Targets  # that it compiles for, oldest first: "5.0" … "9.0", "9.0a"
    source: str
    driver: VersionText | None = None  # the oldest Linux driver that runs its code; None: not known
    deprecated: Targets = ()  # capabilities that it warns about
    driver_windows: VersionText | None = None  # the oldest Windows driver, as `driver`
    # The Linux driver that came with it: any older one may fail to compile the PTX that it makes.
    driver_ptx: VersionText | None = None
    # Capabilities of the Jetson boards that "aarch64" means for this toolkit; (): servers.
    jetson: Targets = ()
    msvc: SpecifierSet | None = None  # Visual Studio's compilers that nvcc takes; None: not known
    glibc: SpecifierSet | None = None  # C libraries whose headers nvcc takes; None: any so far


@dataclass(frozen=True, slots=True)
class ToolkitPart:
    """A library of a toolkit, with its headers: all that the toolkit has beside its compiler."""

    name: str  # "cublas"
    called: str  # "cuBLAS"
    package: str  # NVIDIA's on PyPI, without the major version at its end: "nvidia-cublas"
    headers: tuple[str, ...]  # that prove it is there, in the folder of headers: "cublas_v2.h"
    libraries: tuple[str, ...]  # that prove it too, as linkers look for them: "libcublas.so"
    cuda: SpecifierSet | None  # toolkits in which it has these files; None: all
    source: str
    without: str = ""  # consequence for a build without it, as a clause; "": the build stops
    vital: SpecifierSet | None = None  # releases of torch whose build stops all the same

    @property
    def is_required(self) -> bool:
        """Tell whether every build stops without this part."""
        return not self.without


@dataclass(frozen=True, slots=True)
class ToolkitSource:
    """Things of one kind that a provider has: their packages, and their place at the provider."""

    provider: str  # "conda", "debian", "pypi"
    kind: ToolkitKind  # of things
    versions: tuple[str, ...]  # known ones, oldest first: "11.8", "gcc-11", "8.5.0.96"
    packages: tuple[str, ...]  # as the provider writes them, with pins and its own {…}
    arches: tuple[str, ...]
    places: tuple[str, ...]  # channels of conda, "bookworm/non-free" of Debian; (): the only place
    # Of a library: the major version of the toolkits that it goes with; of MAGMA "11.8".
    cuda: str | None
    source: str
    capabilities: tuple[str, ...] = ()  # of a library with code of its own for GPUs
    # The oldest with which its programs are known to run; None: not recorded.
    glibc: VersionText | None = None
    # All packages of the largest version, for the arch with more of them; None: not counted.
    download: Bytes | None = None
    isl: str = ""  # of compilers: the number of the system's libisl that they load: "23"


@dataclass(frozen=True, slots=True)
class ProviderPackage:
    """One package of one provider: a file that is downloaded."""

    provider: str  # "conda", "debian", "pypi"
    name: str  # as the provider calls it: "nvidia-cuda-nvcc"
    version: str  # as the provider writes it: "13.0.88"
    file: str  # its name on the disk
    url: str  # "": the provider's own program finds it
    sha256: str  # as the provider's index states it
    size: int  # bytes; 0: not stated
