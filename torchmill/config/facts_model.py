"""Values of facts: measured builds, links, conda names, images, providers of toolkits, what was read in wheels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from torchmill.core.units import Bytes, format_bytes

Scope = Literal["compile", "job"]
Bounds = Literal["same", "major", "minor", "none"]
SystemManager = Literal["apt", "dnf", "yum"]
ArchiveKind = Literal["toolkit", "cudnn", "nccl", "python"]
ImageRole = Literal["manylinux", "system", "cuda", "toolkit", "python"]
ToolkitKind = Literal[
    "toolkit", "compiler", "parts", "cudnn", "nccl", "cusparselt", "nvshmem", "magma"
]
no_entries: Any = partial(field, default_factory=dict)  # the default of a field that maps

# Texts of a certain form: the reader of facts refuses any other.
VersionText = str  # of PEP 440
DateText = str  # of ISO 8601: "2022-12-15"
Commit = str  # 40 hexadecimal digits
Pythons = tuple[str, ...]  # "3.10", "3.13t"
PlatformTemplate = str  # with {glibc} and {macos}
VariantTemplate = str  # with {variant}
VersionTemplate = str  # with {version}, {torch}, {requires}, {jobs}
CompilerTemplate = str  # with {major}


@dataclass(frozen=True, slots=True)
class CostRange:
    """Two bounds between which a quantity lies."""

    low: float
    high: float

    def __add__(self, other: CostRange) -> CostRange:
        """Return the bounds of what two quantities come to."""
        return CostRange(self.low + other.low, self.high + other.high)

    @property
    def middle(self) -> float:
        """Return the geometric mean of the bounds."""
        return math.sqrt(self.low * self.high)

    @property
    def in_bytes(self) -> str:
        """Return bounds of bytes as people read them: "0.9 GiB to 1.5 GiB"."""
        return f"{format_bytes(self.low)} to {format_bytes(self.high)}"


ByteRange = CostRange  # written as { low = "0.9 GB", high = "1.5 GB" }


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A build that was measured or reported; what its report does not say is None."""

    package: str
    release: str  # of the sources; of a development branch, the release that came of it
    variant: str
    machine: str  # for people: "c5.12xlarge: 48 vCPU, 96 GiB"
    scope: Scope  # what `wall` covers; "job": a checkout and containers as well
    source: str
    cores: int | None = None  # that it could use
    jobs: int | None = None  # compilers at a time; None: as many as cores
    cpu_seconds: float | None = None  # of all compilers together
    wall_seconds: float | None = None
    peak: Bytes | None = None  # of the largest single compile
    typical: Bytes | None = None  # of a compile at its peak, averaged over time
    tree: Bytes | None = None  # on disk at the end, of the tree and all that was made of it
    environment: Bytes | None = None  # of what was installed for it, beside the tree
    wheel: Bytes | None = None
    capabilities: str = ""  # TORCH_CUDA_ARCH_LIST, "" without CUDA
    arch: str = "x86_64"


@dataclass(frozen=True, slots=True)
class CompilePeak:
    """What the largest compiles of some builds take, each."""

    package: str
    release: SpecifierSet
    cuda: SpecifierSet | None  # None: builds without CUDA
    memory: ByteRange
    source: str


@dataclass(frozen=True, slots=True)
class Spread:
    """By which factor an estimate errs either way, after what it stands on."""

    own: float  # a build of this machine
    cpu: float
    cuda: float
    other: float


@dataclass(frozen=True, slots=True)
class CostAssumptions:
    """The terms of an estimate that no run gives by itself; each is argued for in runs.toml."""

    scaling: float  # n jobs do the work of n**scaling
    years: float  # by which a run that much older or newer counts for a third (1/e)
    serial_seconds: (
        CostRange  # of every build in which one program runs: configure, link, pack, verify
    )
    dependent_seconds: CostRange  # the same for a package that is built against another
    share_seconds: (
        CostRange  # of a share of a build, before it compiles: requirements, configure, generators
    )
    job_seconds: CostRange  # that a CI job adds to its build
    further_python: (
        CostRange  # processor time for each that the first Python took, whose tree is there
    )
    spread: Spread
    packed: CostRange  # bytes of a wheel for each byte of its libraries
    tree: CostRange  # bytes on disk for each byte of the libraries
    cached: CostRange  # bytes that a compiler cache takes in for each byte of the libraries
    files: CostRange  # of a finished build for each file of its source
    installed: Mapping[str, Bytes]  # project -> what it takes with what comes along with it
    installed_spread: float  # a factor either way: releases of a project differ


@dataclass(frozen=True, slots=True)
class StaticLibrary:
    """A library of NVIDIA's that a build may link into its own."""

    name: str  # "cuDNN"
    variable: str  # that asks for it: "USE_STATIC_CUDNN"
    cuda: SpecifierSet  # toolkits for which the size holds
    size: ByteRange
    source: str


@dataclass(frozen=True, slots=True)
class CodeCompression:
    """How large device code is with an option of fatbinary's, in units of `-compress-all`."""

    factor: CostRange
    source: str
    flag: str = ""  # in TORCH_NVCC_FLAGS; "" for none


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What the prediction of a relocation overflow stands on."""

    limit: Bytes  # within which everything must lie
    margin: float  # of the weight of device code, either way, as a share
    split: SpecifierSet  # releases that have BUILD_SPLIT_CUDA
    official_compression: Mapping[str, SpecifierSet] = no_entries()  # flag -> toolkits
    static: tuple[StaticLibrary, ...] = ()
    compression: tuple[CodeCompression, ...] = ()


@dataclass(frozen=True, slots=True)
class CondaName:
    """A project of PyPI's, as conda has it."""

    name: str  # "pytorch"
    bounds: Bounds = "same"  # what becomes of a version that is required exactly


@dataclass(frozen=True, slots=True)
class CondaFacts:
    """All of it."""

    subdirs: Mapping[str, str]  # arch -> folder of a channel, "linux-64"
    cuda: Mapping[str, str] = no_entries()  # toolkit -> as build strings have it, "11.0.221"
    licenses: Mapping[str, str] = no_entries()  # as METADATA has them -> SPDX
    compiled_with: Mapping[str, tuple[str, ...]] = no_entries()  # package -> projects
    libstdcxx: Mapping[str, str] = no_entries()  # version of symbols, "3.4.30" -> GCC
    names: Mapping[str, CondaName] = no_entries()  # project on PyPI -> conda's


@dataclass(frozen=True, slots=True)
class BaseImage:
    """An image that others are built on."""

    role: ImageRole  # see images.toml
    image: str  # in full, without tag and digest: "docker.io/library/debian"
    tag: str  # "bookworm-slim"; "": none was said
    digest: str  # "sha256:…" of an index of all its arches, or of its only one; "": none is known
    arches: tuple[str, ...]
    distribution: str  # ID in its /etc/os-release: "debian", "almalinux"; "": not known
    version: str  # how VERSION_ID begins there: "12"
    manager: SystemManager
    glibc: str | None = None
    pythons: Pythons = ()  # that it has, or that its package manager can bring
    compiled: Pythons = ()  # that it can compile from the sources of an archive
    toolkit: str | None = None  # the CUDA toolkit in /usr/local/cuda-<toolkit>
    gcc: str | None = None  # the version of the compiler that it uses, at least the major one
    compilers: tuple[
        str, ...
    ] = ()  # further major versions of gcc that its package manager can bring
    compiler: CompilerTemplate = (
        ""  # what such a compiler's package is called: "gcc-toolset-{major}-gcc-c++"
    )
    lacks: tuple[str, ...] = ()  # packages that its archives do not have
    source: str = ""  # where the digest was read

    @property
    def reference(self) -> str:
        """Return what stands after FROM: the digest without the tag, as not every engine takes both."""
        return f"{self.image}@{self.digest}" if self.digest else self.named

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
class Archive:
    """A file of its maker that a builder image downloads."""

    kind: ArchiveKind
    version: str  # "11.0.3", "8.0.5.39"; of a Python "3.5"
    arches: tuple[str, ...]
    url: str
    cuda: str = ""  # the toolkit, or the major version of those, that it is for
    sha256: str = ""  # "": nobody states it, and `checksums` is compared
    checksums: str = ""  # address of a list of MD5 sums that the maker publishes
    source: str = ""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Everything in images.toml and archives.toml."""

    bases: tuple[BaseImage, ...] = ()  # the first that fits is taken
    tools: Mapping[str, tuple[str, ...]] = no_entries()  # manager -> packages of the suite itself
    uv: str = ""  # the release of uv that brings Pythons
    uv_pythons: Pythons = ()  # that it can bring
    unsupported: Mapping[str, str] = no_entries()  # word in an image's name -> why not
    companions: tuple[Companion, ...] = ()
    unpacking: Mapping[str, tuple[str, ...]] = (
        no_entries()
    )  # manager -> packages that unpack an archive
    compiling: Mapping[str, tuple[str, ...]] = (
        no_entries()
    )  # manager -> packages that compile a Python
    archives: tuple[Archive, ...] = ()


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
class DeviceMaker:
    """A maker of devices that torchmill does not build for."""

    maker: str  # "AMD"
    platform: str  # what PyTorch calls the way to its devices, "ROCm"; "" where a wheel without CUDA has it
    names: tuple[str, ...]  # regular expressions that find its devices' names, whatever their case
    instead: str  # what serves there, as a clause
    source: str


@dataclass(frozen=True, slots=True)
class ReadLibrary:
    """The device code that was read in a library of a wheel."""

    name: str  # of its file: "libtorch_cuda.so"
    sizes: tuple[int, ...]  # bytes, unpacked; several where wheels of one release differ
    fatbins: Mapping[
        str, int
    ]  # targets, as in "8.6;9.0;9.0 PTX" -> how many fatbins have code for exactly these


@dataclass(frozen=True, slots=True)
class WheelCode:
    """What was read in the wheels of a release for one machine."""

    package: str
    release: str  # its version
    arch: str
    files: tuple[
        str, ...
    ]  # that were read; other wheels count if their libraries have the same sizes
    date: DateText | None  # of the reading
    code: Mapping[
        str, ReadLibrary
    ]  # by library; without CUDA the largest library alone, which has no fatbins
    cuda: VersionText | None = None  # the toolkit that version.py names
    own: str = (
        ""  # what most fatbins of the largest library are for, as TORCH_CUDA_ARCH_LIST says it
    )
    beside: tuple[
        str, ...
    ] = ()  # packages with device code that the wheel requires: "nvidia-nccl-cu13==2.30.7"


@dataclass(frozen=True, slots=True)
class PackageCode:
    """The device code that was read in one of NVIDIA's packages of libraries."""

    name: str  # "nvidia-cudnn-cu13"
    version: str
    arch: str
    file: str
    date: DateText | None
    code: Mapping[str, str]  # library -> targets that any of its fatbins has code for


@dataclass(frozen=True, slots=True)
class FeatureLibrary:
    """A library for a feature that most programs do without: what it lacks keeps a wheel from nothing else."""

    pattern: str  # of its file, or of its package: "nvidia-cusparselt-*"
    feature: str  # what does not run where it has no code
    source: str


@dataclass(frozen=True, slots=True)
class ProcessorNeed:
    """What the CPU code of official wheels asks of a processor, in the words of /proc/cpuinfo."""

    release: SpecifierSet  # of torch
    arches: tuple[str, ...]
    source: str
    needs: tuple[str, ...] = ()  # it fails without
    enough: tuple[str, ...] = ()  # it was seen to work with these alone
    tried: bool = False  # `enough` was: also nothing can be enough
    why: str = ""  # what fails, as a clause


@dataclass(frozen=True, slots=True)
class GpuHost:
    """GPUs that exist only together with a processor."""

    gpus: tuple[str, ...]  # as gpus.toml names them
    arch: str  # of the processor
    name: str  # of the processor: "Grace"
    processor: tuple[str, ...]  # what it can do, in the words of /proc/cpuinfo
    source: str


@dataclass(frozen=True, slots=True)
class BoardIndex:
    """An index of wheels for boards, by their maker."""

    url: str
    gpus: tuple[str, ...]  # as gpus.toml names them
    jetpack: str  # "6"
    cuda: str  # the toolkits that its wheels are made with, as people read it
    source: str


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file of a package or a release that has mistakes, so that what it describes is left out."""

    name: str  # "packages/torchvision.toml"
    names: tuple[str, ...]  # of what is left out: "torchvision", "vision"; "2.7.1", "v2.7.1"
    problems: tuple[str, ...]  # a line each

    @property
    def warning(self) -> str:
        """Return one line for commands that do not need what is left out."""
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"build_configs/{self.name} is left out, because it has a mistake: {self.problems[0]}{more}"
