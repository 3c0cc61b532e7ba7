"""How conda names projects, versions and licences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torchmill.config.field_types import no_entries

Bounds = Literal["same", "major", "minor", "none"]


@dataclass(frozen=True, slots=True)
class CondaName:
    """A project of PyPI's, as conda has it."""

    name: str  # "pytorch"
    bounds: Bounds = "same"  # what becomes of a version that is required exactly


@dataclass(frozen=True, slots=True)
class CondaFacts:
    """All of it."""

    subdirs: Mapping[str, str]  # arch -> folder of a channel, "linux-64"
    cuda: Mapping[str, str] = no_entries()  # toolkit -> as build strings have it, "11.0.221"
    licenses: Mapping[str, str] = no_entries()  # as METADATA has them -> SPDX
    compiled_with: Mapping[str, tuple[str, ...]] = no_entries()  # package -> projects
    libstdcxx: Mapping[str, str] = no_entries()  # version of symbols, "3.4.30" -> GCC
    names: Mapping[str, CondaName] = no_entries()  # project on PyPI -> conda's
