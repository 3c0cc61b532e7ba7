"""How a build for another machine is run here: which container, with what in it. Pure: nothing is touched."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from torchmill.containers.running import PLATFORMS, Container, Ground, Mount, unmountable
from torchmill.errors import ConfigError, HostError, ImpossibleBuildError
from torchmill.foreign.passing import Passed
from torchmill.layout import GUEST, Layout
from torchmill.matrix import Cell
from torchmill.model import Arch, Facts, Options
from torchmill.options import words_for

# Where things lie in the container, whatever they are called outside: what is compiled there names them.
SUITE, HOME, CONFIGS, GIVEN, CACHE = "/suite", "/torchmill", "/configs", "/given", "/cache"
SCRIPT = f"{SUITE}/torchmill/foreign/inside.sh"
IMAGE = "TORCHMILL_IMAGE"  # the variable that names the image


@dataclass(frozen=True, slots=True)
class Goal:
    """What shall be built."""

    cell: Cell
    session: str  # its name on its own machine: "wheel-3.10-cpu"
    own: tuple[str, ...] = ()  # what stands after -- for that which is made of the wheel

    @property
    def arch(self) -> str:
        """Return the architecture of the container."""
        return self.cell.build.arch

    @property
    def identifier(self) -> str:
        """Return its name here."""
        return f"{self.session}-{self.arch}"


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for."""

    goal: Goal
    tag: str  # selects its release
    image: str
    options: Options

    @property
    def torch(self) -> Path | None:
        """Return the wheel that it shall be built against, where that is a file."""
        named = self.options.torch
        return Path(named) if named and named != "PyPI" else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where it happens."""

    checkout: Path
    layout: Layout  # this machine's
    configs: Path | None  # facts that are not the checkout's
    passed: Passed
    requirements: str  # what the suite needs, as requirements.txt says it
    process: int  # tells containers from others
    user: tuple[int, int] | None  # numbers of user and group, where the system has them


def has_containers(arch: Arch) -> bool:
    """Tell whether a container can be such a machine."""
    return arch.system == "linux" and arch.name in PLATFORMS


def refuse(facts: Facts, goal: Goal) -> None:
    """Raise ImpossibleBuildError where no container is such a machine."""
    arch = facts.arches[goal.arch]
    if not has_containers(arch):
        name = {"macos": "macOS", "windows": "Windows"}.get(arch.system, arch.system)
        raise ImpossibleBuildError(
            f"{goal.identifier} cannot be built here: {name} runs in no container; build it on such a "
            "machine, or on one of GitHub's runners (wheels.yml)"
        )


def guest(layout: Layout, arch: str) -> Layout:
    """Return the layout that the suite has in a container of an arch, as this machine sees its folders."""
    cache = layout.cache.with_name(f"torchmill-{arch}")
    return Layout(layout.root, cache, arch)


def container(order: Order, place: Place, ground: Ground) -> Container:
    """Return the container in which an order is carried out.

    Raises HostError where the engine's machine does not see this one's files, ConfigError where a folder has
    a name that no engine takes.
    """
    if ground.remote:
        raise HostError(
            "the container engine that answers runs on another machine, which does not see the files of this "
            "one: run the same command there, in a checkout of its own, or let the engine of this machine "
            "answer (unset DOCKER_HOST and CONTAINER_HOST, `docker context use default`)"
        )
    arch = order.goal.arch
    mounts = tuple(_mounts(order, place, arch))
    if (wrong := unmountable([one.source for one in mounts])) is not None:
        raise ConfigError(f"{wrong}: a container cannot be given a path with a comma or a quote: rename it")
    return Container(
        name=f"torchmill-{arch}-{order.goal.session}-{place.process}",
        image=order.image,
        arch=arch,
        argv=("/bin/sh", SCRIPT, _environment(place, arch), order.goal.session, *_words(order)),
        mounts=mounts,
        variables=_variables(order, place, arch),
        passed=tuple(sorted(place.passed.variables)),
        user=place.user,
    )


def folders(order: Order, place: Place) -> tuple[Path, ...]:
    """Return the folders that must be there first: an engine would make them root's."""
    inner = guest(place.layout, order.goal.arch)
    made = (inner.sources, inner.state / "home", inner.logs, place.layout.dist, inner.cache)
    return (*made, *(Path(one.source) for one in place.passed.mounts if one.writable))


def _mounts(order: Order, place: Place, arch: str) -> list[Mount]:
    inner = guest(place.layout, arch)
    found = [
        Mount(str(place.checkout), SUITE),
        Mount(str(place.layout.state), f"{HOME}/{place.layout.state.name}", writable=True),
        Mount(str(place.layout.dist), f"{HOME}/{place.layout.dist.name}", writable=True),
        Mount(str(inner.cache), f"{CACHE}/{inner.cache.name}", writable=True),
    ]
    if place.configs is not None:
        found.append(Mount(str(place.configs), CONFIGS))
    if order.torch is not None:
        found.append(Mount(str(order.torch), f"{GIVEN}/{order.torch.name}"))
    return [*found, *place.passed.mounts]


def _variables(order: Order, place: Place, arch: str) -> Mapping[str, str]:
    state = _state(place, arch)
    found = {
        "TORCHMILL_HOME": HOME,
        GUEST: arch,
        "TORCHMILL_TAG": order.tag,
        "XDG_CACHE_HOME": CACHE,
        "HOME": f"{state}/home",
        "PIP_CACHE_DIR": f"{state}/home/pip",
        "NOX_ENVDIR": f"{state}/environments",
        "PYTHONPYCACHEPREFIX": f"{state}/bytecode",
    }
    return found | ({"TORCHMILL_CONFIGS": CONFIGS} if place.configs is not None else {})


def _state(place: Place, arch: str) -> str:
    """Return the folder of what the suite keeps, as the container sees it."""
    inner = guest(place.layout, arch).state.relative_to(place.layout.root)
    return str(PurePosixPath(HOME, *inner.parts))


def _environment(place: Place, arch: str) -> str:
    """Return where the suite's own requirements lie, which are installed once."""
    digest = hashlib.sha256(place.requirements.encode()).hexdigest()[:8]
    return f"{_state(place, arch)}/suite-{digest}"


def _words(order: Order) -> Sequence[str]:
    """Return what stands after the session's name; a wheel lies elsewhere in the container."""
    given = replace(order.options, torch=f"{GIVEN}/{order.torch.name}") if order.torch else order.options
    words = [*order.goal.own, *words_for(given)]
    return ("--", *words) if words else ()
