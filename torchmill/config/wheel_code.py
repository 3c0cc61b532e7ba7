"""What was read in published wheels: their code for GPUs, and what they ask of a processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import DateText, VersionText


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
