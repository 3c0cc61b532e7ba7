"""Rules of packages: their conditions, and their effects on a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import (
    DateText,
    Positive,
    Requirements,
    VariantTemplate,
    no_entries,
)

FrontEnd = Literal["setup.py", "pep517"]


@dataclass(frozen=True, slots=True)
class When:
    """Conditions that must all hold; one that is None always does."""

    release: SpecifierSet | None = None
    # The torch that a package is built against; of torch itself, its own release.
    torch: SpecifierSet | None = None
    python: SpecifierSet | None = None
    cuda: SpecifierSet | None = None  # of the toolkit; never holds for a build without CUDA
    variant: tuple[str, ...] | None = None
    arch: tuple[str, ...] | None = None
    system: tuple[str, ...] | None = None
    provider: tuple[str, ...] | None = None  # of the source: "git", "debian"
    gcc: SpecifierSet | None = None  # of its version; never holds for another compiler
    clang: SpecifierSet | None = None  # the same
    provisioned_libraries: tuple[str, ...] | None = None  # taken from the user's cache: "cudnn"
    absent_libraries: tuple[str, ...] | None = None  # that the machine is known to lack: "magma"
    # On a Jetson: "own-cuda" if its CUDA is that of its JetPack alone, "server-cuda" if it is that
    # of Arm servers, too. Never holds on other machines.
    board: tuple[str, ...] | None = None
    another_toolkit: bool = False  # only if the toolkit is not the variant's own


@dataclass(frozen=True, slots=True)
class Rule:
    """Effects on the cells that `when` matches, with the reason and the source of the fact."""

    name: str  # "torch.toml: rule 3", for messages
    when: When
    reason: str
    source: str = ""
    conflict: bool = False  # the cell is impossible, for `reason`
    set: Mapping[str, str] = no_entries()
    append: Mapping[str, str] = no_entries()  # flags, joined to those of other rules and the user
    requires: Requirements = ()
    # Requirements that pip installs with the wheel; {triton} is the version of that partner.
    installs: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # of the source, which are compiled: an empty one stops the build
    unless: tuple[str, ...] = ()  # variables with which an empty one does not
    patches: tuple[str, ...] = ()
    # The vulnerabilities that its patches fix: "CVE-2025-32434". `--secure` decides on such rules.
    fixes: tuple[str, ...] = ()
    # The day on which a wheel with its patches withstood what PyPI's wheel does not; None: not yet.
    proven: DateText | None = None
    prepare: tuple[tuple[str, ...], ...] = ()  # commands that run once in the fresh tree
    system_packages: Mapping[str, tuple[str, ...]] = no_entries()  # by package manager
    front_end: FrontEnd | None = None
    # tool, "gcc" -> bounds outside which the build fails
    needs: Mapping[str, SpecifierSet] = no_entries()
    # tool -> bounds outside which nobody is known to have built it
    advises: Mapping[str, SpecifierSet] = no_entries()
    cxx: Positive | None = None  # the C++ standard that the sources are written in


@dataclass(frozen=True, slots=True)
class OfficialPart:
    """A part of official wheels. A plan has it too, lacks it, or differs for a reason."""

    name: str
    when: When
    source: str
    # Patterns of variables by which a plan has it: "USE_LLVM=*"; (): it has it by itself.
    signs: tuple[str, ...] = ()
    # Patterns by which a plan lacks it: "USE_KINETO=0", "lacking magma".
    unless: tuple[str, ...] = ()
    cost: str = ""  # of being without it
    brings: VariantTemplate = ""  # how to bring it
    explained: str = ""  # why our wheels differ on purpose
    # Jetsons that have no use for it, or no way to get it: "own-cuda", as in `When.board`.
    not_on: tuple[str, ...] = ()
