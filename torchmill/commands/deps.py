"""`invoke deps`: the command that installs the system packages of a release."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchmill.cell.host_survey import find_host_manager
from torchmill.config import distributions, selection
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.core.errors import HostError, require_choice
from torchmill.core.lenient_paths import find_paths
from torchmill.core.paths import Layout
from torchmill.fetch.source.source_dir import load_source
from torchmill.host import distribution, native
from torchmill.plan import matrix, system_packages

_APT_LISTS = Path("/var/lib/apt/lists")


@dataclass(frozen=True, slots=True)
class Installation:
    """A command that installs packages, and remarks on it."""

    command: str
    remarks: Sequence[str]


def plan_installation(
    facts: Facts, layout: Layout, tag: str, manager: str, *, run: bool
) -> Installation:
    """Return the command that installs the packages that a release needs from the system.

    `tag` and `manager` are options of the command line: "" for the selected or else the newest
    release, and for the package manager of this machine. `run` says that the caller will run the
    command; here it is only returned. Raises HostError if this machine has no package manager, if
    its distribution has none of the packages, or if the user may not `run` the command; ConfigError
    for a manager that the facts do not know.
    """
    own_distribution = None
    if native.native_system() == "linux":
        own_distribution = distribution.measure_distribution(Path("/"))
    chosen = _choose_manager(manager, own_distribution)
    release = selection.selected_or_newest(facts, layout, tag)
    source = load_source(layout, release.package, release.tag)
    provider = source.provider if source else None
    cells = matrix.buildable_cells(facts, release, native.native_arch())
    names = system_packages.required_packages(facts, cells, chosen, provider)
    # With a manager that this distribution does not have, such as apt on Fedora, the command is for
    # another machine, whose distribution is not known.
    usual_managers = {*distributions.usual_managers(own_distribution), "conda", "brew"}
    is_for_this_machine = chosen in usual_managers
    target = own_distribution if is_for_this_machine else None
    # sudo is written even if this machine has none: the command may be for its administrator.
    installation = choose_packages(chosen, target, names, sudo=not distribution.is_root())
    has_lists = any(find_paths(_APT_LISTS, "*_Packages*"))
    if chosen == "apt" and is_for_this_machine and not has_lists:
        remark = "apt has no lists of packages here yet: run `apt-get update` first"
        installation = replace(installation, remarks=[*installation.remarks, remark])
    if run and chosen in system_packages.NEEDS_ROOT:
        _require_root(installation)
    return installation


def _choose_manager(manager: str, own_distribution: LinuxDistribution | None) -> str:
    """Return the manager that the user names, or else that of this machine."""
    if not manager:
        return find_host_manager(os.environ, own_distribution)
    return require_choice(
        "package manager", manager, system_packages.INSTALL_COMMANDS, "unknown-package-manager"
    )


def _require_root(installation: Installation) -> None:
    """Raise HostError if this user cannot become root."""
    # None: it is not known before the command runs whether sudo accepts this user.
    if distribution.may_use_root(os.environ) is False:
        raise HostError(
            "only root may install packages here, and there is no sudo: ask whoever administers "
            f"this machine to run `{installation.command.removeprefix('sudo ')}`",
            code="not-root",
        )


def choose_packages(
    manager: str, target: LinuxDistribution | None, names: Sequence[str], *, sudo: bool
) -> Installation:
    """Return the command that installs the packages in `names` that a distribution has.

    `target` is the distribution, None if it is unknown. If the facts do not record its packages,
    the command has all names. Packages of conda and Homebrew do not depend on the distribution.
    Raises HostError if the distribution has none of them.
    """
    depends_on_distribution = manager in system_packages.NEEDS_ROOT
    if depends_on_distribution and distributions.find_recorded_release(target) is None:
        command = system_packages.install_command(manager, names, sudo=sudo)
        remark = (
            f"these are the usual names for {manager}: whether {target or 'a system'} has them all "
            "is not known"
        )
        return Installation(command, [remark])
    supply = system_packages.find_supply(manager, target, names)
    if not supply.names:
        raise HostError(
            f"{target or manager} is not known to have any of the packages that this release "
            "needs: `invoke doctor` says what is missing",
            code="nothing-to-install",
        )
    command = system_packages.install_command(
        manager, supply.names, sudo=sudo, archives=supply.archives
    )
    remarks: list[str] = []
    missing = supply.missing_sentence(system_packages.describe_place(manager, target))
    if missing:
        remarks.append(f"left out: {missing}")
    return Installation(command, remarks)
