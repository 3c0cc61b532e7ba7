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

    line: str
    remarks: Sequence[str]


def plan_installation(
    facts: Facts, layout: Layout, tag: str, manager: str, *, run: bool
) -> Installation:
    """Return the command that installs the packages that a release needs from the system.

    Raises HostError if this machine has no package manager, or if the command is to `run` and the
    user may not; ConfigError for a manager that the facts do not know.
    """
    if manager:
        require_choice(
            "package manager", manager, system_packages.INSTALL_COMMANDS, "unknown-package-manager"
        )
    release = selection.selected_or_newest(facts, layout, tag)
    source = load_source(layout, release.package, release.tag)
    cells = matrix.buildable_cells(facts, release, native.native_arch())
    own_distribution = None
    if native.native_system() == "linux":
        own_distribution = distribution.measure_distribution(Path("/"))
    chosen = manager or find_host_manager(os.environ, own_distribution)
    # apt on Fedora: the command is for another machine, of which nothing is known.
    usual = {*distributions.usual_managers(own_distribution), "conda", "brew"}
    is_foreign = chosen not in usual
    provider = source.provider if source else None
    names = system_packages.required_packages(facts, cells, chosen, provider)
    target = None if is_foreign else own_distribution
    installation = choose_packages(chosen, target, names, sudo=not distribution.is_root())
    has_lists = any(find_paths(_APT_LISTS, "*_Packages*"))
    if chosen == "apt" and not is_foreign and not has_lists:
        remark = "apt has no lists of packages here yet: run `apt-get update` first"
        installation = replace(installation, remarks=[*installation.remarks, remark])
    may_use_root = distribution.may_use_root(os.environ)
    if run and may_use_root is False and chosen in system_packages.NEEDS_ROOT:
        raise HostError(
            "only root may install packages here, and there is no sudo: ask whoever administers "
            f"this machine to run `{installation.line.removeprefix('sudo ')}`",
            code="not-root",
        )
    return installation


def choose_packages(
    manager: str, place: LinuxDistribution | None, names: Sequence[str], *, sudo: bool
) -> Installation:
    """Return the command that installs those of some packages that a distribution has.

    If nothing is recorded of the distribution, all are named as they usually are.
    """
    supply = system_packages.find_supply(manager, place, names)
    needs_root = manager in system_packages.NEEDS_ROOT
    if needs_root and distributions.find_recorded_release(place) is None:
        remark = (
            f"these are the usual names for {manager}: whether {place or 'a system'} has them all "
            "is not known"
        )
        return Installation(system_packages.install_command(manager, names, sudo=sudo), [remark])
    if not supply.names:
        raise HostError(
            f"no package that {place or manager} is known to have is needed: `invoke doctor` says "
            "what is missing",
            code="nothing-to-install",
        )
    line = system_packages.install_command(
        manager, supply.names, sudo=sudo, archives=supply.archives
    )
    missing = supply.missing_sentence(system_packages.describe_place(manager, place))
    return Installation(line, [f"left out: {missing}"] if missing else [])
