"""What a release needs from the system, in the words of the package manager that is there."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping

from torchmill import source
from torchmill.errors import ConfigError, HostError
from torchmill.host import native_arch
from torchmill.layout import Layout
from torchmill.matrix import Cell, buildable
from torchmill.model import Facts, Release
from torchmill.rules import case, matches

# In order of preference: a conda environment that is active beats the system below it.
INSTALL: Mapping[str, tuple[str, ...]] = {
    "conda": ("conda", "install", "--yes", "--channel", "conda-forge"),
    "apt": ("apt-get", "install", "--yes", "--no-install-recommends"),
    "dnf": ("dnf", "install", "--assumeyes"),
    "brew": ("brew", "install"),
}
NEEDS_ROOT = frozenset({"apt", "dnf"})


def installation(facts: Facts, layout: Layout, release: Release, manager: str) -> str:
    """Return the command that installs what a release, as it was fetched, needs on this machine.

    Raises ConfigError for a manager that the facts do not know.
    """
    fetched = source.load(layout, release.package, release.tag)
    cells = buildable(facts, release, native_arch())
    names = packages(facts, cells, manager, fetched.provider if fetched else None)
    return " ".join(command(manager, names, root=is_root()))


def packages(facts: Facts, cells: Iterable[Cell], manager: str, provider: str | None) -> tuple[str, ...]:
    """Return the system packages, by name, that any of the cells needs."""
    found: dict[str, None] = {}
    for cell in cells:
        known = case(facts, cell.build, cell.release, provider)
        for rule in facts.packages[cell.build.package].rules:
            if matches(rule.when, known):
                found |= dict.fromkeys(rule.system_packages.get(manager, ()))
    return tuple(found)


def find_manager(environment: Mapping[str, str], which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the package manager to use.

    Raises HostError when this machine has none that the facts know.
    """
    for manager, command in INSTALL.items():
        if manager == "conda" and "CONDA_PREFIX" not in environment:
            continue
        if which(command[0]):
            return manager
    raise HostError(
        f"none of the package managers {', '.join(INSTALL)} is on PATH: "
        "`invoke deps --print --manager NAME` prints what one of them would install"
    )


def is_root() -> bool:
    """Tell whether this process may install for all users; Windows asks for itself."""
    return os.name == "nt" or os.geteuid() == 0


def command(manager: str, names: Iterable[str], *, root: bool) -> tuple[str, ...]:
    """Return the command that installs the packages, through sudo where only root may.

    Raises ConfigError for a manager that the facts do not know.
    """
    if manager not in INSTALL:
        raise ConfigError(f"package manager '{manager}' is unknown; there is {', '.join(INSTALL)}")
    sudo = () if root or manager not in NEEDS_ROOT else ("sudo",)
    return (*sudo, *INSTALL[manager], *names)
