"""Rules of packages: when they hold, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import VariantTemplate, no_entries


@dataclass(frozen=True, slots=True)
class When:
    """A conjunction over the axes; a key that is None says nothing."""

    release: SpecifierSet | None = None
    python: SpecifierSet | None = None
    cuda: SpecifierSet | None = None  # never matches a build without CUDA
    variant: tuple[str, ...] | None = None
    arch: tuple[str, ...] | None = None
    system: tuple[str, ...] | None = None
    provider: tuple[str, ...] | None = None  # where the source came from
    gcc: SpecifierSet | None = None  # never matches another compiler
    clang: SpecifierSet | None = None
    kept: tuple[str, ...] | None = None  # libraries that are taken from the kept ones: "cudnn"
    lacking: tuple[str, ...] | None = (
        None  # libraries that the machine is known not to have: "magma"
    )
    another_toolkit: bool = False  # only where the toolkit is not the variant's own


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows for the cells that `when` matches, why, and where the fact comes from."""

    name: str  # "torch.toml: rule 3", for messages
    when: When
    reason: str
    source: str = ""
    conflict: bool = False  # the cell is impossible, for `reason`
    set: Mapping[str, str] = no_entries()
    append: Mapping[str, str] = no_entries()  # flags, joined to what other rules and the user say
    requires: tuple[str, ...] = ()
    installs: tuple[
        str, ...
    ] = ()  # what pip is to install with the wheel; {triton} is that partner's version
    folders: tuple[str, ...] = ()  # of the source, which a build compiles: empty ones stop it
    unless: tuple[str, ...] = ()  # variables with which it does not
    patches: tuple[str, ...] = ()
    prepare: tuple[tuple[str, ...], ...] = ()  # commands that run once in the fresh tree
    system_packages: Mapping[str, tuple[str, ...]] = no_entries()  # by package manager
    front_end: str | None = None  # "setup.py" or "pep517"
    needs: Mapping[str, SpecifierSet] = no_entries()  # "gcc" -> bounds outside which it fails
    advises: Mapping[str, SpecifierSet] = (
        no_entries()
    )  # outside them nobody is known to have built it
    cxx: int | None = None  # the C++ standard that it is written in


@dataclass(frozen=True, slots=True)
class OfficialPart:
    """Something that official wheels were built with; a plan has it too, lacks it, or differs for a reason."""

    name: str
    when: When
    source: str
    shown: tuple[
        str, ...
    ] = ()  # by patterns of what a plan says, "USE_LLVM=*"; (): the release does it by itself
    unless: tuple[
        str, ...
    ] = ()  # patterns of what a plan says that has it not: "USE_KINETO=0", "lacking magma"
    cost: str = ""  # of being without it
    brings: VariantTemplate = ""  # how to bring it
    explained: str = ""  # why ours differs on purpose
