"""Plan the container of a build for another architecture: mounts, variables and settings passed on."""

import ast
import contextlib
import hashlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from torchmill.cell.containers.engine import PLATFORMS, Container, EngineHost, Mount
from torchmill.config.build import Arch
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError, HostError, ImpossibleBuildError
from torchmill.core.package_data import read_table_beside
from torchmill.core.paths import CONTAINER_ARCH, Layout
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.options import format_options

_PASSED = read_table_beside(__file__, "passed.toml")
# Where things lie in the container, whatever they are called outside: what is compiled there names them.
SUITE, HOME, CONFIGS, GIVEN, CACHE, PARTS = (
    "/suite",
    "/torchmill",
    "/configs",
    "/given",
    "/cache",
    "/parts",
)
SCRIPT = f"{SUITE}/torchmill/cell/containers/inside.sh"
IMAGE_VARIABLE = "TORCHMILL_IMAGE"  # the variable that names the image
CROSS_COMPILERS = "/opt/cross-compilers/bin"  # in an image with CROSS_LABEL: what gcc starts, see cross-compilers.sh


@dataclass(frozen=True, slots=True)
class PassedSettings:
    """What a container gets of its user's environment."""

    variables: Mapping[str, str]
    mounts: tuple[Mount, ...]  # of the files that they name, each where it lies here


def select_settings(
    environ: Mapping[str, str], pip: Mapping[str, str], found: Callable[[str], bool]
) -> PassedSettings:
    """Return what is passed on of an environment and of pip's settings (option -> value)."""
    names, caches = {*_PASSED["certificates"], *_PASSED["others"]}, _PASSED["caches"]
    passed = {
        name: value
        for name, value in environ.items()
        if (
            value or name == "TORCHMILL_KEYS"
        )  # which names nobody, and is refused, where it is empty
        and name not in _PASSED["places"]
        and (
            name in names
            or name.upper() in _PASSED["proxies"]
            or any(fnmatchcase(name, one) for one in caches)
        )
    }
    passed |= {
        f"PIP_{name.upper().replace('-', '_')}": pip[name] for name in pip if name in _PASSED["pip"]
    }
    # Only read: certificates, and where packages lie. The pages of an index lead to files beside it.
    listed = (passed.get(name, "").split() for name in _PASSED["lists"])
    single = (*_PASSED["certificates"], "PIP_CERT", "PIP_CLIENT_CERT")
    files = [*(passed.get(name, "") for name in single), *chain.from_iterable(listed)]
    indexes = _local_paths(" ".join(passed.get(name, "") for name in _PASSED["indexes"]).split())
    read = [path for path in _local_paths(files) if found(path)]
    read += [
        posixpath.dirname(path) if path.count("/") > 1 else path for path in indexes if found(path)
    ]
    written = _local_paths(
        [passed.get("CCACHE_DIR", ""), passed.get("TORCHMILL_CACHE", "").partition("#")[0]]
    )
    mounts = [Mount(path, path) for path in read] + [
        Mount(path, path, writable=True) for path in written
    ]
    return PassedSettings(passed, tuple(dict.fromkeys(mounts)))


def _local_paths(places: Iterable[str]) -> Iterator[str]:
    """Yield the paths among some places: those that begin at the root, also as file://."""
    for place in places:
        path = unquote(urlsplit(place).path) if place[:5].lower() == "file:" else place
        if path.startswith("/"):
            yield path.rstrip("/") or "/"


def parse_pip_settings(listing: str) -> dict[str, str]:
    """Return pip's settings by their options, from what `pip config list` prints.

    What the environment says wins over files, and what is for `pip install` over what is for all commands.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section in sections and value:
            with contextlib.suppress(ValueError, SyntaxError):
                value = str(ast.literal_eval(value))
            sections[section][option] = " ".join(value.split())
    return sections["global"] | sections["install"] | sections[":env:"]


@dataclass(frozen=True, slots=True)
class CrossBuild:
    """What is to be built, and in which image."""

    cell: Cell
    session: str  # its name on its own machine: "wheel-3.10-cpu"
    own: tuple[str, ...] = ()  # what stands after -- for that which is made of the wheel
    tag: str = ""  # selects its release
    image: str = ""
    crossed: bool = (
        False  # compilers run on the engine's machine itself, as the image has them for it
    )
    options: Options = field(default_factory=Options)

    @property
    def arch(self) -> str:
        """Return the architecture of the container."""
        return self.cell.build.arch

    @property
    def identifier(self) -> str:
        """Return its name here."""
        return f"{self.session}-{self.arch}"


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """The checkout and the user that a container is for."""

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
    """Raise ImpossibleBuildError where no container is such a machine, or has what the build is asked to take."""
    arch = facts.arches[goal.arch]
    if not has_containers(arch):
        name = {"macos": "macOS", "windows": "Windows"}.get(arch.system, arch.system)
        raise ImpossibleBuildError(
            f"{goal.identifier} cannot be built here: {name} does not run in a container: build on such a "
            "machine, or on one of GitHub's runners (wheels.yml)",
            code="not-in-a-container",
        )
    if lent := goal.options.torch_folder:
        why = "a container does not have what is installed on this machine: give a wheel, or PyPI"
        raise ImpossibleBuildError(f"--torch {lent}: {why}", code="torch-not-in-container")


def container_layout(layout: Layout, arch: str) -> Layout:
    """Return the layout that the suite has in a container of an arch, as this machine sees its folders."""
    return Layout(layout.root, layout.cache.with_name(f"torchmill-{arch}"), arch)


def plan_container(build: CrossBuild, place: ContainerPlace, engine_host: EngineHost) -> Container:
    """Return the container in which a build runs.

    Raises HostError where the engine's machine does not see this one's files, ConfigError where a folder has
    a name that no engine takes, ImpossibleBuildError where the processor that is asked for is an emulated one.
    """
    if engine_host.remote:
        raise HostError(
            "the container engine that answers runs on another machine, which does not see the files of this "
            "one: run the same command there, in a checkout of its own, or let the engine of this machine "
            "answer (unset DOCKER_HOST and CONTAINER_HOST, `docker context use default`)",
            code="remote-container-engine",
        )
    if build.options.cpu == "native" and engine_host.arch != build.arch:
        why = f"{engine_host.arch} emulates {build.arch} here, and native would mean the emulator's processor: name one"
        raise ImpossibleBuildError(f"--cpu native: {why}", code="processor-emulated")
    arch, mounts = build.arch, _mounts(build, place)
    unmountable = next(
        (one.source for one in mounts if "," in one.source or '"' in one.source), None
    )
    if unmountable is not None:
        raise ConfigError(
            f"{unmountable}: a container cannot be given a path with a comma or a quote: rename it",
            code="unmountable-path",
        )
    inner = container_layout(place.layout, arch).state.relative_to(place.layout.root)
    state = PurePosixPath(HOME, *inner.parts)  # what the suite keeps, as the container sees it
    variables = {
        "TORCHMILL_HOME": HOME,
        CONTAINER_ARCH: arch,
        "TORCHMILL_TAG": build.tag,
        "XDG_CACHE_HOME": CACHE,
        "HOME": f"{state}/home",
        "PIP_CACHE_DIR": f"{state}/home/pip",
        "NOX_ENVDIR": f"{state}/environments",
        "PYTHONPYCACHEPREFIX": f"{state}/bytecode",
        **({"TORCHMILL_CONFIGS": CONFIGS} if place.configs is not None else {}),
        **({"COMPILER_PATH": CROSS_COMPILERS} if build.crossed else {}),
    }
    # The suite's own requirements are installed once, for the Python of one image: another one's run may be at work.
    needed = f"{build.image}\n{place.requirements}"
    environment = f"{state}/suite-{hashlib.sha256(needed.encode()).hexdigest()[:8]}"
    options = build.options
    if wheel := options.torch_wheel:  # it lies elsewhere in the container
        options = replace(options, torch=f"{GIVEN}/{wheel.name}")
    options = replace(
        options,
        patches={name: f"/{name}" for name in options.patches},
        parts=options.parts and PARTS,
    )
    words = (*build.own, *format_options(options))
    return Container(
        name=f"torchmill-{arch}-{build.session}-{place.process}",
        image=build.image,
        arch=arch,
        argv=("/bin/sh", SCRIPT, environment, build.session, *(("--", *words) if words else ())),
        mounts=mounts,
        variables=variables,
        passed=tuple(sorted(place.passed.variables)),
        user=place.user,
    )


def required_folders(build: CrossBuild, place: ContainerPlace) -> tuple[Path, ...]:
    """Return the folders that must be there first: an engine would make them root's."""
    inner = container_layout(place.layout, build.arch)
    made = (inner.sources, inner.state / "home", inner.logs, place.layout.dist, inner.cache)
    named = (*(one.source for one in place.passed.mounts if one.writable), build.options.parts)
    return (*made, *map(Path, filter(None, named)))


def _mounts(build: CrossBuild, place: ContainerPlace) -> tuple[Mount, ...]:
    layout, inner = place.layout, container_layout(place.layout, build.arch)
    mounts = [
        Mount(str(place.checkout), SUITE),
        Mount(str(layout.state), f"{HOME}/{layout.state.name}", writable=True),
        Mount(str(layout.dist), f"{HOME}/{layout.dist.name}", writable=True),
        Mount(str(inner.cache), f"{CACHE}/{inner.cache.name}", writable=True),
    ]
    if place.configs is not None:
        mounts.append(Mount(str(place.configs), CONFIGS))
    if wheel := build.options.torch_wheel:
        mounts.append(Mount(str(wheel), f"{GIVEN}/{wheel.name}"))
    mounts += [Mount(path, f"/{name}") for name, path in build.options.patches.items()]
    if build.options.parts is not None:
        mounts.append(Mount(build.options.parts, PARTS, writable=True))
    return (*mounts, *place.passed.mounts)
