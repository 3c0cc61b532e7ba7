"""GPUs, their compute capabilities, and the machines that they come with.

An empty SpecifierSet means any version. `source` is the address, or the reason, of a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import Capabilities, VersionText, no_entries


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a machine, as its driver reports it."""

    name: str  # "NVIDIA GeForce RTX 3090"
    capability: str | None = None  # "8.6"; None: old drivers do not report it


@dataclass(frozen=True, slots=True)
class Capability:
    """A compute capability and the GPUs that have it."""

    name: str  # "8.6"
    architecture: str  # "Ampere"
    gpus: tuple[str, ...]  # as their vendor names them: "GeForce RTX 3090"
    # A system on a chip, such as Jetson's: NVIDIA does not promise that code for another minor
    # version runs on it.
    tegra: bool = False
    # Of a system on a chip: versions of the toolkits whose code the drivers of its boards run. They
    # follow from the JetPack, NVIDIA's system for these boards, that is the last for them.
    jetpack: SpecifierSet = field(default_factory=SpecifierSet)
    renamed: str = ""  # the name that later toolkits have for it: "11.0"; "": it has one name
    # "9.0a" -> torch whose cpp_extension takes it
    extensions: Mapping[str, SpecifierSet] = no_entries()
    # Versions that have code for it, as far as is known.
    cudnn: SpecifierSet = field(default_factory=SpecifierSet)
    dropped_by_driver: VersionText | None = None  # the first driver that does not run it: "495"


@dataclass(frozen=True, slots=True)
class ArchName:
    """The capabilities that an architecture's name stands for in an arch list."""

    name: str  # "Ampere", "Kepler+Tesla"
    release: SpecifierSet  # of torch
    means: Capabilities  # "8.0", "8.6"


@dataclass(frozen=True, slots=True)
class DeviceMaker:
    """A maker of devices that torchmill does not build for."""

    maker: str  # "AMD"
    platform: str  # PyTorch's name of its software, "ROCm"; "": a wheel without CUDA supports it
    names: tuple[str, ...]  # regular expressions for names of its devices; case is ignored
    alternative: str  # a way to use such devices, as a clause
    source: str


@dataclass(frozen=True, slots=True)
class Board:
    """A board: GPUs that exist only together with a processor."""

    gpus: tuple[str, ...]  # as gpus.toml names them
    arch: str  # of the processor
    name: str  # of the processor: "Grace"
    processor: tuple[str, ...]  # its features, in the words of /proc/cpuinfo
    source: str


@dataclass(frozen=True, slots=True)
class BoardIndex:
    """An index of wheels for boards, by their maker."""

    url: str
    gpus: tuple[str, ...]  # as gpus.toml names them
    jetpack: str  # the major version of JetPack: "6"
    cuda: str  # toolkits that its wheels are made with, for people
    source: str


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Everything that the facts know of GPUs, and of devices that users mistake for them."""

    capabilities: tuple[Capability, ...] = ()  # oldest first
    arch_names: tuple[ArchName, ...] = ()
    # How a capability may be written -> releases of torch whose CMake understands that:
    # "two_digits" ("10.0"), and the suffixes "a" and "f" ("9.0a").
    arch_spelling: Mapping[str, SpecifierSet] = no_entries()
    # Makers of other devices than NVIDIA's; the first whose name fits counts.
    device_makers: tuple[DeviceMaker, ...] = ()
    boards: tuple[Board, ...] = ()
    board_indexes: tuple[BoardIndex, ...] = ()
