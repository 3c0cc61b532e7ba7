"""`invoke doctor`: examine a machine, for a build or for itself, and report findings with their fixes."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

from millpress.wheel_writer import source_date_epoch

from torchmill.cell import disk_space
from torchmill.cell.containers import cross
from torchmill.cell.context import BuildFolders
from torchmill.commands.command import CommandOutput
from torchmill.commands.doctor_fixes import own_walk_context, run_fixes
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_release
from torchmill.core import console, silence
from torchmill.core.errors import ConfigError, HostError
from torchmill.core.formats import stamp_output
from torchmill.core.paths import Layout, nox_environment_name, nox_environments_folder
from torchmill.core.stat_cache import StatCache
from torchmill.deliver import offers, products
from torchmill.deliver.signature import read_trusted_keys
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.verification import load_examined_source
from torchmill.host import description, measurement
from torchmill.host.host import Host
from torchmill.host.processor import resolve_processor
from torchmill.plan import build_plan, cell_lookup
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.cure_command import is_command
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import VERDICTS, CheckContext, Finding, Verdict
from torchmill.plan.local_gpus import with_local_gpus
from torchmill.toolchain import remote_cache

RATTLER = "py-rattler-build"  # packs conda packages
_NO_FIX = "torchmill knows no fix for that on this machine"
_PLURAL = ("warning", "failure")  # verdicts that are counted, and have a fix


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What was examined, and what was found."""

    subject: str  # "wheel-3.10-cpu (torch 1.13.1)", or "this machine"
    findings: Sequence[Finding]
    refusal: str  # what the subject cannot do where something is missing
    every_cure: bool = False  # other ways are shown beside the best of each finding

    def as_text(self) -> str:
        """Return the table and the fixes, with the outcome as the last line."""
        rows = [(one.verdict, one.subject, one.found, one.needed) for one in self.findings]
        lines = [console.format_table(("verdict", "check", "found", "needed"), rows)]
        for one in self.findings:
            fix = one.cure if one.verdict in _PLURAL else ""
            if one.because or fix or one.verdict == "failure":
                lines.append(
                    f"\n{one.subject}: {one.because or f'{one.found} here, needed {one.needed}'}"
                )
            if fix or one.verdict == "failure":
                lines.append(f"    {fix or _NO_FIX}")
            lines += [f"    or: {other}" for other in one.other_cures if fix and self.every_cure]
        if (
            any(one.other_cures for one in self.findings if one.verdict in _PLURAL)
            and not self.every_cure
        ):
            lines.append("\n`--all` shows other fixes, too")
        counts = Counter(one.verdict for one in self.findings)
        summary = ", ".join(
            f"{counts[one]} {one}{'s' * (one in _PLURAL and counts[one] > 1)}"
            for one in VERDICTS
            if counts[one]
        )
        return "\n".join([*lines, f"\n{self.subject}: {summary}"])

    def as_data(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return {
            "subject": self.subject,
            "can_start": examination.can_start(self.findings),
            "findings": [asdict(one) for one in self.findings],
        }

    def require(self) -> None:
        """Raise HostError unless a build can start."""
        if not examination.can_start(self.findings):
            failures = [one for one in self.findings if one.verdict == "failure"]
            failed = ", ".join(one.subject for one in failures)
            raise HostError(
                f"{self.subject} {self.refusal} ({failed}): {_way_out(failures)}",
                code="machine-not-ready",
            )


def _way_out(failures: Sequence[Finding]) -> str:
    """Return where to look for the fixes of failures, and for which of them none is known.

    Of a single failure that no command cures, it is what to do.
    """
    without = [one.subject for one in failures if not one.cure]
    if len(without) == len(failures):
        return _NO_FIX
    if len(failures) == 1 and not is_command(failures[0].cure):
        return failures[0].cure
    unfixed = f"; torchmill knows none for {', '.join(without)}" if without else ""
    return f"see the fixes above{unfixed}"


def examine_host(  # noqa: PLR0917 - what is examined, and for what
    facts: Facts,
    layout: Layout | None,
    host: Host,
    identifier: str,
    release: Release | None,
    options: Options = NO_OPTIONS,
    foreseen: Source | None = None,
) -> DoctorReport:
    """Examine a host for the cell of that name, with its options, or for itself where the name is empty.

    `foreseen` stands for a source that is not fetched yet. Without a layout the host is another machine, and what was
    fetched here does not count.
    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is impossible,
    ConfigError for options that contradict it, or that are given without a cell.
    """
    if not identifier:
        if options != NO_OPTIONS:
            raise ConfigError(
                "invoke doctor: name the build that these options are for, as wheel-3.10-cu118",
                code="options-without-build",
            )
        cell_lookup.require_machine(facts, host.arch)
        findings = examination.examine_machine(facts, host, release)
        return DoctorReport(
            "this machine" if layout else "the machine", findings, "cannot build anything yet"
        )
    product, cell = products.product_cell(facts, identifier, host.arch, release)
    fetched = foreseen
    if layout:
        cache = StatCache(layout.stat_cache)
        fetched = (
            load_examined_source(layout, cell.build.package, cell.release.tag, cache) or foreseen
        )
    contained = cell.build.arch != cell_lookup.uncontained_arch(facts, [identifier], host.arch)
    in_container = (
        layout is not None and contained and cross.has_containers(facts.arches[cell.build.arch])
    )
    if layout:
        host = measurement.with_named_compiler(host, options.settings, os.environ)
        processor = resolve_processor(facts, cell.build.arch, host, options.cpu, options.settings)
        options = replace(options, processor=processor)
    options = options if contained else with_local_gpus(facts, cell, host, options)
    computed = build_plan.compute_plan(facts, cell, host, options, fetched)
    if layout:
        folders = cell_folders(layout, cell, host, in_container=in_container)
        host = disk_space.with_disk_space(host, facts, layout, folders, fetched)
    wheels = tuple(path.name for path in sorted(layout.dist.glob("*.whl"))) if layout else None
    question = CheckContext(facts, cell, host, computed, fetched, wheels)
    if in_container:
        from torchmill.commands.cross_build import examine_way_into_container

        findings = examine_way_into_container(question)
    else:
        findings = examination.examine_build(question)
    if product == "conda" and layout:
        version = products.installed_version(RATTLER)
        verdict: Verdict = "ok" if version else "failure"
        findings = (
            *findings,
            Finding(RATTLER, version or "not found", "any", verdict, f"pip install {RATTLER}"),
        )
    return DoctorReport(f"{identifier} ({cell.release})", findings, "cannot be built here yet")


def cell_folders(layout: Layout, cell: Cell, host: Host, *, in_container: bool) -> BuildFolders:
    """Return where a build would go on, in the newest tree that may be its own."""
    native, environments = host.arch, nox_environments_folder()
    if in_container:  # as this machine sees them
        native, layout = cell.build.arch, cross.guest_layout(layout, cell.build.arch)
        environments = layout.state / "environments"
    tag, identifier = cell.release.tag, cell.build.identifier(native)
    tree = disk_space.newest_tree(layout, tag, cell.build.family(native), identifier)
    return BuildFolders(
        tree, layout.tree(tag, identifier), environments / nox_environment_name(identifier)
    )


def survey_machine(facts: Facts, layout: Layout, cells: Sequence[str] = ()) -> Host:
    """Return this machine, measured now, with what facts ask of it; for builds of the CPU alone without its GPUs."""
    gpus = not (cells and all(map(measurement.is_for_cpu, cells)))
    return examination.survey_host(
        facts, measurement.measure_host(layout.root, gpus=gpus), os.environ
    )


def _refuse_wrong_settings() -> None:
    """Raise ConfigError for a variable of torchmill's whose value only a later step would refuse."""
    for check in (
        silence.silence_limit,
        partial(silence.answer_limit, ""),
        read_trusted_keys,
        source_date_epoch,
    ):
        check(os.environ)
    offers.parse_places(os.environ.get(offers.VARIABLE, ""))
    remote_cache.parse_remote(os.environ.get(remote_cache.VARIABLE, ""))


def show_examination(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    build: str | None = None,
    tag: str = "",
    host: str = "",
    json: bool = False,
    save: str = "",
    options: Options = NO_OPTIONS,
    fix: bool = False,
    yes: bool = False,
    all_: bool = False,
) -> CommandOutput:
    """Examine this machine, for a build or in general; say what fixes it."""
    if (fix and (host or json)) or (yes and not fix):
        raise ConfigError(
            "doctor: --fix is for this machine, on a terminal; --yes needs --fix",
            code="fix-elsewhere",
        )
    release = selection.selected_release(facts, layout, tag)
    if not host:
        _refuse_wrong_settings()
    examined = description.load_host(Path(host)) if host else None

    def examine() -> DoctorReport:
        machine = examined or survey_machine(facts, layout, [build] if build and not save else [])
        if save:
            description.save_host(machine, Path(save))
        return examine_host(facts, None if host else layout, machine, build or "", release, options)

    report = replace(examine(), every_cure=all_)
    if fix and find_cures(report.findings).commands:
        ended = _fix(facts, layout, build or "", release, options, yes=yes)
        if ended is not None:
            return ended
        report = replace(examine(), every_cure=all_)
    return CommandOutput(
        dumps(stamp_output(report.as_data()), indent=1) if json else report.as_text(),
        require=report.require,
    )


def _fix(
    facts: Facts,
    layout: Layout,
    build: str,
    release: Release | None,
    options: Options,
    *,
    yes: bool,
) -> CommandOutput | None:
    """Run what fixes this machine for a build, or in general; return how it ended if not well."""
    cells = [build] if build else []
    host = survey_machine(facts, layout, cells)
    arch = host.arch
    releases = []
    if build:
        _, cell = products.product_cell(facts, build, host.arch, release)
        arch = cell.build.arch
        base = base_release(facts, cell.release)
        releases = [base] if base == cell.release else [base, cell.release]

    def examine(machine: Host) -> Sequence[Finding]:
        return examine_host(facts, layout, machine, build, release, options).findings

    context = own_walk_context(facts, layout, host, arch, releases)
    return run_fixes(
        context, layout, examine, lambda: survey_machine(facts, layout, cells), yes=yes
    )
