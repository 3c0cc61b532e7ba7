"""Plan the container of a build for another architecture: mounts, variables and settings passed on."""

from __future__ import annotations

import ast
import hashlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from torchmill.build.containers.run import PLATFORMS, Container, EngineHost, Mount, find_unmountable
from torchmill.config.matrix import Cell
from torchmill.config.model import Arch, Facts, Options
from torchmill.core.errors import ConfigError, HostError, ImpossibleBuildError
from torchmill.core.paths import GUEST, Layout
from torchmill.plan.options import format_options

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
# Of pip's settings those that say where it finds packages, and not what it does with them.
PIP = (
    "index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "cert", "client-cert",
    "timeout", "default-timeout", "retries",
)  # fmt: skip
_FILES = (*CERTIFICATES, "PIP_CERT", "PIP_CLIENT_CERT")
_INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
# The shared compiler cache, and who may use it. A local one has its place already.
CACHES = ("TORCHMILL_CACHE", "CCACHE_REMOTE_*", "CCACHE_MAXSIZE", "SCCACHE_*", "AWS_*", "ACTIONS_R*")
PLACES = ("SCCACHE_DIR", "AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")  # not there
CCACHE = "CCACHE_DIR"


@dataclass(frozen=True, slots=True)
class PassedSettings:
    """What a container gets of its user's environment."""

    variables: Mapping[str, str]
    mounts: tuple[Mount, ...]  # of the files that they name, each where it lies here


def select_settings(
    environ: Mapping[str, str], pip: Mapping[str, str], exists: Callable[[str], bool]
) -> PassedSettings:
    """Return what is passed on of an environment and of pip's settings (option -> value)."""
    found = {name: value for name, value in environ.items() if value and _goes(name)}
    found |= {_variable(option): value for option, value in pip.items() if option in PIP}
    mounts = [Mount(path, path) for path in _read(found, exists)]
    mounts += [Mount(path, path, writable=True) for path in _written(found)]
    return PassedSettings(found, tuple(dict.fromkeys(mounts)))


def parse_pip_settings(listing: str) -> dict[str, str]:
    """Return pip's settings by their options, from what `pip config list` prints.

    What the environment says wins over files, and what is for `pip install` over what is for all commands.
    """
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section in found and value:
            found[section][option] = " ".join(_text(value).split())
    return found["global"] | found["install"] | found[":env:"]


def _text(value: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return value


def _variable(option: str) -> str:
    return f"PIP_{option.upper().replace('-', '_')}"


def _goes(name: str) -> bool:
    if name.upper() in PROXIES or name in {*CERTIFICATES, CCACHE, "NO_COLOR"}:
        return True
    return name not in PLACES and any(fnmatchcase(name, pattern) for pattern in CACHES)


def _read(found: Mapping[str, str], exists: Callable[[str], bool]) -> Iterator[str]:
    """Yield the files and folders that are only read and exist: certificates, and places of packages."""
    yield from filter(exists, _plain(found))
    for index in filter(exists, _local(" ".join(found.get(name, "") for name in _INDEXES).split())):
        yield posixpath.dirname(index) if index.count("/") > 1 else index  # its pages lead to files beside it


def _plain(found: Mapping[str, str]) -> Iterator[str]:
    yield from _local(found.get(name, "") for name in _FILES)
    yield from _local(found.get("PIP_FIND_LINKS", "").split())


def _written(found: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders of compiler caches."""
    yield from _local([found.get(CCACHE, ""), found.get("TORCHMILL_CACHE", "").partition("#")[0]])


def _local(places: Iterable[str]) -> Iterator[str]:
    """Yield the paths among some places: those that begin at the root, also as file://."""
    for place in places:
        address = urlsplit(place)
        path = unquote(address.path) if address.scheme == "file" else place
        if path.startswith("/"):
            yield path.rstrip("/") or "/"


# Where things lie in the container, whatever they are called outside: what is compiled there names them.
SUITE, HOME, CONFIGS, GIVEN, CACHE = "/suite", "/torchmill", "/configs", "/given", "/cache"
SCRIPT = f"{SUITE}/torchmill/build/cross/inside.sh"
IMAGE_VARIABLE = "TORCHMILL_IMAGE"  # the variable that names the image


@dataclass(frozen=True, slots=True)
class CrossBuild:
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
class ContainerOrder:
    """What is asked for."""

    goal: CrossBuild
    tag: str  # selects its release
    image: str
    options: Options

    @property
    def torch(self) -> Path | None:
        """Return the wheel that it shall be built against, where that is a file."""
        named = self.options.torch
        return Path(named) if named and named != "PyPI" else None


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """Where it happens."""

    checkout: Path
    layout: Layout  # this machine's
    configs: Path | None  # facts that are not the checkout's
    passed: PassedSettings
    requirements: str  # what the suite needs, as requirements.txt says it
    process: int  # tells containers from others
    user: tuple[int, int] | None  # numbers of user and group, where the system has them


def has_containers(arch: Arch) -> bool:
    """Tell whether a container can be such a machine."""
    return arch.system == "linux" and arch.name in PLATFORMS


def refuse_impossible(facts: Facts, goal: CrossBuild) -> None:
    """Raise ImpossibleBuildError where no container is such a machine."""
    arch = facts.arches[goal.arch]
    if not has_containers(arch):
        name = {"macos": "macOS", "windows": "Windows"}.get(arch.system, arch.system)
        raise ImpossibleBuildError(
            f"{goal.identifier} cannot be built here: {name} runs in no container; build it on such a "
            "machine, or on one of GitHub's runners (wheels.yml)",
            code="not-in-a-container",
        )


def guest_layout(layout: Layout, arch: str) -> Layout:
    """Return the layout that the suite has in a container of an arch, as this machine sees its folders."""
    cache = layout.cache.with_name(f"torchmill-{arch}")
    return Layout(layout.root, cache, arch)


def plan_container(order: ContainerOrder, place: ContainerPlace, ground: EngineHost) -> Container:
    """Return the container in which an order is carried out.

    Raises HostError where the engine's machine does not see this one's files, ConfigError where a folder has
    a name that no engine takes.
    """
    if ground.remote:
        raise HostError(
            "the container engine that answers runs on another machine, which does not see the files of this "
            "one: run the same command there, in a checkout of its own, or let the engine of this machine "
            "answer (unset DOCKER_HOST and CONTAINER_HOST, `docker context use default`)",
            code="remote-container-engine",
        )
    arch = order.goal.arch
    mounts = tuple(_mounts(order, place, arch))
    if (wrong := find_unmountable([one.source for one in mounts])) is not None:
        raise ConfigError(
            f"{wrong}: a container cannot be given a path with a comma or a quote: rename it",
            code="unmountable-path",
        )
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


def required_folders(order: ContainerOrder, place: ContainerPlace) -> tuple[Path, ...]:
    """Return the folders that must be there first: an engine would make them root's."""
    inner = guest_layout(place.layout, order.goal.arch)
    made = (inner.sources, inner.state / "home", inner.logs, place.layout.dist, inner.cache)
    return (*made, *(Path(one.source) for one in place.passed.mounts if one.writable))


def _mounts(order: ContainerOrder, place: ContainerPlace, arch: str) -> list[Mount]:
    inner = guest_layout(place.layout, arch)
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


def _variables(order: ContainerOrder, place: ContainerPlace, arch: str) -> Mapping[str, str]:
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


def _state(place: ContainerPlace, arch: str) -> str:
    """Return the folder of what the suite keeps, as the container sees it."""
    inner = guest_layout(place.layout, arch).state.relative_to(place.layout.root)
    return str(PurePosixPath(HOME, *inner.parts))


def _environment(place: ContainerPlace, arch: str) -> str:
    """Return where the suite's own requirements lie, which are installed once."""
    digest = hashlib.sha256(place.requirements.encode()).hexdigest()[:8]
    return f"{_state(place, arch)}/suite-{digest}"


def _words(order: ContainerOrder) -> Sequence[str]:
    """Return what stands after the session's name; a wheel lies elsewhere in the container."""
    given = replace(order.options, torch=f"{GIVEN}/{order.torch.name}") if order.torch else order.options
    words = [*order.goal.own, *format_options(given)]
    return ("--", *words) if words else ()
