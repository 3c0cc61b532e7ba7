"""A wheel that upstream published, and whether it would do on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchmill.config.toolkit import Toolkit
from torchmill.config.wheel_code import WheelCode

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
