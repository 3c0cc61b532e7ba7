"""Where everything is kept: the only module that knows folder names."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from torchmill.core.dataclass import dataclass
from torchmill.core.errors import ConfigError

# The variable that a suite in a container gets, which works beside that of the machine: it names its arch.
PACKAGE = Path(__file__).parents[1]
CHECKOUT = PACKAGE.parent

GUEST = "TORCHMILL_GUEST"
EMPTY_ENVIRONMENTS, FACTS_CACHE, SESSIONS_CACHE = (
    "environments",
    "facts.json",
    "sessions.json",
)  # in the cache


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one checkout of the suite (`root`) and of this user (`cache`)."""

    root: Path
    cache: Path
    guest: str = (
        ""  # the arch of a container, which shares sources and dist/ with its machine and nothing else
    )

    @classmethod
    def of_checkout(cls, root: Path) -> "Layout":
        """Return the layout for a checkout; TORCHMILL_HOME moves what it makes elsewhere.

        Raises ConfigError where that is a file, or TORCHMILL_GUEST is no name of an arch.
        """
        home = os.environ.get("TORCHMILL_HOME")
        if home and Path(home).exists() and not Path(home).is_dir():
            raise ConfigError(f"TORCHMILL_HOME is {home}, which is a file: name a folder, or unset it")
        guest = os.environ.get(GUEST, "")
        if not re.fullmatch(r"\w*", guest):
            raise ConfigError(f"{GUEST} is '{guest}': name an arch, such as aarch64, or unset it")
        return cls(
            Path(home).resolve() if home else root.resolve(),
            user_cache_folder(os.environ, Path.home()),
            guest,
        )

    @property
    def state(self) -> Path:
        """Return the folder of everything that can be made again."""
        return self.root / ".torchmill" / self.guest

    @property
    def environments(self) -> Path:
        """Return the folder of the empty environments that wheels are verified in copies of."""
        return self.cache / EMPTY_ENVIRONMENTS

    @property
    def facts_cache(self) -> Path:
        """Return the file that remembers what the TOML files of facts hold."""
        return self.cache / FACTS_CACHE

    @property
    def sessions_cache(self) -> Path:
        """Return the file that remembers the sessions of the matrix."""
        return self.cache / SESSIONS_CACHE

    @property
    def dist(self) -> Path:
        """Return the folder of verified wheels."""
        return self.root / "dist"

    @property
    def index(self) -> Path:
        """Return the folder of the index that `invoke index` writes, unless it is told another."""
        return self.root / "index"

    @property
    def channel(self) -> Path:
        """Return the folder of the channel that `invoke index --conda` writes, unless it is told another."""
        return self.root / "channel"

    @property
    def images(self) -> Path:
        """Return the folder of what images are built of."""
        return self.state / "images"

    @property
    def logs(self) -> Path:
        """Return the folder of build logs."""
        return self.state / "logs"

    @property
    def selection(self) -> Path:
        """Return the file that names the selected release."""
        return self.state / "selected.json"

    @property
    def demo(self) -> Path:
        """Return the folder of everything that `nox -s demo` makes."""
        return self.state / "demo"

    @property
    def sources(self) -> Path:
        """Return the folder of the fetched sources of all packages."""
        return self.root / ".torchmill" / "sources"

    @property
    def trees(self) -> Path:
        """Return the folder in which everything is built, a folder for each tag in it."""
        return self.state / "trees"

    def source(self, package: str) -> Path:
        """Return the folder of a package's fetched sources."""
        return self.sources / package

    def tree(self, tag: str, identifier: str) -> Path:
        """Return the folder in which one cell is built."""
        return self.trees / tag / identifier


def user_cache_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Return the folder of what all checkouts of a user share."""
    name = f"torchmill-{environ[GUEST]}" if environ.get(GUEST) else "torchmill"
    return Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / name


def facts_folder(root: Path) -> Path:
    """Return the folder of a checkout's facts, or the one that TORCHMILL_CONFIGS names instead."""
    return Path(os.environ.get("TORCHMILL_CONFIGS", root / "build_configs"))


def nox_environments_folder() -> Path:
    """Return the folder in which nox keeps this checkout's environments, unless --envdir names another."""
    return Path(os.environ.get("NOX_ENVDIR") or CHECKOUT / ".nox")
