"""`invoke doctor`: examine a machine, for a build or for itself, and report findings with their fixes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Any

from torchmill.build import disk_space
from torchmill.build.disk_space import BuildFolders
from torchmill.commands.clean.in_use import nox_environment_name
from torchmill.commands.command import CommandOutput, TaskCommand
from torchmill.config import cell_lookup, selection
from torchmill.config.matrix import Cell
from torchmill.config.model import Facts, Host, Options, Release
from torchmill.core import console
from torchmill.core.errors import ConfigError, HostError
from torchmill.core.paths import Layout, nox_environments_folder
from torchmill.fetch.source import fetcher
from torchmill.host import machine
from torchmill.plan import build_plan
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import VERDICTS, Finding, Verdict
from torchmill.plan.options import options_of_task


def findings_as_text(findings: Sequence[Finding]) -> str:
    """Return the table, and below it what the verdicts mean and the commands that cure them."""
    rows = [(one.verdict, one.subject, one.found, one.needed) for one in findings]
    table = console.format_table(("verdict", "check", "found", "needed"), rows)
    return "\n".join([table, *_remarks(findings)])


def _remarks(findings: Iterable[Finding]) -> Iterator[str]:
    for one in findings:
        cure = one.cure if one.verdict in {"warning", "failure"} else ""
        if one.because or cure:
            yield f"\n{one.subject}: {one.because or f'{one.found} here, needed {one.needed}'}"
        if cure:
            yield f"    {cure}"


def findings_as_data(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the findings as JSON-ready data."""
    return [asdict(one) for one in findings]


def summarize_findings(findings: Iterable[Finding]) -> str:
    """Return how many checks ended in which way: "14 ok, 1 warning"."""
    counts = Counter(one.verdict for one in findings)
    return ", ".join(f"{counts[one]} {_counted(one, counts[one])}" for one in VERDICTS if one in counts)


def _counted(verdict: Verdict, count: int) -> str:
    return f"{verdict}s" if verdict in {"warning", "failure"} and count > 1 else verdict


_NONE = Options()


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What was asked, and what was found."""

    subject: str  # "wheel-3.10-cpu (torch 1.13.1)", or "this machine"
    findings: Sequence[Finding]
    refusal: str  # what the subject cannot, where something is missing

    def as_text(self) -> str:
        """Return the table and the cures, with the outcome as the last line."""
        return f"{findings_as_text(self.findings)}\n\n{self.subject}: {summarize_findings(self.findings)}"

    def as_data(self) -> dict[str, Any]:
        """Return the visit as JSON-ready data."""
        return {
            "subject": self.subject,
            "can_start": examination.can_start(self.findings),
            "findings": findings_as_data(self.findings),
        }

    def require(self) -> None:
        """Raise HostError unless a build can start."""
        if not examination.can_start(self.findings):
            failed = ", ".join(one.subject for one in self.findings if one.verdict == "failure")
            raise HostError(f"{self.subject} {self.refusal} ({failed}): the cures stand above")


def load_host_to_examine(facts: Facts, layout: Layout, described: str, saved: str) -> Host:
    """Return this machine, or the one that a file describes, and save it where a file is named.

    Raises ConfigError for a file that cannot be read or written.
    """
    if described:
        found = machine.load_host(Path(described))
    else:
        found = examination.survey_host(facts, machine.measure_host(layout.root), os.environ)
    if saved:
        machine.save_host(found, Path(saved))
    return found


def examine_host(  # noqa: PLR0917 - what is examined, and for what
    facts: Facts,
    layout: Layout | None,
    host: Host,
    identifier: str,
    release: Release | None,
    options: Options = _NONE,
) -> DoctorReport:
    """Examine a host for the cell of that name, with its options, or for itself where the name is empty.

    Without a layout the host is another machine, and what was fetched here does not count.
    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is impossible,
    ConfigError for options that contradict it, or that are given without a cell.
    """
    if not identifier:
        if options != _NONE:
            raise ConfigError("invoke doctor: name the build that these options are for, as wheel-3.10-cu118")
        subject = "this machine" if layout else "the machine"
        return DoctorReport(
            subject, examination.examine_machine(facts, host, release), "cannot build anything yet"
        )
    cell = cell_lookup.find_cell(facts, identifier, host.arch, release)
    if layout is None:
        findings = examination.examine_build(
            facts, cell, host, build_plan.compute_plan(facts, cell, host, options)
        )
        return DoctorReport(f"{identifier} ({cell.release})", findings, "cannot be built here yet")
    fetched = fetcher.load_source(layout, cell.build.package, cell.release.tag)
    computed = build_plan.compute_plan(facts, cell, host, options, fetched)
    folders = _folders(layout, cell, host)
    here = disk_space.with_disk_space(host, facts, layout, folders, fetched)
    findings = examination.examine_build(facts, cell, here, computed, fetched)
    return DoctorReport(f"{identifier} ({cell.release})", findings, "cannot be built here yet")


def _folders(layout: Layout, cell: Cell, host: Host) -> BuildFolders:
    """Return where a build would go on, in the newest tree that may be its own."""
    tag, identifier = cell.release.tag, cell.build.identifier(host.arch)
    tree = disk_space.newest_tree(layout, tag, cell.build.family(host.arch), identifier)
    return BuildFolders(
        tree, layout.tree(tag, identifier), nox_environments_folder() / nox_environment_name(identifier)
    )


_NO_IMAGE = Options()


def examine_for_any_arch(  # noqa: PLR0917 - what is examined, and for what
    facts: Facts,
    layout: Layout | None,
    host: Host,
    identifier: str,
    release: Release | None,
    options: Options = _NO_IMAGE,
) -> DoctorReport:
    """Return what the doctor says; of a build for another machine, what this one lacks to build it.

    Takes and raises what `examine_host` does, which answers for all other builds.
    """
    cell = cell_lookup.find_cell(facts, identifier, host.arch, release) if identifier else None
    if layout is None or cell is None or not _needs_container(facts, cell, host):
        return examine_host(facts, layout, host, identifier, release, options)
    from torchmill.commands.cross_doctor import examine_way_into_container

    findings = examine_way_into_container(facts, layout, host, cell, options)
    return DoctorReport(f"{identifier} ({cell.release})", findings, "cannot be built here yet")


def _needs_container(facts: Facts, cell: Cell, host: Host) -> bool:
    arch = facts.arches[cell.build.arch]
    if arch.name == host.arch:
        return False
    from torchmill.build.cross import container

    return container.has_containers(arch)


def show_examination(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    build: str | None = None,
    tag: str = "",
    host: str = "",
    json: bool = False,
    save: str = "",
    arch_list: str | None = None,
    torch: str | None = None,
    toolkit: str | None = None,
) -> CommandOutput:
    """Examine this machine, for a build or for itself: found, needed, verdict, and what fixes it."""
    options = options_of_task("doctor", (), arch_list=arch_list, torch=torch, toolkit=toolkit)
    machine = load_host_to_examine(facts, layout, host, save)
    release = selection.selected_release(facts, layout, tag)
    report = examine_for_any_arch(facts, None if host else layout, machine, build or "", release, options)
    return CommandOutput(dumps(report.as_data(), indent=1) if json else report.as_text(), report.require)


DOCTOR = TaskCommand(
    show_examination,
    {
        "build": "such as wheel-3.10-cpu; without one, the machine is examined for itself",
        "tag": "the release; default: the selected one",
        "host": "a TOML file that describes another machine",
        "json": "print JSON",
        "save": "write what this machine has to a TOML file, to be examined elsewhere",
        "arch_list": "for a build with these compute capabilities, such as '8.0;8.6+PTX'",
        "torch": "for a build against this wheel, or PyPI's",
        "toolkit": "for a build with this newer CUDA of the same major version, such as 11.8",
    },
    argument="build",
)
