"""GPUs, their compute capabilities, and the machines that they come with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import no_entries


@dataclass(frozen=True, slots=True)
class DeviceMaker:
    """A maker of devices that torchmill does not build for."""

    maker: str  # "AMD"
    platform: str  # what PyTorch calls the way to its devices, "ROCm"; "" where a wheel without CUDA has it
    names: tuple[str, ...]  # regular expressions that find its devices' names, whatever their case
    instead: str  # what serves there, as a clause
    source: str


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
class Capability:
    """A compute capability and the GPUs that have it."""

    name: str  # "8.6"
    architecture: str  # "Ampere"
    gpus: tuple[str, ...]  # as their vendor names them: "GeForce RTX 3090"
    tegra: bool = False  # a system on a chip: code for another minor is not promised to run on it
    jetpack: SpecifierSet = field(
        default_factory=SpecifierSet
    )  # toolkits that a driver of its boards' runs
    extensions: Mapping[str, SpecifierSet] = (
        no_entries()
    )  # "9.0a" -> torch whose cpp_extension takes it
    cudnn: SpecifierSet = field(
        default_factory=SpecifierSet
    )  # the versions that have code for it, as far as is known


@dataclass(frozen=True, slots=True)
class ArchName:
    """What an architecture's name stands for in a list of compute capabilities."""

    name: str  # "Ampere", "Kepler+Tesla"
    release: SpecifierSet  # of torch
    means: tuple[str, ...]  # "8.0", "8.6"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a machine."""

    name: str  # "NVIDIA GeForce RTX 3090"
    capability: str | None = None  # "8.6"; None: an old driver does not say
