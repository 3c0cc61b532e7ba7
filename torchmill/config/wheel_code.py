"""Readings of published wheels: their code for GPUs, and their demands on a processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import DateText, VersionText


@dataclass(frozen=True, slots=True)
class ReadLibrary:
    """The device code that was read in a library of a wheel."""

    name: str  # of its file: "libtorch_cuda.so"
    sizes: tuple[int, ...]  # bytes, unpacked; several if wheels of one release differ
    # targets, "8.6;9.0;9.0 PTX" -> number of fatbins that have code for exactly these
    fatbins: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WheelCode:
    """The readings of the wheels of a release for one machine."""

    package: str
    release: str  # its version
    arch: str
    files: tuple[str, ...]  # that were read; wheels with libraries of the same sizes are alike
    date: DateText | None  # of the reading
    # By library; of a wheel without CUDA only the largest library, which has no fatbins.
    code: Mapping[str, ReadLibrary]
    cuda: VersionText | None = None  # the toolkit that version.py names
    own: str = ""  # targets of most fatbins of the largest library, as in TORCH_CUDA_ARCH_LIST
    # Packages with device code that the wheel requires: "nvidia-nccl-cu13==2.30.7".
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackageCode:
    """The device code that was read in one of NVIDIA's packages of libraries."""

    name: str  # "nvidia-cudnn-cu13"
    version: str
    arch: str
    file: str  # that was read
    date: DateText | None  # of the reading
    code: Mapping[str, str]  # library -> targets that any of its fatbins has code for


@dataclass(frozen=True, slots=True)
class FeatureLibrary:
    """A library for a feature that most programs do without.

    If it has no code for a GPU, nothing else of the wheel is affected.
    """

    pattern: str  # of its file, or of its package: "nvidia-cusparselt-*"
    feature: str  # that does not run without its code
    source: str


@dataclass(frozen=True, slots=True)
class ProcessorNeed:
    """Features of /proc/cpuinfo that the CPU code of official wheels asks of a processor."""

    release: SpecifierSet  # of torch
    arches: tuple[str, ...]
    source: str
    needs: tuple[str, ...] = ()  # it fails without
    enough: tuple[str, ...] = ()  # it was seen to work with these alone
    tried: bool = False  # `enough` was tried: then none at all can be enough
    why: str = ""  # what fails, as a clause
