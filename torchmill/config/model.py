"""Values: builds, plans, packages, releases, rules, toolkits, machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchmill.config.build import SPEED_ONLY_SWITCHES, Build, Processor
from torchmill.config.field_types import no_entries
from torchmill.config.release import Release
from torchmill.config.toolkit import Toolkit
from torchmill.config.wheel_code import WheelCode


@dataclass(frozen=True, slots=True)
class SourceName:
    """What a wheel and its documents may call a source."""

    commit: (
        str | None
    )  # that it is proven to be; where none is fetched yet, that which git would bring
    label: str  # of versions by `--label git`: "git49444c3"; "" where nothing is known
    git_version: (
        str | None
    )  # what the wheel's version module shall say; None: what upstream writes there
    title: str  # what is known of its files, for people


UNFETCHED = SourceName(None, "", None, "not fetched")


@dataclass(frozen=True, slots=True)
class Command:
    """One program to run; ${…} stands for a path that only the machine knows."""

    title: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Something that the official wheel has and ours will not."""

    what: str
    cost: str  # of being without it
    cure: str  # how to bring it

    def __str__(self) -> str:
        """Return it as a sentence without its full stop."""
        return f"{self.what} ({self.cost}): {self.cure}"


Fit = Literal["fits", "does not fit", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a published wheel would do on a machine."""

    fit: Fit
    why: str = ""  # a clause; "" where it fits


@dataclass(frozen=True, slots=True)
class PublishedWheel:
    """A wheel that upstream published."""

    package: str
    version: str  # "2.4.1+cu118"
    toolkit: Toolkit | None
    index: str  # that pip must be told; "": it asks there anyway
    pythons: tuple[str, ...]
    arch: str
    readings: tuple[WheelCode, ...] = ()  # of its files; (): nobody read them
    said: str = ""  # the compute capabilities that upstream's build script names
    verdict: Verdict = Verdict("cannot tell", "it was held against no machine")
    remarks: tuple[str, ...] = ()  # clauses

    @property
    def command(self) -> str:
        """Return the command that installs it."""
        return f"pip install {self.requirement}"

    @property
    def requirement(self) -> str:
        """Return the arguments of pip by which it finds the wheel."""
        return f"{self.package}=={self.version}" + (
            f" --extra-index-url {self.index}" * bool(self.index)
        )

    @property
    def would_do(self) -> bool:
        """Tell whether it was read, and fits."""
        return bool(self.readings) and self.verdict.fit == "fits"

    @property
    def code(self) -> str | None:
        """Return the compute capabilities that its own kernels have code for; None if it was not read."""
        return self.readings[0].own if self.readings else None

    @property
    def summary(self) -> str:
        """Return the command and the verdict without its reasons."""
        return (
            f"`{self.command}` would do as well"
            if self.would_do
            else f"`{self.command}`: {self._doubt}"
        )

    @property
    def _doubt(self) -> str:
        return (
            "does not fit" if self.verdict.fit == "does not fit" else "cannot tell whether it fits"
        )

    def as_data(self) -> dict[str, object]:
        """Return it as JSON-ready data."""
        return {
            "version": self.version,
            "cuda": self.toolkit and self.toolkit.version,
            "read": bool(self.readings),
            "capabilities": self.code,
            "capabilities_said": self.said,
            "verdict": self.verdict.fit,
            "why": self.verdict.why,
            "command": self.command,
            "remarks": list(self.remarks),
        }

    def __str__(self) -> str:
        """Return what a user who is about to build should know, as a clause."""
        cuda = f" with CUDA {self.toolkit.version}" if self.toolkit else ""
        name = f"the official wheel{cuda}, `{self.command}`"
        if self.would_do:
            return "; ".join((f"{name}, would do as well", *self.remarks))
        return "; ".join((f"{name}: {self._doubt}: {self.verdict.why}", *self.remarks))


@dataclass(frozen=True, slots=True)
class Plan:
    """All that will happen for one build, computed without touching anything."""

    build: Build
    identifier: str
    release: Release
    commit: (
        str | None
    )  # that the source is proven to be; where none is fetched yet, that which git would bring
    version: str  # with the local label
    set: Mapping[str, str]
    passed: tuple[
        str, ...
    ]  # patterns of the variables of the user's shell that the build sees, and no others
    requirements: tuple[str, ...]
    kit: tuple[str, ...]  # requirements that serve every interpreter: CMake, ninja
    patches: tuple[str, ...]
    prepare: tuple[Command, ...]
    compile: tuple[Command, ...]
    jobs: int
    wheel: str  # file name
    platform_tag: str
    reasons: tuple[str, ...]  # of the rules that shaped it
    lacks: tuple[Shortfall, ...]  # what the official wheel has and this one will not
    torch: str | None  # what a dependent package is built against: "torch==1.13.1+cpu"
    lender: Path | None = (
        None  # the folder of packages that lends that; None: it is installed for the build
    )
    toolkit: str | None = (
        None  # the version of CUDA that compiles it, "11.8"; None: a build without CUDA
    )
    libraries: Mapping[str, str] = no_entries()  # "cudnn" -> "8.5.0.96", where a kept one is taken
    kept: Mapping[str, str] = no_entries()  # how these are called where they are kept
    differs: tuple[Shortfall, ...] = ()  # where it is not as the official wheel on purpose, and why
    folders: tuple[str, ...] = ()  # of the source that may not be empty
    computed: bool = (
        False  # `platform_tag` is the newest that there can be: symbols say which it is
    )
    published: PublishedWheel | None = None  # the nearest to it, whether it would do or not
    processor: Processor | None = None  # that it is for; None: any
    given: Mapping[str, str] = no_entries()  # of the patches, the user's own, with their paths
    source: SourceName = UNFETCHED

    @property
    def switches(self) -> dict[str, str]:
        """Return the variables that can change what is made, not only how fast."""
        return {name: value for name, value in self.set.items() if name not in SPEED_ONLY_SWITCHES}

    @property
    def arch_list(self) -> str:
        """Return the compute capabilities that it has code for, "8.0;8.6+PTX"; "" where they are left to the build."""
        return self.set.get("TORCH_CUDA_ARCH_LIST", "")

    @property
    def torch_requirement(self) -> str | None:
        """Return what the wheel requires of torch: what it is built against, or all that its stable ABI serves."""
        served = self.release.stable_abi
        return f"{self.torch.partition('==')[0]}{served}" if self.torch and served else self.torch
