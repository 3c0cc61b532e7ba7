"""Where everything is kept: the only module that knows folder names."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.core.errors import ConfigError

PACKAGE = Path(__file__).parents[1]
CHECKOUT = PACKAGE.parent
GUEST = (
    "TORCHMILL_GUEST"  # names the arch of a container in which a suite works beside the machine's
)
EMPTY_ENVIRONMENTS = "environments"
CACHE_FILES = ("facts.json", "sessions.json", "recall.json")
HOMES = "homes"  # of the cache: which folders' states are the user's
CONFIGS = "configs"  # of the cache: shipped facts together with those of a project
PROOFS_CACHE = "upstream-tests"  # what upstream's tests said of published wheels


class _Below:
    """A file or folder by its name in another folder of a layout."""

    def __init__(self, parent: str, name: str) -> None:
        self._parent, self._name = parent, name

    def __get__(self, layout: "Layout", _: type) -> Path:
        return Path(getattr(layout, self._parent), self._name)


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one checkout of the suite (`root`) and of this user (`cache`)."""

    root: Path
    cache: Path
    guest: str = (
        ""  # the arch of a container: it shares sources and dist/ with its machine, nothing else
    )

    @classmethod
    def of_checkout(cls, root: Path) -> "Layout":
        """Return the layout for a checkout; TORCHMILL_HOME moves what it makes elsewhere.

        Raises ConfigError where that is a file, TORCHMILL_GUEST is no name of an arch, or the user has no home.
        """
        home = os.environ.get("TORCHMILL_HOME")
        if home and (not os.path.isabs(home) or os.path.isfile(home)):  # noqa: PTH113, PTH117 - they raise nothing
            wrong = "a file" if os.path.isabs(home) else "not the absolute path of a folder"  # noqa: PTH117
            told = f"TORCHMILL_HOME is {home}, which is {wrong}: name a folder by its absolute path, or unset it"
            raise ConfigError(told, code="invalid-home")
        guest = os.environ.get(GUEST, "")
        if not re.fullmatch(r"\w*", guest):
            raise ConfigError(
                f"{GUEST} is '{guest}': name an arch, such as aarch64, or unset it",
                code="invalid-guest",
            )
        if not os.path.isabs(own := os.path.expanduser("~")):  # noqa: PTH111, PTH117 - ~ where a user is a mere number
            why = (
                "HOME is not set, and the system knows no user with this number"
                if own == "~"
                else f"HOME is {own}"
            )
            raise ConfigError(
                f"{why}: `export HOME=FOLDER`, one that you may write to", code="no-home"
            )
        return cls(
            Path(os.path.realpath(home or root)), user_cache_folder(os.environ, Path(own)), guest
        )

    # in the user's cache
    environments = _Below(
        "cache", EMPTY_ENVIRONMENTS
    )  # empty ones, and tools, out of which all others are made
    # what the TOML files of facts hold, the sessions of the matrix, digests of files by what their stat says
    facts_cache, sessions_cache, stat_cache = (_Below("cache", name) for name in CACHE_FILES)
    # in the checkout
    dist = _Below("root", "dist")  # verified wheels
    conda = _Below("dist", "conda")  # packages made of them, in a folder for each kind of machine
    index = _Below("root", "index")  # what `invoke index` writes, unless it is told another folder
    channel = _Below("root", "channel")  # the same of `invoke index --conda`
    sources = _Below("root", ".torchmill/sources")  # the fetched sources of all packages
    # below `state`
    trees = _Below("state", "trees")  # where everything is built, a folder for each tag
    logs = _Below("state", "logs")  # of builds
    images = _Below("state", "images")  # what images are built of
    demo = _Below("state", "demo")  # everything that `nox -s demo` makes
    bisect = _Below(
        "state", "bisect"
    )  # the search of `invoke bisect`, and everything that it makes
    cluster = _Below("state", "cluster")  # the jobs of `invoke cluster`, their logs and their parts
    selection = _Below("state", "selected.json")  # the file that names the selected release

    @property
    def state(self) -> Path:
        """Return the folder of everything that can be made again."""
        return self.root / ".torchmill" / self.guest

    def source(self, package: str) -> Path:
        """Return the folder of a package's fetched sources."""
        return self.sources / package

    def tree(self, tag: str, identifier: str) -> Path:
        """Return the folder in which one cell is built."""
        return self.trees / tag / identifier


def user_cache_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Return the folder of what all checkouts of a user share."""
    name = f"torchmill-{environ[GUEST]}" if environ.get(GUEST) else "torchmill"
    named = Path(
        environ.get("XDG_CACHE_HOME") or "."
    )  # a relative one is to be ignored, as XDG's specification says
    return (named if named.is_absolute() else home / ".cache") / name


def facts_folder(root: Path) -> Path:
    """Return the folder of a checkout's facts, or the one that TORCHMILL_CONFIGS names instead."""
    return Path(os.path.abspath(os.environ.get("TORCHMILL_CONFIGS") or root / "build_configs"))  # noqa: PTH100


def nox_environments_folder() -> Path:
    """Return the folder in which nox keeps this checkout's environments, unless --envdir names another."""
    return Path(os.environ.get("NOX_ENVDIR") or CHECKOUT / ".nox")


def nox_environment_name(session: str) -> str:
    """Return what nox calls the environment of a session: "wheel-3.10-cpu" becomes "wheel-3-10-cpu"."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "-", session).strip().lower()).strip("-")


def locate_page(name: str) -> str:
    """Return where a page of the documentation is, "docs/how-to/build.md": as it is called if that is found here."""
    page = CHECKOUT / name
    return name if os.path.realpath(name) == os.path.realpath(page) else str(page)
