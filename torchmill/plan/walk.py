"""The way to some wheels, walked to its end before the first step runs: what each step needs, and what stops it."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, pairwise
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchmill.config.facts_model import CostRange
from torchmill.config.model import Compiler, Host
from torchmill.core.units import format_bytes
from torchmill.core.urls import hide_password, host_of
from torchmill.plan.doctor.finding import Cures, Finding, find_cures

Place = Literal["cache", "checkout", "environments"]  # folders that a step writes into
Kind = Literal["impossible", "unreachable", "room", "permission"]

_ROUNDS = (
    8  # of cures that only become known once others were taken: a toolkit, its parts, its libraries
)
_COMPILER = re.compile(r"g(?:cc|\+\+)-(\d+)|gcc-toolset-(\d+)-.*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NEWEST_MINOR = 99  # of a compiler whose major version alone is known


@dataclass(frozen=True, slots=True)
class Origin:
    """A place from which a step can take what it needs."""

    provider: str  # "conda", "the package index"
    addresses: tuple[str, ...] = ()  # all of which must answer
    obstacle: str = ""  # why this machine cannot use it, as a clause
    size: CostRange | None = None  # bytes that it takes once it is there; None: not known


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the way: a command, or what a later command does by itself."""

    command: str
    purpose: str  # "CUDA toolkit: none"
    origins: tuple[
        Origin, ...
    ] = ()  # one of which is enough, in the order in which they are asked; (): it needs none
    way_out: str = ""  # what to do where no origin serves
    place: Place = "cache"  # into which it is brought
    needs: Mapping[Place, CostRange] = field(
        default_factory=dict
    )  # bytes beside those of its origin
    vital: bool = True  # False: the build goes on without it
    root: bool = False  # it changes the system


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of the machine that builds."""

    folder: str  # by which the user knows it
    free: int  # bytes
    places: frozenset[Place]
    closed: str = ""  # why nothing can be written there, as a clause


@dataclass(frozen=True, slots=True)
class Answers:
    """What was learned by asking: hosts, disks, and the system."""

    complaints: Mapping[str, str] = field(
        default_factory=dict
    )  # address -> "", or why it does not answer
    disks: tuple[Disk, ...] = ()
    password: bool = False  # sudo asks for a password, and nobody is there to type it


@dataclass(frozen=True, slots=True)
class Stop:
    """A step that cannot be done, and why."""

    step: Step
    kind: Kind
    why: str  # a clause
    way_out: str

    def __str__(self) -> str:
        """Return it as a line of a message."""
        name = self.step.command or self.step.purpose
        return f"`{hide_password(name)}`: {self.why}{f': {self.way_out}' if self.way_out else ''}"


@dataclass(frozen=True, slots=True)
class Foresight:
    """The commands that make a machine ready for some builds, also those that become known on the way."""

    commands: Mapping[str, Finding]  # in the order in which they are run
    left: tuple[Finding, ...]  # failures that no command cures


def foresee(examine: Callable[[Host], Iterable[Finding]], host: Host) -> Foresight:
    """Return what has to be done on a host, each command's effect taken for granted once it was run.

    `examine` returns the findings of all builds on a host.
    """
    commands: dict[str, Finding] = {}
    left: dict[str, Finding] = {}
    for _ in range(_ROUNDS):
        cures: Cures = find_cures(examine(host))
        new = {
            command: finding
            for command, finding in cures.commands.items()
            if command not in commands
        }
        left |= {finding.sentence(): finding for finding in cures.left}
        if not new:
            break
        commands |= new
        for command in new:
            host = with_effect(host, command)
    return Foresight(commands, tuple(left.values()))


def command_words(command: str) -> list[str]:
    """Return the words of a command, without the variables before its program."""
    return list(dropwhile(_ASSIGNMENT.match, shlex.split(command)))


def with_effect(host: Host, command: str) -> Host:
    """Return a host on which a command has succeeded, as far as its words say what that changes."""
    words = command_words(command)
    if words[:2] == ["invoke", "toolkit"]:
        return _with_toolkit(host, words[2:])
    if words[:2] == ["invoke", "deps"]:
        return replace(
            host, packages={name: version or "installed" for name, version in host.packages.items()}
        )
    if words[:3] == ["uv", "python", "install"] or words[:2] == ["pyenv", "install"]:
        version = words[-1]
        without = {
            name: path for name, path in host.headless_interpreters.items() if name != version
        }
        translated = {
            name: path for name, path in host.translated_interpreters.items() if name != version
        }
        return replace(
            host,
            interpreters={**host.interpreters, version: f"python{version}"},
            headless_interpreters=without,
            translated_interpreters=translated,
        )
    majors = [match[1] or match[2] for word in words if (match := _COMPILER.fullmatch(word))]
    known = {f"g++-{major}": Compiler("gcc", f"{major}.{_NEWEST_MINOR}") for major in majors}
    packages = {
        name: version or "installed" if name in words else version
        for name, version in host.packages.items()
    }
    return replace(host, compilers={**host.compilers, **known}, packages=packages)


def _with_toolkit(host: Host, words: Sequence[str]) -> Host:
    """Return a host on which `invoke toolkit` has brought what its words name."""
    for option, value in pairwise(words):
        if option == "--cuda":
            host = replace(host, toolkits={**host.toolkits, value: f"toolkits/{value}"})
        elif option == "--complete":
            host = replace(
                host, lacking={name: parts for name, parts in host.lacking.items() if name != value}
            )
        elif option == "--compiler":
            major = value.rpartition("-")[2]
            compiler = Compiler("gcc", f"{major}.{_NEWEST_MINOR}")
            host = replace(host, compilers={**host.compilers, f"g++-{major}": compiler})
        elif option == "--library" and "=" in value:
            name, _, version = value.partition("=")
            library, _, cuda = name.partition("-cu")
            host = replace(
                host, kept={**host.kept, f"{library}-{version}-cu{cuda}": f"toolkits/{value}"}
            )
    return host


def index_pages(index: str, requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of the pages of some requirements on a package index; files and addresses have none.

    An index without an address, "", is one that cannot be asked.
    """
    if not index:
        return ()
    names = []
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # the path of a wheel
            continue
        if requirement.url is None:
            names.append(canonicalize_name(requirement.name))
    return tuple(f"{index.rstrip('/')}/{name}/" for name in dict.fromkeys(names))


def chosen_origin(step: Step, complaints: Mapping[str, str]) -> Origin | None:
    """Return the first origin of a step that serves; None where none does."""
    return next((one for one in step.origins if not origin_complaint(one, complaints)), None)


def origin_complaint(origin: Origin, complaints: Mapping[str, str]) -> str:
    """Return why an origin does not serve, as a clause; "" where it does, or was not asked."""
    if origin.obstacle:
        return origin.obstacle
    return next((reason for address in origin.addresses if (reason := complaints.get(address))), "")


def find_stops(steps: Sequence[Step], answers: Answers, host: Host) -> tuple[Stop, ...]:
    """Return what keeps the last step from being reached, in the order of the steps; nothing where the way is open."""
    stops = [stop for step in steps if step.vital for stop in _stops_of_step(step, answers, host)]
    return (*stops, *_stops_of_disks(steps, answers))


def _stops_of_step(step: Step, answers: Answers, host: Host) -> Iterator[Stop]:
    if step.origins and chosen_origin(step, answers.complaints) is None:
        kind: Kind = (
            "impossible" if all(origin.obstacle for origin in step.origins) else "unreachable"
        )
        reasons = (
            f"{origin.provider}: {origin_complaint(origin, answers.complaints)}"
            for origin in step.origins
        )
        yield Stop(step, kind, "; ".join(reasons), step.way_out)
    if step.root and host.root is False:
        yield Stop(
            step,
            "permission",
            "it needs root, and this user cannot become root",
            "ask an administrator to run it",
        )
    elif step.root and answers.password:
        yield Stop(
            step,
            "permission",
            "sudo asks for a password, and nobody can be asked here",
            "run it yourself first, then this command again",
        )


def disk_needs(steps: Iterable[Step], answers: Answers, disk: Disk) -> CostRange:
    """Return the bytes that all steps together bring to a disk, as far as they are known."""
    low = high = 0.0
    for step in steps:
        needs = dict(step.needs)
        origin = chosen_origin(step, answers.complaints)
        if origin is not None and origin.size is not None:
            before = needs.get(step.place, CostRange(0, 0))
            needs[step.place] = before + origin.size
        for place, need in needs.items():
            if place in disk.places:
                low, high = low + need.low, high + need.high
    return CostRange(low, high)


def _stops_of_disks(steps: Sequence[Step], answers: Answers) -> Iterator[Stop]:
    last = next((step for step in reversed(steps) if step.command), Step("", "the build"))
    for disk in answers.disks:
        if disk.closed:
            way_out = "make it writable, or name other folders in TORCHMILL_HOME and XDG_CACHE_HOME"
            yield Stop(
                _writer(steps, disk) or last, "permission", f"{disk.folder}: {disk.closed}", way_out
            )
            continue
        need = disk_needs(steps, answers, disk)
        if need.low > disk.free:
            lacking = format_bytes(need.high - disk.free)
            why = f"{disk.folder} has {format_bytes(disk.free)} free, and all steps together take {format_need(need)}"
            way_out = f"`invoke clean --free '{lacking}'`, or set TORCHMILL_HOME or XDG_CACHE_HOME to another disk"
            yield Stop(last, "room", why, way_out)


def _writer(steps: Sequence[Step], disk: Disk) -> Step | None:
    """Return the first step that writes to a disk."""
    return next(
        (step for step in steps if step.place in disk.places or disk.places & step.needs.keys()),
        None,
    )


def describe_step(step: Step, answers: Answers) -> list[str]:
    """Return where a step takes what it needs from, and whether that answers, as lines of a list."""
    lines = []
    for origin in step.origins:
        complaint = origin_complaint(origin, answers.complaints)
        if complaint:
            lines.append(f"not from {origin.provider}: {complaint}")
            continue
        lines.append(f"from {origin.provider}{_asked(origin, answers)}{_sized(origin)}")
        break
    else:
        if step.origins and not step.vital:
            lines.append("the build goes on without it")
    return lines


def _asked(origin: Origin, answers: Answers) -> str:
    remote = [
        address
        for address in origin.addresses
        if "://" in address and not address.startswith("file:")
    ]
    hosts = list(dict.fromkeys(host_of(hide_password(address)) for address in remote))
    if not hosts:
        return ""
    several = len(hosts) > 1
    if all(address in answers.complaints for address in remote):
        return f" ({' and '.join(hosts)} answer{'' if several else 's'})"
    return f" ({' and '.join(hosts)} {'were' if several else 'was'} not asked)"


def _sized(origin: Origin) -> str:
    return f", {format_need(origin.size)} on the disk" if origin.size is not None else ""


def format_need(need: CostRange) -> str:
    """Return bytes as people read them, as a range where they are not known exactly."""
    if not need.low:
        return f"up to {format_bytes(need.high)}"
    return (
        f"about {format_bytes(need.high)}"
        if format_bytes(need.low) == format_bytes(need.high)
        else need.in_bytes
    )
