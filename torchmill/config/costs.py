"""The costs of builds: measured ones, and the assumptions of an estimate.

A run is one build that somebody measured. A typical estimate takes a run of a similar build, and
scales its processor time to the machine and the number of compilers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import Positive, Share
from torchmill.core.units import Bytes, format_bytes

Scope = Literal["compile", "job"]


@dataclass(frozen=True, slots=True)
class CostRange:
    """Two bounds between which a quantity lies."""

    low: float
    high: float

    def __add__(self, other: CostRange) -> CostRange:
        """Return the bounds of the sum of two quantities."""
        return CostRange(self.low + other.low, self.high + other.high)

    @property
    def middle(self) -> float:
        """Return the geometric mean of the bounds."""
        return math.sqrt(self.low * self.high)

    @property
    def in_bytes(self) -> str:
        """Return bounds that count bytes as people read them: "0.9 GiB to 1.5 GiB"."""
        return f"{format_bytes(self.low)} to {format_bytes(self.high)}"


ByteRange = CostRange  # that counts bytes; facts write it as { low = "0.9 GB", high = "1.5 GB" }


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A build that was measured or reported; a quantity that its report lacks is None."""

    package: str
    release: str  # of the sources; of a development branch, the release that it became
    variant: str  # "cpu", "cu118"
    machine: str  # for people: "c5.12xlarge: 48 vCPU, 96 GiB"
    scope: Scope  # what `wall_seconds` includes; "job": also checkout and start of containers
    source: str
    # The release of torch that an extension was built against; None: torch itself, or a package
    # that pairs with one torch only.
    torch: str | None = None
    cores: Positive | None = None  # that the build could use
    jobs: Positive | None = None  # compilers at a time; None: as many as cores
    cpu_seconds: float | None = None  # processor time of all compilers together
    wall_seconds: float | None = None  # from start to end
    peak: Bytes | None = None  # memory of the largest single compile
    # Peak memory of a compile: the mean over all compiles, weighted by their times.
    typical: Bytes | None = None
    tree: Bytes | None = None  # on disk at the end: the tree and everything made in it
    environment: Bytes | None = None  # on disk: packages that were installed for the build
    wheel: Bytes | None = None  # size of the file
    capabilities: str = ""  # TORCH_CUDA_ARCH_LIST, "" without CUDA
    arch: str = "x86_64"


@dataclass(frozen=True, slots=True)
class CompilePeak:
    """The memory that each of the largest compiles of some builds takes."""

    package: str
    release: SpecifierSet
    cuda: SpecifierSet | None  # None: builds without CUDA
    memory: ByteRange  # of each of these compiles
    source: str


@dataclass(frozen=True, slots=True)
class Spread:
    """The factors by which estimates err, up or down, for each kind of run that one is based on."""

    same_machine: float  # runs of the same build on this machine
    cpu: float  # runs without CUDA
    cuda: float  # runs with CUDA
    other: float  # runs of another package


@dataclass(frozen=True, slots=True)
class CostAssumptions:
    """The terms of an estimate that no run gives by itself; runs.toml argues for each of them."""

    scaling: Share  # n jobs do the work of n**scaling
    years: float  # a run that is so much older or newer has the weight 1/e, about a third
    # The time in which a build runs a single program: configure, link, pack, verify.
    serial_seconds: CostRange
    dependent_seconds: CostRange  # the same for a package that is built against another
    # The time of a share of a build before it compiles: requirements, configure, generators.
    share_seconds: CostRange
    job_seconds: CostRange  # the time that a CI job adds to its build
    # Processor time for a further Python in the same tree, for each second that the first one took.
    further_python: CostRange
    spread: Spread
    packed: CostRange  # bytes of a wheel for each byte of its libraries
    tree: CostRange  # bytes of a tree on disk for each byte of the libraries
    cached: CostRange  # bytes that a compiler cache grows by for each byte of the libraries
    files: CostRange  # files of a finished tree for each file of its source
    installed: Mapping[str, Bytes]  # project -> bytes on disk, with all packages that it requires
    installed_spread: float  # the factor by which these err, up or down: releases differ


@dataclass(frozen=True, slots=True)
class KnownUnit:
    """The cost to compile some sources, for machines on which they never were compiled."""

    pattern: str  # of the end of a source's path: "native/cpu/*Kernel.cpp.AVX2.cpp"
    peak: Bytes  # memory of the compile; for CUDA, of each thread of nvcc
    seconds: float | None = None  # of processor time
    package: str = ""  # "": any
    release: SpecifierSet | None = None  # None: any
    source: str = ""


@dataclass(frozen=True, slots=True)
class CostFacts:
    """Everything that estimates of time, memory and disk are based on."""

    runs: tuple[MeasuredRun, ...] = ()
    peaks: tuple[CompilePeak, ...] = ()
    assumptions: CostAssumptions | None = None  # None: nothing can be estimated
    known_units: tuple[KnownUnit, ...] = ()  # the first whose pattern matches a source file counts
