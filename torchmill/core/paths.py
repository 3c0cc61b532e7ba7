"""The folders that torchmill reads and writes: the only module that knows their names."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.core.errors import ConfigError

PACKAGE = Path(__file__).parents[1]
# The folder from which `import torchmill` works: a checkout, or site-packages.
IMPORT_FOLDER = PACKAGE.parent
# The wheel puts the rest of the suite into a folder of this name beside the package.
INSTALLED_SUITE = "torchmill_suite"
IS_INSTALLED = not (IMPORT_FOLDER / "noxfile.py").is_file()
# The folder of noxfile.py, tasks.py, build_configs/, checks/, docs/, sample/ and tools/: the
# checkout or, if torchmill is installed, the suite's folder in site-packages.
CHECKOUT = IMPORT_FOLDER / INSTALLED_SUITE if IS_INSTALLED else IMPORT_FOLDER
# This variable tells a torchmill that runs in a container the architecture of the container. The
# torchmill that started the container uses the same checkout, so they need folders of their own.
CONTAINER_ARCH = "TORCHMILL_CONTAINER_ARCH"
# Names in the user's cache.
EMPTY_ENVIRONMENTS = "environments"  # new environments, and tools, that are copied into builds
STAT_CACHE = "stat-cache.json"
FACTS_MEMORY = "facts"  # what was read from facts: a folder for each folder of facts
FACTS_FILES = ("facts.pickle", "facts.json", "sessions.json")  # in each of them
HOMES = "homes"  # the records of folders whose state is the user's
CONFIGS = "configs"  # the shipped facts together with those of a project
PROOFS_CACHE = "upstream-tests"  # results of upstream's tests of published wheels


class _Below:
    """An attribute of `Layout`: the path of a name in the folder of another attribute.

    `dist = _Below("root", "dist")` makes `layout.dist` the path `layout.root / "dist"`.
    """

    def __init__(self, parent: str, name: str) -> None:
        self._parent = parent
        self._name = name

    def __get__(self, layout: "Layout", _: type) -> Path:
        """Return the path in a layout; Python calls this when the attribute is read."""
        return Path(getattr(layout, self._parent), self._name)


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of a checkout of the suite (`root`) and of its user (`cache`)."""

    root: Path
    cache: Path
    # The architecture of the container that torchmill runs in; "" outside of containers. A
    # container and its machine share only the sources and dist/.
    container_arch: str = ""

    @classmethod
    def of_checkout(cls, root: Path) -> "Layout":
        """Return the layout of a checkout.

        TORCHMILL_HOME names another folder in place of `root`. Raises ConfigError if TORCHMILL_HOME
        is not a folder, if TORCHMILL_CONTAINER_ARCH is not the name of an architecture, or if the
        user has no home.
        """
        home = os.environ.get("TORCHMILL_HOME")
        if home:
            _require_absolute_folder(home)
        container_arch = os.environ.get(CONTAINER_ARCH, "")
        if not re.fullmatch(r"\w*", container_arch):
            raise ConfigError(
                f"{CONTAINER_ARCH} is '{container_arch}': name an arch, such as aarch64, "
                "or unset it",
                code="invalid-container-arch",
            )
        cache = user_cache_folder(os.environ, _user_home())
        return cls(Path(os.path.realpath(home or root)), cache, container_arch)

    # In the user's cache.
    environments = _Below("cache", EMPTY_ENVIRONMENTS)
    stat_cache = _Below("cache", STAT_CACHE)  # digests of files by their stat
    # In the checkout.
    dist = _Below("root", "dist")  # verified wheels
    conda = _Below("dist", "conda")  # conda packages of them, in a folder for each platform
    index = _Below("root", "index")  # the default folder of `invoke index`
    channel = _Below("root", "channel")  # the default folder of `invoke index --conda`
    sources = _Below("root", ".torchmill/sources")  # the fetched sources of all packages
    # Below `state`.
    trees = _Below("state", "trees")  # where everything is built, a folder for each tag
    logs = _Below("state", "logs")  # the logs of builds
    images = _Below("state", "images")  # Dockerfiles, and the files that they copy
    demo = _Below("state", "demo")  # everything that `nox -s demo` makes
    bisect = _Below("state", "bisect")  # the search of `invoke bisect`, and all that it makes
    rebuild = _Below("state", "rebuild")  # the build of `invoke rebuild`, and its wheel
    cluster = _Below("state", "cluster")  # the jobs of `invoke cluster`, their logs and parts
    new_torch = _Below("state", "new-torch")  # drafted facts, and the record of `--new-torch`
    selection = _Below("state", "selected.json")  # the file that names the selected release

    @property
    def state(self) -> Path:
        """Return the folder of everything that can be made again."""
        return self.root / ".torchmill" / self.container_arch

    def facts_memory(self, facts: Path) -> "FactsMemory":
        """Return where what was read from a folder of facts is remembered.

        Each copy of torchmill has one of its own for each folder of facts, so that two checkouts
        which are used in turns do not overwrite each other's.
        """
        import hashlib

        places = f"{PACKAGE}\0{facts.absolute()}"
        name = hashlib.sha256(os.fsencode(places)).hexdigest()[:16]
        return FactsMemory(self.cache / FACTS_MEMORY / name)

    def source(self, package: str) -> Path:
        """Return the folder of a package's fetched sources."""
        return self.sources / package

    def tree(self, tag: str, identifier: str) -> Path:
        """Return the folder of a cell: its outputs and, unless other cells share it, its tree."""
        return self.trees / tag / identifier


@dataclass(frozen=True, slots=True)
class FactsMemory:
    """The files of the user's cache that remember what was read from one folder of facts."""

    folder: Path

    @property
    def facts(self) -> Path:
        """Return the file of all facts, read and checked."""
        return self.folder / FACTS_FILES[0]

    @property
    def parsed_files(self) -> Path:
        """Return the file of the parsed TOML files."""
        return self.folder / FACTS_FILES[1]

    @property
    def sessions(self) -> Path:
        """Return the file of the sessions of the matrix."""
        return self.folder / FACTS_FILES[2]


def _require_absolute_folder(home: str) -> None:
    """Raise ConfigError if TORCHMILL_HOME is a relative path, or names a file."""
    # The methods of pathlib would raise OSError for some invalid paths.
    if not os.path.isabs(home):  # noqa: PTH117
        problem = "not the absolute path of a folder"
    elif os.path.isfile(home):  # noqa: PTH113
        problem = "a file"
    else:
        return
    raise ConfigError(
        f"TORCHMILL_HOME is {home}, which is {problem}: name a folder by its absolute path, "
        "or unset it",
        code="invalid-home",
    )


def _user_home() -> Path:
    """Return the user's home. Raises ConfigError if there is none, or HOME is a relative path."""
    # If the system does not know the user's number, as in a container, expanduser returns "~", and
    # Path.home() would raise RuntimeError.
    home = os.path.expanduser("~")  # noqa: PTH111
    if os.path.isabs(home):  # noqa: PTH117
        return Path(home)
    reason = f"HOME is {home}"
    if home == "~":
        reason = "HOME is not set, and the system knows no user with this number"
    raise ConfigError(f"{reason}: `export HOME=FOLDER`, one that you may write to", code="no-home")


def user_cache_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Return the folder for the caches of torchmill, which all checkouts of a user share.

    `home` is the user's home. A container has a folder of its own.
    """
    arch = environ.get(CONTAINER_ARCH)
    name = f"torchmill-{arch}" if arch else "torchmill"
    # XDG's specification says that a relative path is to be ignored.
    # https://specifications.freedesktop.org/basedir-spec/latest/
    xdg_cache = Path(environ.get("XDG_CACHE_HOME") or ".")
    if xdg_cache.is_absolute():
        return xdg_cache / name
    return home / ".cache" / name


def import_path(environ: Mapping[str, str]) -> str:
    """Return the PYTHONPATH with which a process that gets `environ` can import torchmill."""
    users_path = environ.get("PYTHONPATH")
    return f"{IMPORT_FOLDER}{os.pathsep}{users_path}" if users_path else str(IMPORT_FOLDER)


def facts_folder(root: Path) -> Path:
    """Return the folder of a checkout's facts, or the one that TORCHMILL_CONFIGS names instead."""
    folder = os.environ.get("TORCHMILL_CONFIGS") or root / "build_configs"
    return Path(os.path.abspath(folder))  # noqa: PTH100 - unlike resolve(), follows no links


def nox_environments_folder() -> Path:
    """Return the folder of nox's environments for this checkout, unless --envdir names another."""
    return Path(os.environ.get("NOX_ENVDIR") or CHECKOUT / ".nox")


def nox_environment_name(session: str) -> str:
    """Return nox's name for a session's environment: "wheel-3-10-cpu" for "wheel-3.10-cpu"."""
    name = re.sub(r"[^\w\s-]", "-", session).strip().lower()
    return re.sub(r"[-\s]+", "-", name).strip("-")


def locate_page(name: str) -> str:
    """Return the path of a page of the documentation, such as "docs/how-to/build.md".

    That is its name if the current folder is the checkout, else its absolute path.
    """
    page = CHECKOUT / name
    if os.path.realpath(name) == os.path.realpath(page):
        return name
    return str(page)
