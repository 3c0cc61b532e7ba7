"""What is known of those who have toolkits, libraries and compilers to give."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.specifiers import SpecifierSet


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
class Piece:
    """One package of one provider: a file that is downloaded."""

    provider: str  # "conda", "debian", "pypi"
    name: str  # as the provider calls it: "nvidia-cuda-nvcc"
    version: str  # as the provider writes it: "13.0.88"
    file: str  # its name on the disk
    url: str  # "" where the provider's own program knows the way
    sha256: str  # as the provider's index says
    size: int  # bytes; 0 where that is not said


@dataclass(frozen=True, slots=True)
class Part:
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
