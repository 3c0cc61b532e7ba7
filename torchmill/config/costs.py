"""What builds cost: measured builds, and the assumptions of an estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.core.units import Bytes, format_bytes

Scope = Literal["compile", "job"]


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
class KnownUnit:
    """What the compile of some sources needs where it never ran on this machine."""

    pattern: str  # of the end of a source's path: "native/cpu/*Kernel.cpp.AVX2.cpp"
    peak: Bytes  # for CUDA, of each thread of nvcc
    seconds: float | None = None
    package: str = ""  # "": of any
    release: SpecifierSet | None = None  # None: of any
    source: str = ""
