"""What is known of conda: how it calls machines, packages and toolkits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BOUNDS = ("same", "major", "minor", "none")


@dataclass(frozen=True, slots=True)
class CondaName:
    """A project of PyPI's, as conda has it."""

    name: str  # "pytorch"
    bounds: str  # one of BOUNDS: what becomes of a version that is required exactly


@dataclass(frozen=True, slots=True)
class Conda:
    """All of it."""

    subdirs: Mapping[str, str]  # arch -> folder of a channel, "linux-64"
    cuda: Mapping[str, str] = field(default_factory=dict)  # toolkit -> as build strings have it, "11.0.221"
    licenses: Mapping[str, str] = field(default_factory=dict)  # as METADATA has them -> SPDX
    compiled_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # package -> projects
    libstdcxx: Mapping[str, str] = field(default_factory=dict)  # version of symbols, "3.4.30" -> GCC
    names: Mapping[str, CondaName] = field(default_factory=dict)  # project on PyPI -> conda's
