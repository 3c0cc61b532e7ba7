"""A wheel that upstream published, and whether it would do instead of a build on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchmill.config.toolkit import Toolkit
from torchmill.config.wheel_code import WheelCode
from torchmill.plan.recorded_wheels import RecordedWheel

Fit = Literal["fits", "does not fit", "cannot tell"]


@dataclass(frozen=True, slots=True)
class WheelVerdict:
    """Whether a published wheel would do on a machine."""

    fit: Fit
    reason: str = ""  # a clause; "" if it fits

    @property
    def is_ruled_out(self) -> bool:
        """Tell whether the wheel certainly does not fit."""
        return self.fit == "does not fit"


@dataclass(frozen=True, slots=True)
class PublishedWheel:
    """A wheel that upstream published, as it is recorded in the facts."""

    package: str
    version: str  # "2.4.1+cu118"
    toolkit: Toolkit | None
    index: str  # the URL for pip's --extra-index-url; "": the wheel is on PyPI, or a recorded one
    pythons: tuple[str, ...]
    arch: str
    readings: tuple[WheelCode, ...] = ()  # of the code in its files; (): nobody read them
    announced: str = ""  # the compute capabilities in upstream's build script
    verdict: WheelVerdict = WheelVerdict("cannot tell", "it was held against no machine")
    remarks: tuple[str, ...] = ()  # clauses to read before the wheel is installed
    # Of an extension: the wheel in package_wheels/, and the torch of the cell that it goes with.
    recorded: RecordedWheel | None = None
    torch: str = ""

    @property
    def command(self) -> str:
        """Return the command that installs the wheel."""
        return f"pip install {self.requirement}"

    @property
    def requirement(self) -> str:
        """Return the arguments by which pip finds the wheel: a pin, and an index if it needs one."""
        if self.recorded is not None:
            return self.recorded.arguments
        requirement = f"{self.package}=={self.version}"
        if self.index:
            # "extra": the requirements of the wheel may be on PyPI alone.
            requirement += f" --extra-index-url {self.index}"
        return requirement

    @property
    def is_known_to_fit(self) -> bool:
        """Tell whether the wheel was read, and fits."""
        return bool(self.readings) and self.verdict.fit == "fits"

    @property
    def is_offered(self) -> bool:
        """Tell whether a wheel of an extension exists for this torch, and nothing is against it.

        Which GPUs it has code for need not be known.
        """
        recorded = self.recorded
        if recorded is None or recorded.is_pure or self.verdict.is_ruled_out:
            return False
        return recorded.is_listed and recorded.says_its_torch

    @property
    def code(self) -> str | None:
        """Return the compute capabilities of its own kernels; None if the wheel was not read.

        Of wheels for several Pythons, the first reading counts.
        """
        return self.readings[0].kernel_targets if self.readings else None

    @property
    def summary(self) -> str:
        """Return the command and the verdict, without its reason and the remarks."""
        if self.is_known_to_fit:
            return f"`{self.command}` would do as well"
        if self.is_offered:
            return f"a wheel exists: `{self.command}`"
        return f"`{self.command}`: {self._doubt}"

    @property
    def _doubt(self) -> str:
        """Return the verdict on a wheel that is not known to fit, as the end of a sentence."""
        if self.verdict.is_ruled_out:
            return "does not fit"
        return "cannot tell whether it fits"

    def as_data(self) -> dict[str, object]:
        """Return the wheel as JSON-ready data."""
        # Programs rely on these keys, whatever the fields of a wheel are called.
        return {
            "version": self.version,
            "cuda": self.toolkit.version if self.toolkit else None,
            "read": bool(self.readings),
            "capabilities": self.code,
            "capabilities_said": self.announced,
            "verdict": self.verdict.fit,
            "why": self.verdict.reason,
            "command": self.command,
            "remarks": list(self.remarks),
            "place": self.recorded.place.name if self.recorded else "",
            "evidence": self.recorded.place.evidence if self.recorded else "",
        }

    def __str__(self) -> str:
        """Return a clause for users who are about to build the same."""
        if self.recorded is not None:
            return "; ".join((*self._clauses_on_recorded(self.recorded), *self.remarks))
        cuda = f" with CUDA {self.toolkit.version}" if self.toolkit else ""
        name = f"the official wheel{cuda}, `{self.command}`"
        if self.is_known_to_fit:
            verdict = f"{name}, would do as well"
        else:
            verdict = f"{name}: {self._doubt}: {self.verdict.reason}"
        return "; ".join((verdict, *self.remarks))

    def _clauses_on_recorded(self, recorded: RecordedWheel) -> list[str]:
        """Return clauses on a wheel of an extension: where it is, and what is known against it."""
        toolkit = f"with CUDA {self.toolkit.version}" if self.toolkit else "without CUDA"
        target = f"torch {self.torch} {toolkit} and Python {', '.join(self.pythons)}"
        place = recorded.place
        if self.verdict.is_ruled_out:
            return [
                f"the wheel on {place.name}, `{self.command}`, does not fit: {self.verdict.reason}"
            ]
        clauses: list[str] = []
        if recorded.is_pure:
            clauses.append(f"a wheel without compiled code: `{self.command}` (on {place.name})")
        elif not recorded.says_its_torch:
            clauses.append(
                f"a wheel on {place.name}: `{self.command}`, but what says that it goes with "
                f"{target} was not found"
            )
        elif recorded.is_listed:
            clauses.append(f"the wheel exists: `{self.command}` (on {place.name}, for {target})")
        else:
            clauses.append(
                f"upstream's workflow makes the wheel: `{self.command}` ({place.name}, for {target})"
            )
        if recorded.group.note:
            clauses.append(recorded.group.note)
        if self.verdict.reason:
            clauses.append(self.verdict.reason)
        return clauses
