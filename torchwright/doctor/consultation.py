"""One visit to the doctor: which release and which cell are meant, and what is found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchwright import doctor, lookup, plan, source
from torchwright.doctor import machine, show
from torchwright.doctor.finding import Finding
from torchwright.errors import HostError
from torchwright.layout import Layout
from torchwright.model import Facts, Host, Options, Release

HELP = {
    "build": "such as wheel-3.10-cpu; without one, the machine is examined for itself",
    "tag": "the release; default: the selected one",
    "host": "a TOML file that describes another machine",
    "json": "print JSON",
    "save": "write what this machine has to a TOML file, to be examined elsewhere",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """What was asked, and what was found."""

    subject: str  # "wheel-3.10-cpu (torch 1.13.1)", or "this machine"
    findings: Sequence[Finding]
    refusal: str  # what the subject cannot, where something is missing

    def as_text(self) -> str:
        """Return the table and the cures, with the outcome as the last line."""
        return f"{show.as_text(self.findings)}\n\n{self.subject}: {show.summary(self.findings)}"

    def as_data(self) -> dict[str, Any]:
        """Return the visit as JSON-ready data."""
        return {
            "subject": self.subject,
            "can_start": doctor.can_start(self.findings),
            "findings": show.as_data(self.findings),
        }

    def require(self) -> None:
        """Raise HostError unless a build can start."""
        if not doctor.can_start(self.findings):
            failed = ", ".join(one.subject for one in self.findings if one.verdict == "failure")
            raise HostError(f"{self.subject} {self.refusal} ({failed}): the cures stand above")


def visit(facts: Facts, layout: Layout | None, host: Host, identifier: str, release: Release | None) -> Visit:
    """Examine a host for the cell of that name, or for itself where the name is empty.

    Without a layout the host is another machine, and what was fetched here does not count.
    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is impossible.
    """
    if not identifier:
        subject = "this machine" if layout else "the machine"
        return Visit(subject, machine.examine(facts, host, release), "cannot build anything yet")
    cell = lookup.find(facts, identifier, host.arch, release)
    fetched = source.load(layout, cell.build.package, cell.release.tag) if layout else None
    computed = plan.compute(facts, cell, host, Options(), fetched)
    findings = doctor.examine(facts, cell, host, computed, fetched)
    subject = f"{identifier} ({cell.release})"
    return Visit(subject, findings, "cannot be built here yet")
