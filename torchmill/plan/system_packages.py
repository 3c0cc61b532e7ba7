"""The system packages that a release needs, and the command that installs them."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping

from torchmill.config.matrix import Cell, CellConstraints, buildable_cells
from torchmill.config.model import Facts, Release
from torchmill.core.errors import HostError, require_choice
from torchmill.core.files import read_table_beside
from torchmill.host.native import native_arch

PACKAGES = read_table_beside(__file__, "system_packages.toml")  # by what is needed, and by manager
INSTALL_COMMANDS: Mapping[str, list[str]] = PACKAGES["install"]
NEEDS_ROOT = frozenset({"apt", "dnf"})


def install_command_for_release(facts: Facts, release: Release, manager: str, provider: str | None) -> str:
    """Return the command that installs what a release needs on this machine; who provided its source counts.

    Raises ConfigError for a manager that the facts do not know.
    """
    names = required_packages(facts, buildable_cells(facts, release, native_arch()), manager, provider)
    root = os.name == "nt" or os.geteuid() == 0  # Windows asks for itself
    return install_command(manager, names, root=root)


def required_packages(facts: Facts, cells: Iterable[Cell], manager: str, provider: str | None) -> tuple[str, ...]:
    """Return the system packages, by name, that any of the cells needs."""
    rules = (rule for cell in cells for rule in CellConstraints(facts, cell, provider).rules())
    return tuple(dict.fromkeys(name for rule in rules for name in rule.system_packages.get(manager, ())))


def find_manager(environment: Mapping[str, str], which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the package manager to use. Raises HostError when this machine has none that the facts know."""
    for manager, command in INSTALL_COMMANDS.items():
        if which(command[0]) and (manager != "conda" or "CONDA_PREFIX" in environment):
            return manager
    raise HostError(
        f"none of the package managers {', '.join(INSTALL_COMMANDS)} is on PATH: "
        "`invoke deps --print --manager NAME` prints what one of them would install",
        code="no-package-manager",
    )


def install_command(manager: str, names: Iterable[str], *, root: bool) -> str:
    """Return the command that installs the packages, through sudo where only root may.

    Raises ConfigError for a manager that the facts do not know.
    """
    known = require_choice("package manager", manager, INSTALL_COMMANDS, "unknown-package-manager")
    sudo = () if root or manager not in NEEDS_ROOT else ("sudo",)
    return " ".join((*sudo, *INSTALL_COMMANDS[known], *names))
