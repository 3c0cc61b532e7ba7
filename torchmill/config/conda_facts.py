"""How conda names projects, versions and licences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torchmill.config.field_types import no_entries

Bounds = Literal["same", "major", "minor", "none"]


@dataclass(frozen=True, slots=True)
class CondaName:
    """The conda package of a project on PyPI."""

    name: str  # "pytorch"
    bounds: Bounds = "same"  # of conda's requirement for an exact one on the project


@dataclass(frozen=True, slots=True)
class CondaFacts:
    """Everything in conda.toml."""

    subdirs: Mapping[str, str]  # arch -> folder of a channel: "linux-64"
    cuda: Mapping[str, str] = no_entries()  # toolkit -> its version in build strings: "11.0.221"
    licenses: Mapping[str, str] = no_entries()  # License in METADATA -> SPDX expression
    compiled_with: Mapping[str, tuple[str, ...]] = no_entries()  # package -> projects
    libstdcxx: Mapping[str, str] = no_entries()  # version of symbols, "3.4.30" -> GCC's version
    names: Mapping[str, CondaName] = no_entries()  # project on PyPI -> conda package
