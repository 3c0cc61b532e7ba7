"""The system packages that a release needs, and the command that installs them.

A manager is a program that installs packages: "apt", "dnf", "conda". A few managers take the
package names of another one, as yum takes those of dnf.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchmill.config import distributions
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.core.errors import HostError, require_choice
from torchmill.core.package_data import read_table_beside
from torchmill.host.host import Host
from torchmill.plan.cell import Cell
from torchmill.plan.rules import CellConstraints

PACKAGES = read_table_beside(__file__, "system_packages.toml")  # by purpose, and by manager
INSTALL_COMMANDS: Mapping[str, list[str]] = PACKAGES["install"]
# Managers of the system's own packages. conda and brew install into folders of the user.
NEEDS_ROOT = frozenset({"apt", "dnf", "microdnf", "yum", "zypper", "pacman", "apk"})


@dataclass(frozen=True, slots=True)
class PackageSupply:
    """Packages for a host, by whether its distribution is known to have them."""

    recorded: tuple[distributions.RecordedPackage, ...]  # those that it is known to have
    unrecorded: tuple[str, ...]  # the requested names of all others
    # Requested name -> the name that the distribution has for it; packages that can be installed.
    choices: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the packages that can be installed as the system is set up."""
        return tuple(package.name for package in self.recorded if not package.elsewhere)

    @property
    def archives(self) -> tuple[str, ...]:
        """Return the archives that have to be switched on for these packages."""
        archives = [package.enable for package in self.recorded if package.enable]
        return tuple(dict.fromkeys(archives))

    def missing_sentence(self, place: str) -> str:
        """Return where to look for the packages that cannot be installed; "" if there are none.

        `place` is the name of the distribution or manager for people, as `describe_place` has it.
        """
        clauses = [
            f"{package.name} comes from {package.elsewhere}"
            for package in self.recorded
            if package.elsewhere
        ]
        if self.unrecorded:
            names = " and ".join(self.unrecorded)
            clauses.append(f"look for it as {names} among the packages of {place}")
        return "; ".join(clauses)


def naming_manager(manager: str | None) -> str:
    """Return the manager that a manager takes its package names from: "dnf" for yum and for dnf.

    "" if there is no manager.
    """
    if manager is None:
        return ""
    names: Mapping[str, str] = PACKAGES["names"]
    return names.get(manager, manager)


def gcc_packages(manager: str | None) -> Sequence[str]:
    """Return the names of the packages of a gcc; "{major}" in them stands for its major version."""
    packages: Mapping[str, Sequence[str]] = PACKAGES["gcc"]
    return packages.get(manager or "") or packages.get(naming_manager(manager)) or ("gcc {major}",)


def gcc_command(manager: str) -> str:
    """Return the g++ of a gcc that a manager installed; "{major}" stands for its major version."""
    commands: Mapping[str, str] = PACKAGES["gcc_command"]
    return commands.get(manager) or commands.get(naming_manager(manager)) or "g++-{major}"


def required_packages(
    facts: Facts, cells: Iterable[Cell], manager: str, provider: str | None
) -> tuple[str, ...]:
    """Return the names of the system packages that any of some cells needs, each once.

    `provider` is the source's: a source of Debian's leaves out third-party libraries, which
    then have to come from packages.
    """
    required: dict[str, None] = {}  # an ordered set
    for cell in cells:
        for rule in CellConstraints(facts, cell, provider).rules():
            required |= dict.fromkeys(rule.system_packages.get(naming_manager(manager), ()))
    return tuple(required)


def package_choices(names: Iterable[str]) -> Iterator[str]:
    """Yield the names of packages, each followed by the name that older distributions have."""
    for name in names:
        yield name
        replacement = PACKAGES["replacement"].get(name)
        if replacement:
            yield replacement


def find_supply(
    manager: str, distribution: LinuxDistribution | None, names: Iterable[str]
) -> PackageSupply:
    """Return which of the named packages a manager can install on a distribution.

    Of the system's packages none is recorded if the distribution is not.
    """
    recorded: list[distributions.RecordedPackage] = []
    unrecorded: list[str] = []
    choices: dict[str, str] = {}
    release = distributions.find_recorded_release(distribution)
    for name in dict.fromkeys(names):
        package: distributions.RecordedPackage | None
        if manager in NEEDS_ROOT:
            package = _find_recorded(release, name)
        else:
            # The packages of conda-forge and Homebrew are the same on all systems.
            package = distributions.RecordedPackage(name)
        if package is None:
            unrecorded.append(name)
            continue
        recorded.append(package)
        if not package.elsewhere:
            choices[name] = package.name
    return PackageSupply(tuple(recorded), tuple(unrecorded), choices)


def _find_recorded(
    release: distributions.DistributionRelease | None, name: str
) -> distributions.RecordedPackage | None:
    """Return the package that a distribution's release has of a name, or of the older name for it.

    None if the release is known to have neither, or `release` is None.
    """
    if release is None:
        return None
    package = distributions.find_package(release, name)
    replacement = PACKAGES["replacement"].get(name)
    if package is None and replacement:
        package = distributions.find_package(release, replacement)
    return package


def describe_place(manager: str | None, distribution: LinuxDistribution | None) -> str:
    """Return the name of the origin of packages in messages: "fedora 42", "apt", "this system"."""
    return str(distribution or manager or "this system")


def find_manager(
    path_has: Callable[[str], bool], distribution: LinuxDistribution | None, *, conda: bool
) -> str:
    """Return the package manager to use, by the programs that are on PATH.

    The manager of the distribution goes before others, which may be there for another purpose, as
    apt is on Fedora. `conda` tells that an environment of conda is active; conda then goes first.
    Raises HostError if there is no manager that the facts know.
    """
    if conda and path_has("conda"):
        return "conda"
    usual = distributions.usual_managers(distribution)
    candidates: Sequence[str] = usual
    if not usual:
        # A distribution of which no manager is known: any that is there will do.
        candidates = [manager for manager in INSTALL_COMMANDS if manager != "conda"]
    for manager in candidates:
        if path_has(INSTALL_COMMANDS[manager][0]):
            return manager
    if usual:
        raise HostError(
            f"{distribution} usually has the package manager {usual[0]}, which is not on PATH: "
            f"`invoke deps --print --manager {usual[0]}` prints what it would install",
            code="no-package-manager",
        )
    raise HostError(
        f"none of the package managers {', '.join(INSTALL_COMMANDS)} is on PATH: "
        "`invoke deps --print --manager NAME` prints what one of them would install",
        code="no-package-manager",
    )


def install_command(
    manager: str, names: Iterable[str], *, sudo: bool, archives: Sequence[str] = ()
) -> str:
    """Return the command that installs packages.

    It begins with sudo if `sudo` is true and only root may install. `archives` are switched on for
    it. Raises ConfigError for a manager that the facts do not know.
    """
    manager = require_choice(
        "package manager", manager, INSTALL_COMMANDS, "unknown-package-manager"
    )
    words = ["sudo"] if sudo and manager in NEEDS_ROOT else []
    words.extend(INSTALL_COMMANDS[manager])
    words.extend(f"--enablerepo={archive}" for archive in archives)
    words.extend(names)
    return " ".join(words)


def may_install(host: Host, manager: str) -> bool:
    """Tell whether a host's user may install packages, as far as is known."""
    return manager not in NEEDS_ROOT or host.packages.may_use_root is not False
