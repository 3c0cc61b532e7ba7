"""One visit to the doctor: which release and which cell are meant, and what is found."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmill import doctor, lookup, plan, source
from torchmill import host as hosts
from torchmill.doctor import machine, show
from torchmill.doctor.finding import Finding
from torchmill.errors import ConfigError, HostError
from torchmill.housekeeping import foresight
from torchmill.housekeeping.foresight import Folders
from torchmill.housekeeping.running import environment_of
from torchmill.layout import Layout, environments
from torchmill.matrix import Cell
from torchmill.model import Facts, Host, Options, Release

HELP = {
    "build": "such as wheel-3.10-cpu; without one, the machine is examined for itself",
    "tag": "the release; default: the selected one",
    "host": "a TOML file that describes another machine",
    "json": "print JSON",
    "save": "write what this machine has to a TOML file, to be examined elsewhere",
    "arch_list": "for a build with these compute capabilities, such as '8.0;8.6+PTX'",
    "torch": "for a build against this wheel, or PyPI's",
    "toolkit": "for a build with this newer CUDA of the same major version, such as 11.8",
}

_NONE = Options()


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


def patient(facts: Facts, layout: Layout, described: str, saved: str) -> Host:
    """Return this machine, or the one that a file describes, and save it where a file is named.

    Raises ConfigError for a file that cannot be read or written.
    """
    if described:
        found = hosts.load(Path(described))
    else:
        found = doctor.survey(facts, hosts.measure(layout.root), os.environ)
    if saved:
        hosts.save(found, Path(saved))
    return found


def visit(  # noqa: PLR0917 - what is examined, and for what
    facts: Facts,
    layout: Layout | None,
    host: Host,
    identifier: str,
    release: Release | None,
    options: Options = _NONE,
) -> Visit:
    """Examine a host for the cell of that name, with its options, or for itself where the name is empty.

    Without a layout the host is another machine, and what was fetched here does not count.
    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is impossible,
    ConfigError for options that contradict it, or that are given without a cell.
    """
    if not identifier:
        if options != _NONE:
            raise ConfigError("invoke doctor: name the build that these options are for, as wheel-3.10-cu118")
        subject = "this machine" if layout else "the machine"
        return Visit(subject, machine.examine(facts, host, release), "cannot build anything yet")
    cell = lookup.find(facts, identifier, host.arch, release)
    if layout is None:
        findings = doctor.examine(facts, cell, host, plan.compute(facts, cell, host, options))
        return Visit(f"{identifier} ({cell.release})", findings, "cannot be built here yet")
    fetched = source.load(layout, cell.build.package, cell.release.tag)
    computed = plan.compute(facts, cell, host, options, fetched)
    folders = _folders(layout, cell, host)
    here = foresight.looked_at(host, facts, layout, folders, fetched)
    findings = doctor.examine(facts, cell, here, computed, fetched)
    return Visit(f"{identifier} ({cell.release})", findings, "cannot be built here yet")


def _folders(layout: Layout, cell: Cell, host: Host) -> Folders:
    """Return where a build would go on, in the newest tree that may be its own."""
    tag, identifier = cell.release.tag, cell.build.identifier(host.arch)
    tree = foresight.newest_tree(layout, tag, cell.build.family(host.arch), identifier)
    return Folders(tree, layout.tree(tag, identifier), environments() / environment_of(identifier))
