"""All facts of build_configs/ as one value.

The parts that are large have modules of their own, which the imports name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.build import Arch
from torchmill.config.conda_facts import CondaFacts
from torchmill.config.costs import CostFacts
from torchmill.config.field_types import VariantTemplate, no_entries
from torchmill.config.gpu import Capability, GpuFacts
from torchmill.config.images import ImageFacts
from torchmill.config.link_facts import LinkFacts
from torchmill.config.package import Package
from torchmill.config.package_wheels import WheelSource
from torchmill.config.parsed import ParsedSource
from torchmill.config.release import Release
from torchmill.config.rule import OfficialPart
from torchmill.config.toolkit import Toolkit, ToolkitPart, ToolkitSource
from torchmill.config.vulnerability import VulnerabilityFacts
from torchmill.config.wheel_code import FeatureLibrary, PackageCode, ProcessorNeed, WheelCode

# If a log has lines of several causes, the cause whose precedence comes first here is named: a
# machine that lacks something makes everything else fail, and a line that merely reports a failure
# explains the least.
Precedence = Literal["machine", "specific", "general", "report"]


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file of a package or a release that is left out of the facts because of mistakes."""

    name: str  # "packages/torchvision.toml"
    # The names by which users call the package or release in the file: "torchvision" and "vision",
    # or "2.7.1" and "v2.7.1".
    names: tuple[str, ...]
    problems: tuple[str, ...]  # one line each

    @property
    def warning(self) -> str:
        """Return one line for commands that do not need the package or release."""
        first = self.problems[0]
        further = len(self.problems) - 1
        count = f" (and {further} more)" if further else ""
        return f"build_configs/{self.name} is left out, because it has a mistake: {first}{count}"


@dataclass(frozen=True, slots=True)
class CauseCandidate:
    """One of several reasons for the same error, which other lines or the machine tell apart."""

    name: str  # "nvcc-older-than-the-gpu"
    cause: str  # what went wrong, in a sentence
    cure: str  # what to do, as the cure of a cause
    # Fact -> what it has to be: bounds of a version, "<8", or words, "other|none". All must hold.
    when: Mapping[str, str] = field(default_factory=dict, hash=False)
    tell: str = ""  # the command that shows whether it is this one


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A way in which builds fail, recognized by lines of the log."""

    name: str  # "memory"
    patterns: tuple[str, ...]  # regular expressions; one that matches a line is enough
    cause: str  # what went wrong, in a sentence
    cure: str  # what to do, in sentences; commands are in backticks
    source: str
    examples: tuple[str, ...]  # lines that must be recognized
    release: SpecifierSet | None = None  # releases of torch in which it occurs; None: all
    precedence: Precedence = "specific"  # if a log has lines of several causes
    # A list of known_names.toml, of lines "ANSWER: NAME …". The group (?P<name>…) of the patterns
    # must then match one of the names. It and its answer replace {name} and {answer} in `cause` and
    # `cure`.
    answers: str = ""
    # Reasons that are told apart by facts; where none of them fits, `cause` and `cure` count.
    candidates: tuple[CauseCandidate, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferedWheels:
    """Wheels that others offer in an index; {variant} stands for the name of a variant."""

    name: VariantTemplate  # of the index, for project files that need one: "pytorch-{variant}"
    url: VariantTemplate
    packages: tuple[str, ...]  # that the index has
    release: SpecifierSet  # releases of torch for which the index has wheels
    # "cpu"; "cuda" for every toolkit that the release was officially built with; "pypi" for the
    # toolkit of the wheels on PyPI
    variants: tuple[str, ...]
    arches: tuple[str, ...]
    source: str
    label: VariantTemplate = ""  # at the end of the wheels' versions: "+{variant}"
    default: bool = False  # whether installers ask this index by themselves


@dataclass(frozen=True, slots=True)
class Cxx11Abi:
    """The C++ ABI of official wheels of torch for some machines: of C++11, "new", or before it."""

    arches: tuple[str, ...]
    new: SpecifierSet  # releases whose wheels have the new one
    old: SpecifierSet  # releases whose wheels have the old one; of the rest it is not known
    source: str


@dataclass(frozen=True, slots=True)
class OfficialFacts:
    """Everything that was read in the official wheels of torch, and what they consist of."""

    parts: tuple[OfficialPart, ...] = ()
    wheel_code: tuple[WheelCode, ...] = ()  # readings of wheels
    package_code: tuple[PackageCode, ...] = ()  # readings of the libraries that wheels require
    feature_libraries: tuple[FeatureLibrary, ...] = ()
    processor_needs: tuple[ProcessorNeed, ...] = ()  # all that fit a release count
    cxx11_abi: tuple[Cxx11Abi, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything in build_configs/."""

    packages: Mapping[str, Package]
    releases: Mapping[str, tuple[Release, ...]]  # by package, oldest first
    toolkits: tuple[Toolkit, ...]  # oldest first
    arches: Mapping[str, Arch]
    patches: Path
    gpus: GpuFacts = field(default_factory=GpuFacts)
    costs: CostFacts = field(default_factory=CostFacts)
    parsed: tuple[ParsedSource, ...] = ()
    official: OfficialFacts = field(default_factory=OfficialFacts)
    causes: tuple[FailureCause, ...] = ()  # in the order in which they are tried
    linking: LinkFacts | None = None  # None: nothing can be predicted
    toolkit_sources: tuple[ToolkitSource, ...] = ()
    toolkit_parts: tuple[ToolkitPart, ...] = ()
    offered_wheels: tuple[OfferedWheels, ...] = ()
    # By package: the recorded wheels of packages that are built on torch.
    package_wheels: Mapping[str, tuple[WheelSource, ...]] = no_entries()
    # patterns of files that are never slimmed: "libcublas*"
    unslimmed_libraries: tuple[str, ...] = ()
    images: ImageFacts = field(default_factory=ImageFacts)
    conda: CondaFacts | None = None  # None: no packages can be made for it
    vulnerabilities: VulnerabilityFacts = field(default_factory=VulnerabilityFacts)
    left_out: tuple[BrokenFile, ...] = ()

    @property
    def folder(self) -> Path:
        """Return the folder that the facts were read from: build_configs/, or a merged copy."""
        return self.patches.parent

    def toolkit(self, version: str | None) -> Toolkit | None:
        """Return a CUDA toolkit by its version; None if no fact describes it.

        `version` is None for builds without CUDA, which have no toolkit.
        """
        for toolkit in self.toolkits:
            if toolkit.version == version:
                return toolkit
        return None

    def toolkit_of_variant(self, variant: str) -> Toolkit | None:
        """Return a CUDA toolkit by its variant, "cu118"; None if no fact describes it."""
        for toolkit in self.toolkits:
            if toolkit.variant == variant:
                return toolkit
        return None

    def capability(self, name: str) -> Capability | None:
        """Return a compute capability by its name, "8.6"; None if it is unknown."""
        for capability in self.gpus.capabilities:
            if capability.name == name:
                return capability
        return None
