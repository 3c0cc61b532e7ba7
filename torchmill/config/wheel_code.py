"""Readings of published wheels: their code for GPUs, and their demands on a processor.

A reading is a record of what the files of a wheel contained on some day. The device code of a
library lies in fatbins, containers that are embedded in it. Each has code for one target or more: a
compute capability ("9.0"), or PTX ("9.0 PTX"), which a driver can compile for later GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import DateText, VersionText


@dataclass(frozen=True, slots=True)
class LibraryReading:
    """The device code in a library of a wheel."""

    name: str  # its path in the wheel: "torch/lib/libtorch_cuda.so"
    sizes: tuple[int, ...]  # bytes, unpacked; several if wheels of one reading differ
    # Targets, "8.6;9.0;9.0 PTX" -> number of fatbins that have code for exactly these targets.
    fatbins: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WheelCode:
    """The reading of a release's wheels for one arch and one toolkit."""

    package: str
    release: str  # the version
    arch: str
    # The wheels that were read. Other wheels of the release whose libraries have about the same
    # sizes are taken to have the same code.
    files: tuple[str, ...]
    date: DateText | None  # of the reading
    # By path in the wheel: the libraries with device code. Of a wheel without CUDA the largest
    # library alone, without fatbins.
    code: Mapping[str, LibraryReading]
    cuda: VersionText | None = None  # the toolkit that version.py names
    # The targets of the package's kernels, as in TORCH_CUDA_ARCH_LIST: "8.0;9.0+PTX"; "": no CUDA.
    # They are the most frequent targets in the package's library with most fatbins. Other targets
    # there are of kernels that were linked from NVIDIA's static libraries.
    kernel_targets: str = ""
    # Packages with device code that the wheel requires: "nvidia-nccl-cu13==2.30.7".
    required_packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackageCode:
    """The reading of one of NVIDIA's packages of libraries."""

    name: str  # "nvidia-cudnn-cu13"
    version: str
    arch: str
    file: str  # the wheel that was read
    date: DateText | None  # of the reading
    code: Mapping[str, str]  # file name of a library -> every target of its fatbins


@dataclass(frozen=True, slots=True)
class FeatureLibrary:
    """A library with the device code of a feature that most programs do not use.

    If the library has no code for a GPU, the rest of the wheel still runs on that GPU.
    """

    pattern: str  # of its path in a wheel, or of its package: "nvidia-cusparselt*"
    feature: str  # what does not run on a GPU for which the library has no code
    source: str


@dataclass(frozen=True, slots=True)
class ProcessorNeed:
    """The processor features that the CPU code of some official wheels needs.

    Features have the names of /proc/cpuinfo.
    """

    release: SpecifierSet  # of torch
    arches: tuple[str, ...]
    source: str
    needs: tuple[str, ...] = ()  # features without which the wheels fail
    # Features with which the wheels work: they did on a processor that has no others.
    sufficient_features: tuple[str, ...] = ()
    # Whether they worked on a processor with just `sufficient_features`. If so, and there are none,
    # every processor suffices.
    tried: bool = False
    failure: str = ""  # a clause on what fails without `needs`
