"""Recorded wheels of packages: those that a package's project offers, wherever they are.

Projects encode different things in the names of their wheels: the torch and the toolkit in the
local version, "2.8.3+cu12torch2.8cxx11abiTRUE" or "2.1.2+pt28cu128", or neither. So the names are
recorded as they are, and beside them what they do not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import DateText, InstallTemplate, WheelNames

Evidence = Literal["listed", "workflow"]


@dataclass(frozen=True, slots=True)
class WheelFiles:
    """Wheels that go with the same torch, and what their names do not say of them."""

    # Their names. Braces stand for one text each: "spam-1.0-{cp310-cp310,cp311-cp311}-any.whl".
    files: WheelNames
    torch: SpecifierSet | None = None  # that they go with; None: the names say it, or nothing does
    # The toolkit of the torch that they go with: "cu130", "cu12" for all of CUDA 12, "cpu". "": the
    # names say it, or nothing does.
    variant: str = ""
    capabilities: str = ""  # the TORCH_CUDA_ARCH_LIST that the wheels say they were built with
    told_by: str = ""  # what says the values above: "Requires-Dist", a file in the wheel
    note: str = ""  # a clause to read before a wheel is installed


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A place that has wheels of a package: an index, a page of links, releases on GitHub."""

    name: str  # in messages: "PyPI"
    # The arguments of `pip install` for one of its wheels.
    install: InstallTemplate
    source: str
    # "listed": somebody read the list of files. "workflow": somebody read the project's workflow
    # that makes and uploads them, but not the list.
    evidence: Evidence
    date: DateText | None = None  # of the reading
    wheels: tuple[WheelFiles, ...] = ()
