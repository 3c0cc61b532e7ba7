"""The report of `invoke doctor` on a machine: findings with their fixes.

The code calls a fix, which is a command or an advice, the *cure* of a finding.
"""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchmill.cell import disk_space
from torchmill.cell.containers import cross
from torchmill.cell.folders import BuildFolders
from torchmill.cell.host_survey import survey_host
from torchmill.cell.source_switches import with_source_switches
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.core import console
from torchmill.core.errors import ConfigError, HostError
from torchmill.core.optional_libraries import find_library, installed_version
from torchmill.core.paths import Layout, nox_environment_name, nox_environments_folder
from torchmill.core.stat_cache import StatCache
from torchmill.deliver import products
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.verification import load_examined_source
from torchmill.host import measurement
from torchmill.host.host import Host
from torchmill.host.processor import resolve_processor
from torchmill.plan import build_plan, cell_lookup, crossing
from torchmill.plan.build_options import NO_OPTIONS, Options
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.cure_command import is_command
from torchmill.plan.doctor.finding import VERDICTS, CheckContext, Finding, Verdict
from torchmill.plan.local_gpus import with_local_gpus

RATTLER = "py-rattler-build"  # packs conda packages
_NO_FIX = "torchmill knows no fix for that on this machine"
_PROBLEMS = ("warning", "failure")  # verdicts for which a fix is shown, if there is one


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The findings on a machine, for a build or in general."""

    subject: str  # "wheel-3.10-cpu (torch 1.13.1)", or "this machine"
    findings: Sequence[Finding]
    refusal: str  # what to say of the subject if there are failures: "cannot be built here yet"
    every_cure: bool = False  # show all fixes of a finding, not only the best one

    def as_text(self) -> str:
        """Return the table and the fixes, with the outcome as the last line."""
        rows = [
            (finding.verdict, finding.subject, finding.state, finding.needed)
            for finding in self.findings
        ]
        lines = [console.format_table(("verdict", "check", "found", "needed"), rows)]
        has_other_cures = False
        for finding in self.findings:
            lines += self._explain(finding)
            if finding.verdict in _PROBLEMS and finding.cure and finding.other_cures:
                has_other_cures = True
        if has_other_cures and not self.every_cure:
            lines.append("\n`--all` shows other fixes, too")
        lines.append(f"\n{self.subject}: {self._summary()}")
        return "\n".join(lines)

    def _explain(self, finding: Finding) -> list[str]:
        """Return lines with the reason and the fix of a finding.

        Returns [] for a finding that is no failure and has neither.
        """
        fix = finding.cure if finding.verdict in _PROBLEMS else ""
        is_failure = finding.verdict == "failure"
        lines = []
        if finding.because or fix or is_failure:
            reason = finding.because or f"{finding.state} here, needed {finding.needed}"
            lines.append(f"\n{finding.subject}: {reason}")
        if fix or is_failure:
            lines.append(f"    {fix or _NO_FIX}")
        if fix and self.every_cure:
            lines += [f"    or: {cure}" for cure in finding.other_cures]
        return lines

    def _summary(self) -> str:
        """Return how many findings have each verdict: "2 warnings, 7 ok"."""
        counts = Counter(finding.verdict for finding in self.findings)
        parts = []
        for verdict in VERDICTS:
            count = counts[verdict]
            plural = "s" if verdict in _PROBLEMS and count > 1 else ""
            if count:
                parts.append(f"{count} {verdict}{plural}")
        return ", ".join(parts)

    def as_data(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return {
            "subject": self.subject,
            "can_start": examination.can_start(self.findings),
            "findings": [finding.as_data() for finding in self.findings],
        }

    def require(self) -> None:
        """Raise HostError unless a build can start."""
        if examination.can_start(self.findings):
            return
        failures = [finding for finding in self.findings if finding.verdict == "failure"]
        subjects = ", ".join(finding.subject for finding in failures)
        raise HostError(
            f"{self.subject} {self.refusal} ({subjects}): {_way_out(failures)}",
            code="machine-not-ready",
        )


def _way_out(failures: Sequence[Finding]) -> str:
    """Return the last clause of the error: where the fixes are, and which failures have none.

    The fix of a single failure is the clause itself, if that is advice and no command.
    """
    unfixed = [finding.subject for finding in failures if not finding.cure]
    if len(unfixed) == len(failures):
        return _NO_FIX
    if len(failures) == 1 and not is_command(failures[0].cure):
        return failures[0].cure
    if unfixed:
        return f"see the fixes above; torchmill knows none for {', '.join(unfixed)}"
    return "see the fixes above"


def examine_host(  # noqa: PLR0917 - a machine, and the purpose of the examination
    facts: Facts,
    layout: Layout | None,
    host: Host,
    identifier: str,
    release: Release | None,
    options: Options = NO_OPTIONS,
    foreseen: Source | None = None,
) -> DoctorReport:
    """Return the report on a host: for the build `identifier`, or in general if that is "".

    `layout` is None for a described host, for which the sources and disks of this machine do not
    count. `release` is the selected release of the base package; None if none is selected.
    `foreseen` stands for a source that is not fetched yet. Raises UnknownReleaseError for a name
    that is no cell, ImpossibleBuildError for a cell that is impossible, ConfigError for options
    that contradict it, or that are given without a cell.
    """
    if not identifier:
        subject = "this machine" if layout else "the machine"
        return _examine_in_general(facts, subject, host, release, options)
    product, cell = products.product_cell(facts, identifier, host.arch, release)
    arch = cell.build.arch
    host = crossing.building_host(facts, cell.build, host)
    # A cell for another architecture is built in a container. Whether containers work is examined
    # only if the host is this machine, not a described one, and if there are containers for that
    # architecture. Else the build is judged as any other, without this machine's GPUs.
    for_other_arch = arch != cell_lookup.uncontained_arch(facts, [identifier], host.arch)
    for_other_arch = for_other_arch and not host.crosses
    in_container = False
    source = foreseen
    wheels: tuple[str, ...] | None = None  # names of the files in dist/; None: not looked at
    if layout:
        in_container = for_other_arch and cross.has_containers(facts.arches[arch])
        cache = StatCache(layout.stat_cache)
        fetched = load_examined_source(layout, cell.build.package, cell.release.tag, cache)
        source = fetched or foreseen
        host = measurement.with_named_compiler(host, options.settings, os.environ)
        processor = resolve_processor(facts, arch, host, options.cpu, options.settings)
        options = replace(options, processor=processor)
        wheels = tuple(path.name for path in sorted(layout.dist.glob("*.whl")))
    if not for_other_arch:
        options = with_local_gpus(facts, cell, host, options)
    plan = build_plan.compute_plan(facts, cell, host, options, source)
    if layout:
        folders = cell_folders(layout, cell, host, in_container=in_container)
        host = disk_space.with_disk_space(host, facts, layout, folders, source)
    context = CheckContext(facts, cell, host, plan, source, wheels)
    if in_container:
        # Only builds in containers need this module and those that it imports.
        from torchmill.commands.cross_build import examine_way_into_container

        findings = examine_way_into_container(context)
    else:
        findings = examination.examine_build(with_source_switches(context))
    if product == "conda" and layout:
        findings = (*findings, _examine_rattler())
    return DoctorReport(f"{identifier} ({cell.release})", findings, "cannot be built here yet")


def _examine_in_general(
    facts: Facts, subject: str, host: Host, release: Release | None, options: Options
) -> DoctorReport:
    """Return the report on a host for no build in particular. Raises ConfigError for options."""
    if options != NO_OPTIONS:
        raise ConfigError(
            "invoke doctor: name the build that these options are for, as wheel-3.10-cu118",
            code="options-without-build",
        )
    cell_lookup.require_machine(facts, host.arch)
    findings = examination.examine_machine(facts, host, release)
    return DoctorReport(subject, findings, "cannot build anything yet")


def _examine_rattler() -> Finding:
    """Return the finding on the program that packs conda packages."""
    library = find_library(RATTLER)
    version = installed_version(RATTLER)
    verdict: Verdict = "ok" if version and library.allows(version) else "failure"
    needed = library.requirement.removeprefix(RATTLER)
    cure = f"pip install {shlex.quote(library.pip_requirement)}"
    return Finding(RATTLER, version or "not found", needed, verdict, cure=cure)


def cell_folders(layout: Layout, cell: Cell, host: Host, *, in_container: bool) -> BuildFolders:
    """Return the folders of a build, of which none need exist.

    These are the newest tree that the build could continue in (its own, or that of another Python),
    the tree of its own, and its environment.
    """
    if in_container:
        # The folders of the suite in the container, as this machine sees them.
        building_arch = cell.build.arch
        building_layout = cross.container_layout(layout, building_arch)
        environments = building_layout.state / "environments"
    else:
        building_arch = host.arch
        building_layout = layout
        environments = nox_environments_folder()
    tag = cell.release.tag
    identifier = cell.build.identifier(building_arch)
    family = cell.build.family(building_arch)
    tree = disk_space.newest_tree(building_layout, tag, family, identifier)
    environment = environments / nox_environment_name(identifier)
    return BuildFolders(tree, building_layout.tree(tag, identifier), environment)


def survey_machine(facts: Facts, layout: Layout, cells: Sequence[str] = ()) -> Host:
    """Return this machine, measured now, with all that the rules of the facts ask about a machine.

    `cells` are names of builds. If all of them are for the CPU, the GPUs are not measured, because
    that takes seconds.
    """
    only_cpu = bool(cells) and all(map(measurement.is_for_cpu, cells))
    host = measurement.measure_host(layout.root, gpus=not only_cpu)
    host = measurement.with_compiler_fault(host)
    return survey_host(facts, host, os.environ)
