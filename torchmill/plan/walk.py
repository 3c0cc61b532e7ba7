"""The walk to some wheels: its steps, and what would stop them, before the first one runs.

A walk is the sequence of steps to some wheels. A step is a command that the doctor advises, or the
session that builds. An origin is a provider from which a step can download what it needs; origins
follow from the step's command (`step_origins`). Whether something stops a step depends on `Answers`
of the servers, the disks and the system, for which the caller asks.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, pairwise
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchmill.config.costs import CostRange
from torchmill.core.units import format_bytes
from torchmill.core.urls import hide_password, host_of
from torchmill.host.host import Compiler, Host
from torchmill.plan.doctor.cures import find_cures
from torchmill.plan.doctor.finding import Finding

Area = Literal["cache", "checkout", "environments"]  # of the storage that steps write to
StopKind = Literal["impossible", "unreachable", "room", "permission"]

# Some cures become known only once others are applied: a toolkit, then its parts, then its
# libraries. More rounds than this can only be cures that undo each other.
_ROUNDS = 8
_COMPILER_PACKAGE = re.compile(r"g(?:cc|\+\+)-(\d+)|gcc-toolset-(\d+)-.*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NEWEST_MINOR = 99  # of a compiler of which only the major version is known


@dataclass(frozen=True, slots=True)
class Origin:
    """A provider from which a step can take its packages or sources."""

    provider: str  # "conda", "the package index"
    addresses: tuple[str, ...] = ()  # URLs, all of which must answer
    obstacle: str = ""  # why this machine cannot use the provider, as a clause
    size: CostRange | None = None  # bytes on the disk once they are unpacked; None: not known


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the way to a wheel: a command, or a download that a later command makes."""

    command: str  # "": a later command makes the download
    purpose: str  # "CUDA toolkit: none"
    # One origin is enough; they are asked in this order. (): the step downloads nothing.
    origins: tuple[Origin, ...] = ()
    way_out: str = ""  # for the user, if no origin serves
    area: Area = "cache"  # into which the step downloads
    # Bytes that the step writes beside its downloads.
    written_bytes: Mapping[Area, CostRange] = field(default_factory=dict)
    is_vital: bool = True  # False: the build goes on without this step
    needs_root: bool = False  # the step changes the system


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of the machine that builds."""

    folder: str  # by which the user knows it
    free: int  # bytes
    areas: frozenset[Area]  # that are on it
    obstacle: str = ""  # why nothing can be written there, as a clause; "": it can be


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of servers, disks and the system."""

    # Address -> why it fails; "" if it answers. An address that is not here was not asked.
    complaints: Mapping[str, str] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()
    needs_password: bool = False  # sudo asks for a password, and nobody is there to type it


@dataclass(frozen=True, slots=True)
class Stop:
    """A step that cannot be done, and the reason."""

    step: Step
    kind: StopKind
    reason: str  # a clause
    way_out: str

    def __str__(self) -> str:
        """Return the stop as a line of a message."""
        name = hide_password(self.step.command or self.step.purpose)
        line = f"`{name}`: {self.reason}"
        return f"{line}: {self.way_out}" if self.way_out else line


@dataclass(frozen=True, slots=True)
class Foresight:
    """The commands that make a machine ready for some builds.

    Some of them are known to be needed only if others have succeeded.
    """

    commands: Mapping[str, Finding]  # in the order in which they run, each with what it cures
    incurable: tuple[Finding, ...]  # failures that no command cures, of all rounds


def foresee(examine: Callable[[Host], Iterable[Finding]], host: Host) -> Foresight:
    """Return the commands that a host needs, on the assumption that each of them succeeds.

    `examine` returns the findings on all builds for a host. The host is examined again with the
    effects of the commands that cure its findings, until no further command turns up.
    """
    commands: dict[str, Finding] = {}
    # Failures that no command cures. Each round finds them again, so they are kept by sentence.
    incurable: dict[str, Finding] = {}
    for _ in range(_ROUNDS):
        cures = find_cures(examine(host))
        for finding in cures.incurable:
            incurable[finding.sentence()] = finding
        new_commands = [command for command in cures.commands if command not in commands]
        if not new_commands:
            break
        for command in new_commands:
            commands[command] = cures.commands[command]
            host = with_effect(host, command)
    return Foresight(commands, tuple(incurable.values()))


def command_words(command: str) -> list[str]:
    """Return the words of a command, without the variables that are set before its program."""
    return list(dropwhile(_ASSIGNMENT.match, shlex.split(command)))


def with_effect(host: Host, command: str) -> Host:
    """Return a host on which a command has succeeded, as far as its words tell its effect."""
    words = command_words(command)
    if words[:2] == ["invoke", "toolkit"]:
        return _with_toolkit(host, words[2:])
    if words[:2] == ["invoke", "deps"]:
        # `installed` has all packages that a build asked for, and the missing ones among them.
        return _with_packages(host, host.packages.installed)
    if words[:3] == ["uv", "python", "install"] or words[:2] == ["pyenv", "install"]:
        return _with_interpreter(host, words[-1])
    for word in words:
        match = _COMPILER_PACKAGE.fullmatch(word)
        if match:
            host = _with_gcc(host, match[1] or match[2])
    return _with_packages(host, words)


def _with_packages(host: Host, names: Iterable[str]) -> Host:
    """Return a host on which the named system packages are installed.

    Names that no build asked for are left out, such as the other words of a command.
    """
    new_names = set(names)
    packages = dict(host.packages.installed)  # name -> version; "" if it is missing
    for name, version in packages.items():
        if name in new_names and not version:
            packages[name] = "installed"
    return replace(host, packages=replace(host.packages, installed=packages))


def _with_interpreter(host: Host, version: str) -> Host:
    """Return a host that has a CPython of its own architecture, with headers."""
    without_headers = dict(host.interpreters.without_headers)
    without_headers.pop(version, None)
    translated = dict(host.interpreters.translated)
    translated.pop(version, None)
    return replace(
        host,
        interpreters=replace(
            host.interpreters,
            paths={**host.interpreters.paths, version: f"python{version}"},
            without_headers=without_headers,
            translated=translated,
        ),
    )


def _with_gcc(host: Host, major: str) -> Host:
    """Return a host that has the gcc of a major version, "11", under its usual command."""
    compiler = Compiler("gcc", f"{major}.{_NEWEST_MINOR}")
    return replace(
        host,
        compilers=replace(
            host.compilers, by_command={**host.compilers.by_command, f"g++-{major}": compiler}
        ),
    )


def _with_toolkit(host: Host, words: Sequence[str]) -> Host:
    """Return a host on which `invoke toolkit` has succeeded with some options."""
    for option, value in pairwise(words):
        folder = f"toolkits/{value}"
        if option == "--cuda":
            host = replace(
                host, toolkits=replace(host.toolkits, homes={**host.toolkits.homes, value: folder})
            )
        elif option == "--complete":
            lacking_parts = dict(host.toolkits.lacking_parts)
            lacking_parts.pop(value, None)
            host = replace(host, toolkits=replace(host.toolkits, lacking_parts=lacking_parts))
        elif option == "--compiler":
            host = _with_gcc(host, value.rpartition("-")[2])  # "gcc-11"
        elif option == "--library" and "=" in value:  # "cudnn-cu11=8.5.0.96"
            name, _, version = value.partition("=")
            library, _, cuda = name.partition("-cu")
            host = replace(
                host,
                toolkits=replace(
                    host.toolkits,
                    provisioned={
                        **host.toolkits.provisioned,
                        f"{library}-{version}-cu{cuda}": folder,
                    },
                ),
            )
    return host


def index_pages(index: str, requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of the pages that a package index has for some requirements.

    `index` is the address of the index; "" if there is none that can be asked, and then there are
    no pages. Files and URLs among the requirements have no page either.
    """
    if not index:
        return ()
    names: dict[str, None] = {}  # an ordered set
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # the path of a wheel
            continue
        if requirement.url is None:
            names[canonicalize_name(requirement.name)] = None
    return tuple(f"{index.rstrip('/')}/{name}/" for name in names)


def chosen_origin(step: Step, complaints: Mapping[str, str]) -> Origin | None:
    """Return the first origin of a step that serves; None if none does."""
    for origin in step.origins:
        if not origin_complaint(origin, complaints):
            return origin
    return None


def origin_complaint(origin: Origin, complaints: Mapping[str, str]) -> str:
    """Return a clause that says why an origin does not serve; "" if it does, or was not asked."""
    if origin.obstacle:
        return origin.obstacle
    for address in origin.addresses:
        if complaints.get(address):
            return complaints[address]
    return ""


def find_stops(steps: Sequence[Step], answers: Answers, host: Host) -> tuple[Stop, ...]:
    """Return the stops of all steps, in the order of the steps, and then those by disks.

    () if nothing that is known stops a step. A step that is not vital is never stopped.
    """
    stops: list[Stop] = []
    for step in steps:
        if step.is_vital:
            stops.extend(_stops_of_step(step, answers, host))
    return (*stops, *_stops_of_disks(steps, answers))


def _stops_of_step(step: Step, answers: Answers, host: Host) -> Iterator[Stop]:
    """Yield the stops of a vital step: no origin serves, or the user cannot become root."""
    if step.origins and chosen_origin(step, answers.complaints) is None:
        has_only_obstacles = all(origin.obstacle for origin in step.origins)
        reasons = [
            f"{origin.provider}: {origin_complaint(origin, answers.complaints)}"
            for origin in step.origins
        ]
        yield Stop(
            step,
            "impossible" if has_only_obstacles else "unreachable",
            reason="; ".join(reasons),
            way_out=step.way_out,
        )
    if step.needs_root and host.packages.may_use_root is False:
        yield Stop(
            step,
            "permission",
            reason="it needs root, and this user cannot become root",
            way_out="ask an administrator to run it",
        )
    elif step.needs_root and answers.needs_password:
        yield Stop(
            step,
            "permission",
            reason="sudo asks for a password, and nobody can be asked here",
            way_out="run it yourself first, then this command again",
        )


def disk_needs(steps: Iterable[Step], answers: Answers, disk: Disk) -> CostRange:
    """Return the bytes that all steps together write to a disk, as far as they are known."""
    total = CostRange(0, 0)
    for step in steps:
        for area, need in step.written_bytes.items():
            if area in disk.areas:
                total += need
        origin = chosen_origin(step, answers.complaints)
        if origin is not None and origin.size is not None and step.area in disk.areas:
            total += origin.size
    return total


def _stops_of_disks(steps: Sequence[Step], answers: Answers) -> Iterator[Stop]:
    """Yield a stop for each disk that cannot be written to, or is too small.

    A full disk stops the last step: by then all have written to it. One that cannot be written to
    stops the first step that would.
    """
    commands = [step for step in steps if step.command]
    last = commands[-1] if commands else Step("", "the build")
    for disk in answers.disks:
        if disk.obstacle:
            yield Stop(
                _first_writer(steps, disk) or last,
                "permission",
                reason=f"{disk.folder}: {disk.obstacle}",
                way_out="make it writable, or name other folders in TORCHMILL_HOME and "
                "XDG_CACHE_HOME",
            )
            continue
        need = disk_needs(steps, answers, disk)
        # A walk stops only if the lower bound is too much; to be safe, free the upper one.
        if need.low > disk.free:
            missing = format_bytes(need.high - disk.free)
            yield Stop(
                last,
                "room",
                reason=f"{disk.folder} has {format_bytes(disk.free)} free, "
                f"and all steps together take {format_need(need)}",
                way_out=f"`invoke clean --free '{missing}'`, "
                "or set TORCHMILL_HOME or XDG_CACHE_HOME to another disk",
            )


def _first_writer(steps: Sequence[Step], disk: Disk) -> Step | None:
    """Return the first step that writes to a disk; None if none does."""
    for step in steps:
        if step.area in disk.areas or disk.areas & step.written_bytes.keys():
            return step
    return None


def describe_step(step: Step, answers: Answers) -> list[str]:
    """Return lines about a step's origins: first those that do not serve, then the one used.

    [] for a step that downloads nothing.
    """
    lines: list[str] = []
    for origin in step.origins:
        complaint = origin_complaint(origin, answers.complaints)
        if not complaint:
            size = f", {format_need(origin.size)} on the disk" if origin.size is not None else ""
            lines.append(f"from {origin.provider}{_hosts_clause(origin, answers)}{size}")
            return lines
        lines.append(f"not from {origin.provider}: {complaint}")
    if step.origins and not step.is_vital:
        lines.append("the build goes on without it")
    return lines


def _hosts_clause(origin: Origin, answers: Answers) -> str:
    """Return " (pypi.org answers)" or " (pypi.org was not asked)"; "" if no server is needed."""
    remote: list[str] = []
    for address in origin.addresses:
        if "://" in address and not address.startswith("file:"):
            remote.append(address)
    hosts = list(dict.fromkeys(host_of(hide_password(address)) for address in remote))
    if not hosts:
        return ""
    subject = " and ".join(hosts)
    is_plural = len(hosts) > 1
    if all(address in answers.complaints for address in remote):
        return f" ({subject} {'answer' if is_plural else 'answers'})"
    return f" ({subject} {'were' if is_plural else 'was'} not asked)"


def format_need(need: CostRange) -> str:
    """Return bytes as people read them: "about 2.1 GiB", "up to 3.0 GiB", "1.0 GiB to 2.0 GiB"."""
    high = format_bytes(need.high)
    if not need.low:
        return f"up to {high}"
    if format_bytes(need.low) == high:
        return f"about {high}"
    return need.in_bytes
