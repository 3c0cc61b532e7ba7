"""Readings of published wheels: their code for GPUs, and their demands on a processor.

A reading is what somebody found in the files of a wheel on some day. The device code of a library
lies in fatbins, files within the library. Each has code for one or more targets: compute
capabilities, or PTX ("9.0 PTX"), which a driver can compile for later GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import DateText, VersionText


@dataclass(frozen=True, slots=True)
class LibraryReading:
    """The device code in a library of a wheel."""

    name: str  # of its file: "libtorch_cuda.so"
    sizes: tuple[int, ...]  # bytes, unpacked; several if wheels of one release differ
    # targets, "8.6;9.0;9.0 PTX" -> number of fatbins that have code for exactly these targets
    fatbins: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WheelCode:
    """The reading of a release's wheels for one machine and one toolkit."""

    package: str
    release: str  # its version
    arch: str
    # The wheels that were read. Others of the release, whose libraries have the same sizes, were
    # taken to have the same code.
    files: tuple[str, ...]
    date: DateText | None  # of the reading
    # By library; of a wheel without CUDA only the largest library, which has no fatbins.
    code: Mapping[str, LibraryReading]
    cuda: VersionText | None = None  # the toolkit that version.py names
    # The targets that the wheel's own source was compiled for, as in TORCH_CUDA_ARCH_LIST: those of
    # most fatbins in the largest library. Other fatbins come from NVIDIA's static libraries.
    own: str = ""
    # Packages with device code that the wheel requires: "nvidia-nccl-cu13==2.30.7".
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackageCode:
    """The reading of one of NVIDIA's packages of libraries."""

    name: str  # "nvidia-cudnn-cu13"
    version: str
    arch: str
    file: str  # the wheel that was read
    date: DateText | None  # of the reading
    code: Mapping[str, str]  # library -> targets that any of its fatbins has code for


@dataclass(frozen=True, slots=True)
class FeatureLibrary:
    """A library for a feature that most programs do without.

    If the library has no code for a GPU, the rest of the wheel still runs on that GPU.
    """

    pattern: str  # of the name of its file or package: "nvidia-cusparselt-*"
    feature: str  # what does not run without its code
    source: str


@dataclass(frozen=True, slots=True)
class ProcessorNeed:
    """Features of /proc/cpuinfo that the CPU code of official wheels asks of a processor."""

    release: SpecifierSet  # of torch
    arches: tuple[str, ...]
    source: str
    needs: tuple[str, ...] = ()  # features without which a wheel fails
    enough: tuple[str, ...] = ()  # if a processor has these alone, a wheel was seen to work
    # Whether `enough` was tried: an empty `enough` then means that every processor suffices.
    tried: bool = False
    why: str = ""  # what fails, as a clause
