"""Values: measured builds, compile peaks, and what predicts a link overflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from packaging.specifiers import SpecifierSet

from torchmill.core.dataclass import dataclass
from torchmill.core.units import Bytes


@dataclass(frozen=True, slots=True)
class CostRange:
    """Two bounds between which a quantity lies."""

    low: float
    high: float


ByteRange = CostRange  # written as { low = "0.9 GB", high = "1.5 GB" }


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A build that was measured or reported; what its report does not say is None."""

    package: str
    release: str  # of the sources; of a development branch, the release that came of it
    variant: str
    machine: str  # for people: "c5.12xlarge: 48 vCPU, 96 GiB"
    scope: str  # what `wall` covers: "compile", or "job": a checkout and containers as well
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


@dataclass(frozen=True, slots=True)
class CompilePeak:
    """What the largest compiles of some builds take, each."""

    package: str
    release: SpecifierSet
    cuda: SpecifierSet | None  # None: builds without CUDA
    memory: ByteRange
    source: str


@dataclass(frozen=True, slots=True)
class CostAssumptions:
    """The terms of an estimate that no run gives by itself; each is argued for in runs.toml."""

    scaling: float  # n jobs do the work of n**scaling
    years: float  # by which a run that much older or newer counts for a third (1/e)
    serial_seconds: CostRange  # of every build in which one program runs: configure, link, pack, verify
    dependent_seconds: CostRange  # the same for a package that is built against another
    job_seconds: CostRange  # that a CI job adds to its build
    spread: Mapping[str, float]  # "own", "cpu", "cuda", "other" -> factor either way
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
class LinkReport:
    """A build of which is known whether its link overflowed."""

    release: str
    cuda: str
    capabilities: str
    variables: Mapping[str, str]
    overflowed: bool
    source: str


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What the prediction of a relocation overflow stands on."""

    limit: Bytes  # within which everything must lie
    margin: float  # of the weight of device code, either way, as a share
    split: SpecifierSet  # releases that have BUILD_SPLIT_CUDA
    official_compression: Mapping[str, SpecifierSet] = field(default_factory=dict)  # flag -> toolkits
    static: tuple[StaticLibrary, ...] = ()
    compression: tuple[CodeCompression, ...] = ()
    reports: tuple[LinkReport, ...] = ()
