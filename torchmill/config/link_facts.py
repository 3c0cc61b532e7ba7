"""Facts about the links of large libraries, from which overflows are predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from torchmill.config.costs import ByteRange, CostRange
from torchmill.config.field_types import Share, no_entries
from torchmill.core.units import Bytes


@dataclass(frozen=True, slots=True)
class StaticLibrary:
    """A library of NVIDIA's that a build may link into its own."""

    name: str  # "cuDNN"
    variable: str  # that asks for it: "USE_STATIC_CUDNN"
    cuda: SpecifierSet  # toolkits for which the size holds
    size: ByteRange  # of what a link takes of it
    source: str


@dataclass(frozen=True, slots=True)
class CodeCompression:
    """The size of device code with an option of fatbinary, relative to `-compress-all`."""

    factor: CostRange  # of the sizes
    source: str
    flag: str = ""  # in TORCH_NVCC_FLAGS; "" for none


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """The facts that a relocation overflow is predicted from."""

    limit: Bytes  # that relative addresses reach: a library may not be larger
    margin: Share  # by which the weight of device code errs either way, as a share of it
    split: SpecifierSet  # releases that have BUILD_SPLIT_CUDA
    official_compression: Mapping[str, SpecifierSet] = no_entries()  # flag -> toolkits
    static: tuple[StaticLibrary, ...] = ()
    compression: tuple[CodeCompression, ...] = ()
