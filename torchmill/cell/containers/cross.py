"""Plan the container of a build for another architecture: mounts, variables, settings.

The container runs the same session of the same checkout, which it sees at /suite. Its state and
cache lie beside this machine's, under the name of its architecture, and its wheels arrive in the
same dist/. All of this is computed here without asking an engine.
"""

import ast
import contextlib
import hashlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
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

_PASSED = read_table_beside(__file__, "passed.toml")  # names of variables, by how they are treated
# The folders in a container. They do not depend on this machine, because their names get into what
# is compiled in the container.
SUITE = "/suite"
HOME = "/torchmill"
CONFIGS = "/configs"
GIVEN = "/given"  # holds the torch wheel and the patches that the user names
CACHE = "/cache"
PARTS = "/parts"  # the folder of --parts
SCRIPT = f"{SUITE}/torchmill/cell/containers/inside.sh"
IMAGE_VARIABLE = "TORCHMILL_IMAGE"  # the variable that names the image
# In an image with CROSS_LABEL: the programs that gcc starts, see cross-compilers.sh.
CROSS_COMPILERS = "/opt/cross-compilers/bin"


@dataclass(frozen=True, slots=True)
class PassedSettings:
    """The part of the user's environment that a container gets."""

    variables: Mapping[str, str]
    mounts: tuple[Mount, ...]  # of the files that the variables name, each at its own path


def select_settings(
    environ: Mapping[str, str], pip: Mapping[str, str], exists: Callable[[str], bool]
) -> PassedSettings:
    """Return the settings of the user that a container gets, with the files that they name.

    `environ` is the user's environment, and `pip` has the values of pip's options by their names.
    `exists` tells whether there is something at a path of this machine; folders of caches are
    mounted even if there is nothing yet.
    """
    variables = {name: value for name, value in environ.items() if _is_passed(name, value)}
    for option, value in pip.items():
        if option in _PASSED["pip"]:
            # pip reads an option from a variable of this name:
            # https://pip.pypa.io/en/stable/topics/configuration/#environment-variables
            variables[f"PIP_{option.upper().replace('-', '_')}"] = value
    mounts = _read_only_mounts(variables, exists) + _writable_mounts(variables)
    return PassedSettings(variables, tuple(dict.fromkeys(mounts)))


def _is_passed(name: str, value: str) -> bool:
    """Tell whether a container gets a variable of the user's environment."""
    # An empty TORCHMILL_KEYS allows no signer, and is refused. A container without the variable
    # would ask for no signature.
    if not value and name != "TORCHMILL_KEYS":
        return False
    if name in _PASSED["places"]:
        return False
    if name in _PASSED["certificates"] or name in _PASSED["others"]:
        return True
    if name.upper() in _PASSED["proxies"]:
        return True
    return any(fnmatchcase(name, pattern) for pattern in _PASSED["caches"])


def _read_only_mounts(variables: Mapping[str, str], exists: Callable[[str], bool]) -> list[Mount]:
    """Return the mounts of certificates, wheels and indexes."""
    places = []
    for name in (*_PASSED["certificates"], "PIP_CERT", "PIP_CLIENT_CERT"):
        places.append(variables.get(name, ""))  # one path, which may have blanks
    for name in _PASSED["lists"]:
        places += variables.get(name, "").split()
    paths = [path for path in _local_paths(places) if exists(path)]
    for name in _PASSED["indexes"]:
        for path in _local_paths(variables.get(name, "").split()):
            if exists(path):
                paths.append(_folder_of_index(path))
    return [Mount(path, path) for path in paths]


def _folder_of_index(path: str) -> str:
    """Return the folder above an index, because its pages link to files beside it.

    This is the index itself if that folder is the root, which cannot be mounted.
    """
    return posixpath.dirname(path) if path.count("/") > 1 else path


def _writable_mounts(variables: Mapping[str, str]) -> list[Mount]:
    """Return the mounts of compiler caches that are folders of this machine."""
    remote = variables.get("TORCHMILL_CACHE", "").partition("#")[0]  # without its options
    paths = _local_paths([variables.get("CCACHE_DIR", ""), remote])
    return [Mount(path, path, writable=True) for path in paths]


def _local_paths(places: Iterable[str]) -> Iterator[str]:
    """Yield the absolute paths among paths and URLs; those of file:// URLs are among them."""
    for place in places:
        path = place
        if place.lower().startswith("file:"):
            path = unquote(urlsplit(place).path)
        if path.startswith("/"):
            yield path.rstrip("/") or "/"


def parse_pip_settings(listing: str) -> dict[str, str]:
    """Return pip's settings by their options, from the output of `pip config list`.

    The environment wins over files, and settings for `pip install` over those for all commands.
    https://pip.pypa.io/en/stable/topics/configuration/#precedence-override-order
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section in sections and value:
            # pip prints a value as Python writes a string: 'https://…'.
            with contextlib.suppress(ValueError, SyntaxError):
                value = str(ast.literal_eval(value))
            sections[section][option] = " ".join(value.split())
    return sections["global"] | sections["install"] | sections[":env:"]


@dataclass(frozen=True, slots=True)
class CrossBuild:
    """A session to run in a container, and its image."""

    cell: Cell
    session: str  # its name on a machine of that architecture: "wheel-3.10-cpu"
    session_arguments: tuple[str, ...] = ()  # after --, if the session makes something of a wheel
    tag: str = ""  # that selects the release
    image: str = ""  # its name
    # Compilers run without emulation: the image has cross compilers for the engine's machine.
    is_crossed: bool = False
    options: Options = field(default_factory=Options)

    @property
    def arch(self) -> str:
        """Return the architecture of the container."""
        return self.cell.build.arch

    @property
    def identifier(self) -> str:
        """Return the session's name on this machine: "wheel-3.10-cpu-aarch64"."""
        return f"{self.session}-{self.arch}"


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """The suite and the user that a container is for."""

    suite: Mapping[str, Path]  # its folders, by their paths below /suite; a checkout's is ""
    layout: Layout  # this machine's
    configs: Path | None  # the folder of the facts; None: the checkout's
    passed: PassedSettings
    requirements: str  # what the suite needs, as the text of a requirements.txt
    process: int  # the number of this process, which distinguishes names of containers
    user: tuple[int, int] | None  # numbers of user and group, if the system has them


def has_containers(arch: Arch) -> bool:
    """Tell whether an engine has containers of this architecture."""
    return arch.system == "linux" and arch.name in PLATFORMS


def refuse_impossible(facts: Facts, goal: CrossBuild) -> None:
    """Raise ImpossibleBuildError if no container can make this build.

    Either no container has such an architecture, or the build needs something that only this
    machine has.
    """
    arch = facts.arches[goal.arch]
    if not has_containers(arch):
        system = {"macos": "macOS", "windows": "Windows"}.get(arch.system, arch.system)
        raise ImpossibleBuildError(
            f"{goal.identifier} cannot be built here: {system} does not run in a container: "
            "build on such a machine, or on one of GitHub's runners (wheels.yml)",
            code="not-in-a-container",
        )
    folder = goal.options.torch_folder
    if folder:
        raise ImpossibleBuildError(
            f"--torch {folder}: a container does not have what is installed on this machine: "
            "give a wheel, or PyPI",
            code="torch-not-in-container",
        )


def container_layout(layout: Layout, arch: str) -> Layout:
    """Return the folders of the suite in a container of an arch, as paths of this machine."""
    return Layout(layout.root, layout.cache.with_name(f"torchmill-{arch}"), arch)


def plan_container(build: CrossBuild, place: ContainerPlace, engine_host: EngineHost) -> Container:
    """Return the container in which a build runs.

    Raises HostError if the engine's machine does not see the files of this one, ConfigError if a
    folder has a name that no engine accepts, ImpossibleBuildError if the build is for the processor
    of this machine (--cpu native), but the container's processor is emulated.
    """
    _refuse_host(build, engine_host)
    mounts = _plan_mounts(build, place)
    _require_mountable(mounts)
    inner_state = container_layout(place.layout, build.arch).state
    state = PurePosixPath(HOME, *inner_state.relative_to(place.layout.root).parts)
    words = (*build.session_arguments, *format_options(_translate_paths(build.options)))
    session = (build.session, "--", *words) if words else (build.session,)
    return Container(
        name=f"torchmill-{build.arch}-{build.session}-{place.process}",
        image=build.image,
        arch=build.arch,
        argv=("/bin/sh", SCRIPT, _suite_environment(build, place, state), *session),
        mounts=mounts,
        variables=_plan_variables(build, place, state),
        passed=tuple(sorted(place.passed.variables)),
        user=place.user,
    )


def _refuse_host(build: CrossBuild, engine_host: EngineHost) -> None:
    """Raise an error if a build cannot run on the engine's machine."""
    if engine_host.is_remote:
        raise HostError(
            "the container engine that answers runs on another machine, which does not see the "
            "files of this one: run the same command there, in a checkout of its own, or let the "
            "engine of this machine answer "
            "(unset DOCKER_HOST and CONTAINER_HOST, `docker context use default`)",
            code="remote-container-engine",
        )
    if build.options.cpu == "native" and engine_host.arch != build.arch:
        raise ImpossibleBuildError(
            f"--cpu native: {engine_host.arch} emulates {build.arch} here, and native would mean "
            "the emulator's processor: name one",
            code="processor-emulated",
        )


def _require_mountable(mounts: Iterable[Mount]) -> None:
    """Raise ConfigError for a path that cannot stand in --mount, whose value is a line of CSV."""
    for mount in mounts:
        if "," in mount.source or '"' in mount.source:
            raise ConfigError(
                f"{mount.source}: a container cannot be given a path with a comma or a quote: "
                "rename it",
                code="unmountable-path",
            )


def _plan_variables(
    build: CrossBuild, place: ContainerPlace, state: PurePosixPath
) -> dict[str, str]:
    """Return the variables that are set for a container, without those passed on from the user.

    `state` is the path of its state folder inside it.
    """
    variables = {
        "TORCHMILL_HOME": HOME,
        CONTAINER_ARCH: build.arch,
        "TORCHMILL_TAG": build.tag,
        "XDG_CACHE_HOME": CACHE,
        "HOME": f"{state}/home",
        "PIP_CACHE_DIR": f"{state}/home/pip",
        "NOX_ENVDIR": f"{state}/environments",
        "PYTHONPYCACHEPREFIX": f"{state}/bytecode",
    }
    if place.configs is not None:
        variables["TORCHMILL_CONFIGS"] = CONFIGS
    if build.is_crossed:
        variables["COMPILER_PATH"] = CROSS_COMPILERS
    return variables


def _suite_environment(build: CrossBuild, place: ContainerPlace, state: PurePosixPath) -> str:
    """Return the folder into which a container installs the suite's own requirements.

    Each image has one, because its Python may be another: a run in a second image must not replace
    the environment in which a run in the first one works. So has each text of the requirements.
    """
    digest = hashlib.sha256(f"{build.image}\n{place.requirements}".encode()).hexdigest()
    return f"{state}/suite-{digest[:8]}"


def _translate_paths(options: Options) -> Options:
    """Return a build's options with the paths that the container sees."""
    if options.torch_wheel:
        options = replace(options, torch=f"{GIVEN}/{options.torch_wheel.name}")
    # A user's patch has a name such as "given/fix.patch", and so it lies in GIVEN.
    patches = {name: f"/{name}" for name in options.patches}
    parts = None if options.parts is None else PARTS
    return replace(options, patches=patches, parts=parts)


def required_folders(build: CrossBuild, place: ContainerPlace) -> tuple[Path, ...]:
    """Return the folders to make before the run: an engine would make them as root."""
    inner = container_layout(place.layout, build.arch)
    folders = [inner.sources, inner.state / "home", inner.logs, place.layout.dist, inner.cache]
    folders += [Path(mount.source) for mount in place.passed.mounts if mount.writable]
    if build.options.parts:
        folders.append(Path(build.options.parts))
    return tuple(folders)


def _plan_mounts(build: CrossBuild, place: ContainerPlace) -> tuple[Mount, ...]:
    """Return all files and folders of this machine that a build's container sees."""
    layout = place.layout
    cache = container_layout(layout, build.arch).cache
    mounts = [
        Mount(str(path), str(PurePosixPath(SUITE, name))) for name, path in place.suite.items()
    ]
    mounts += [
        Mount(str(layout.state), f"{HOME}/{layout.state.name}", writable=True),
        Mount(str(layout.dist), f"{HOME}/{layout.dist.name}", writable=True),
        Mount(str(cache), f"{CACHE}/{cache.name}", writable=True),
    ]
    if place.configs is not None:
        mounts.append(Mount(str(place.configs), CONFIGS))
    wheel = build.options.torch_wheel
    if wheel:
        mounts.append(Mount(str(wheel), f"{GIVEN}/{wheel.name}"))
    for name, path in build.options.patches.items():
        mounts.append(Mount(path, f"/{name}"))
    if build.options.parts is not None:
        mounts.append(Mount(build.options.parts, PARTS, writable=True))
    return (*mounts, *place.passed.mounts)
