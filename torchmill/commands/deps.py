"""`invoke deps`: the command that installs what a release needs from the system."""

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
    """A command that installs packages, and what to know about it."""

    line: str
    remarks: Sequence[str]


def plan_installation(
    facts: Facts, layout: Layout, tag: str, manager: str, *, run: bool
) -> Installation:
    """Return the command that installs what a release needs from the system of this machine.

    Raises HostError if this machine has no package manager, or if the command is to be run and its user may not;
    ConfigError for a manager that the facts do not know.
    """
    if manager:
        require_choice(
            "package manager", manager, system_packages.INSTALL_COMMANDS, "unknown-package-manager"
        )
    release = selection.selected_or_newest(facts, layout, tag)
    fetched = load_source(layout, release.package, release.tag)
    cells = matrix.buildable_cells(facts, release, native.native_arch())
    here = (
        distribution.measure_distribution(Path("/")) if native.native_system() == "linux" else None
    )
    chosen = manager or find_host_manager(os.environ, here)
    foreign = chosen not in {*distributions.usual_managers(here), "conda", "brew"}
    names = system_packages.required_packages(
        facts, cells, chosen, fetched.provider if fetched else None
    )
    may = distribution.may_use_root(os.environ)
    planned = choose_packages(
        chosen, None if foreign else here, names, sudo=not distribution.is_root()
    )
    if chosen == "apt" and not foreign and not any(find_paths(_APT_LISTS, "*_Packages*")):
        remark = "apt has no lists of packages here yet: run `apt-get update` first"
        planned = replace(planned, remarks=[*planned.remarks, remark])
    if run and may is False and chosen in system_packages.NEEDS_ROOT:
        raise HostError(
            f"only root may install packages here, and there is no sudo: ask whoever administers this machine to run "
            f"`{planned.line.removeprefix('sudo ')}`",
            code="not-root",
        )
    return planned


def choose_packages(
    manager: str, place: LinuxDistribution | None, names: Sequence[str], *, sudo: bool
) -> Installation:
    """Return the command that installs those of some packages that a distribution has.

    Of a distribution that is not recorded, all are named as they usually are.
    """
    supply = system_packages.find_supply(manager, place, names)
    if manager in system_packages.NEEDS_ROOT and distributions.find_recorded_release(place) is None:
        remark = f"these are the usual names for {manager}: whether {place or 'a system'} has them all is not known"
        return Installation(system_packages.install_command(manager, names, sudo=sudo), [remark])
    if not supply.names:
        raise HostError(
            f"no package that {place or manager} is known to have is needed: `invoke doctor` says what is missing",
            code="nothing-to-install",
        )
    line = system_packages.install_command(
        manager, supply.names, sudo=sudo, archives=supply.archives
    )
    missing = supply.missing_sentence(system_packages.describe_place(manager, place))
    return Installation(line, [f"left out: {missing}"] if missing else [])
