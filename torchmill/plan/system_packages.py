"""The system packages that a release needs, and the command that installs them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchmill.config import distributions
from torchmill.config.matrix import Cell, CellConstraints
from torchmill.config.model import Facts, Host, LinuxDistribution
from torchmill.core.errors import HostError, require_choice
from torchmill.core.files import read_table_beside

PACKAGES = read_table_beside(__file__, "system_packages.toml")  # by what is needed, and by manager
INSTALL_COMMANDS: Mapping[str, list[str]] = PACKAGES["install"]
NEEDS_ROOT = frozenset({"apt", "dnf", "microdnf", "yum", "zypper", "pacman", "apk"})


@dataclass(frozen=True, slots=True)
class PackageSupply:
    """Packages for a host, by whether its distribution is known to have them."""

    recorded: tuple[distributions.RecordedPackage, ...]
    unrecorded: tuple[str, ...]
    choices: Mapping[
        str, str
    ]  # of those that can be installed: the name that was asked for -> the name there

    @property
    def names(self) -> tuple[str, ...]:
        """Return those that can be installed as things are, by name."""
        return tuple(one.name for one in self.recorded if not one.elsewhere)

    @property
    def archives(self) -> tuple[str, ...]:
        """Return the archives that have to be switched on."""
        return tuple(dict.fromkeys(one.enable for one in self.recorded if one.enable))

    def missing_sentence(self, place: str) -> str:
        """Return where to look for the packages that cannot be installed as things are; "" without any."""
        sentences = [
            f"{one.name} comes from {one.elsewhere}" for one in self.recorded if one.elsewhere
        ]
        if self.unrecorded:
            sentences.append(
                f"look for it as {' and '.join(self.unrecorded)} among the packages of {place}"
            )
        return "; ".join(sentences)


def names_of(manager: str | None) -> str:
    """Return the manager whose package names a manager has: that of dnf for yum; "" for None."""
    other: str | None = PACKAGES["names"].get(manager)
    return other or manager or ""


def gcc_packages(manager: str | None) -> Sequence[str]:
    """Return what a manager calls a gcc, {major} standing for its major version."""
    known: Mapping[str, Sequence[str]] = PACKAGES["gcc"]
    return known.get(manager or "") or known.get(names_of(manager)) or ("gcc {major}",)


def gcc_command(manager: str) -> str:
    """Return the command of a gcc that a manager installed, {major} standing for its major version."""
    known: Mapping[str, str] = PACKAGES["gcc_command"]
    return known.get(manager) or known.get(names_of(manager)) or "g++-{major}"


def required_packages(
    facts: Facts, cells: Iterable[Cell], manager: str, provider: str | None
) -> tuple[str, ...]:
    """Return the system packages, by name, that any of the cells needs."""
    rules = (rule for cell in cells for rule in CellConstraints(facts, cell, provider).rules())
    return tuple(
        dict.fromkeys(
            name for rule in rules for name in rule.system_packages.get(names_of(manager), ())
        )
    )


def package_choices(names: Iterable[str]) -> Iterator[str]:
    """Yield packages, each followed by the one that older releases have in its place."""
    for name in names:
        yield name
        if instead := PACKAGES["replacement"].get(name):
            yield instead


def find_supply(
    manager: str, distribution: LinuxDistribution | None, names: Iterable[str]
) -> PackageSupply:
    """Return which of some packages a manager can install on a distribution."""
    if manager not in NEEDS_ROOT:  # conda-forge and Homebrew are the same everywhere
        every = tuple(names)
        return PackageSupply(
            tuple(map(distributions.RecordedPackage, every)),
            (),
            dict(zip(every, every, strict=True)),
        )
    release = distributions.find_release(distribution)
    asked = {name: _recorded(release, name) for name in names}
    found = {name: package for name, package in asked.items() if package is not None}
    choices = {name: package.name for name, package in found.items() if not package.elsewhere}
    return PackageSupply(
        tuple(found.values()), tuple(name for name in asked if name not in found), choices
    )


def _recorded(
    release: distributions.DistributionRelease | None, name: str
) -> distributions.RecordedPackage | None:
    """Return how a release has a package, or the one that it has in its place; None if it is not known to have any."""
    if release is None:
        return None
    instead = PACKAGES["replacement"].get(name)
    return distributions.find_package(release, name) or (
        distributions.find_package(release, instead) if instead else None
    )


def describe_place(manager: str | None, distribution: LinuxDistribution | None) -> str:
    """Return how messages name the place where packages come from: "fedora 42", "apt", "this system"."""
    return str(distribution or manager or "this system")


def find_manager(
    path_has: Callable[[str], bool], distribution: LinuxDistribution | None, *, conda: bool
) -> str:
    """Return the package manager to use, by the programs that are on PATH; `conda`: one of its environments is active.

    The manager of the distribution goes before others, which may be there for other purposes, as apt on Fedora.
    Raises HostError if there is none that the facts know.
    """
    if conda and path_has("conda"):
        return "conda"
    usual = distributions.usual_managers(distribution)
    candidates: Sequence[str] = usual or [
        manager for manager in INSTALL_COMMANDS if manager != "conda"
    ]
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
    """Return the command that installs packages, with `archives` switched on, through sudo if only root may.

    Raises ConfigError for a manager that the facts do not know.
    """
    known = require_choice("package manager", manager, INSTALL_COMMANDS, "unknown-package-manager")
    prefix = ("sudo",) if sudo and manager in NEEDS_ROOT else ()
    return " ".join(
        (*prefix, *INSTALL_COMMANDS[known], *(f"--enablerepo={one}" for one in archives), *names)
    )


def may_install(host: Host, manager: str) -> bool:
    """Tell whether the user of a host is not known to lack the right to install packages."""
    return manager not in NEEDS_ROOT or host.root is not False
