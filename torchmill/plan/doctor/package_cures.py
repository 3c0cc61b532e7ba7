"""How to install system packages that a build lacks, as the host and its user can do it.

An item is a program or library that each package manager has under another name: "compiler" is
build-essential for apt, and gcc-c++ for dnf. The table `item` of system_packages.toml lists them.
"""

from collections.abc import Sequence

from torchmill.config import distributions
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import selecting_tag
from torchmill.host.host import Host
from torchmill.plan import system_packages
from torchmill.plan.cell import Cell
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.system_packages import PACKAGES


def host_manager(host: Host) -> str | None:
    """Return a host's package manager: the one that it names, else the usual one of its system.

    None if neither is known.
    """
    if host.packages.manager:
        return host.packages.manager
    usual = distributions.usual_managers(host.platform.distribution)
    return usual[0] if usual else None


def package_cure(host: Host, names: Sequence[str]) -> str:
    """Return how to install packages: a command if that is known to work, else a sentence."""
    manager = host_manager(host)
    if manager is None:
        return f"install {' '.join(names)}"
    supply = system_packages.find_supply(manager, host.platform.distribution, names)
    place = system_packages.describe_place(manager, host.platform.distribution)
    missing = supply.missing_sentence(place)
    if missing:
        return missing
    if system_packages.may_install(host, manager):
        return host_install_command(host, manager, supply.names, supply.archives)
    line = system_packages.install_command(
        manager, supply.names, sudo=False, archives=supply.archives
    )
    return ask_administrator(line)


def ask_administrator(line: str) -> str:
    """Return a command that needs root as a request to the administrator."""
    return f"ask whoever administers this machine to run `{line}`"


def host_install_command(
    host: Host, manager: str, names: Sequence[str], archives: Sequence[str] = ()
) -> str:
    """Return the command that installs packages on a host whose user may install them.

    It begins with sudo if the host has sudo. On a host without sudo, a user who may install is
    root. If nothing is known of root and sudo, the host is taken to have sudo, as most have.
    `archives` are switched on for this command.
    """
    knows_root = host.complete or bool(host.packages.may_use_root)
    has_sudo = "sudo" in host.programs.paths or not knows_root
    return system_packages.install_command(manager, names, sudo=has_sudo, archives=archives)


def board_package_cure(host: Host, name: str) -> str:
    """Return how to install a package of NVIDIA's archive for Jetson on a board.

    The archive is set up on all boards; a list of its packages is not recorded.
    """
    if system_packages.may_install(host, "apt"):
        return host_install_command(host, "apt", [name])
    return ask_administrator(system_packages.install_command("apt", [name], sudo=False))


def item_cure(
    host: Host, item: str, facts: Facts, cells: Sequence[Cell], provider: str | None = None
) -> str:
    """Return how to install an item, such as "git", on a host that lacks it.

    That is `invoke deps` if it installs the item's package, and if not, the command of the package
    manager, or a sentence. `invoke deps` installs the packages that the rules name for `cells` with
    sources of `provider`: "debian", "git"; None if that is not known.
    """
    manager = host_manager(host)
    package = PACKAGES["item"][item].get(system_packages.naming_manager(manager))
    if package is None or manager is None:
        return f"install {'a C++ compiler' if item == 'compiler' else item}"
    supply = system_packages.find_supply(manager, host.platform.distribution, [package])
    if supply.names and system_packages.may_install(host, manager):
        required = system_packages.required_packages(facts, cells, manager, provider)
        if package in required:
            return "invoke deps"
    return package_cure(host, [package])


def item_cure_for_build(context: CheckContext, item: str) -> str:
    """Return how to install an item that one build lacks; `invoke deps` names the build's tag."""
    provider = context.source.provider if context.source else None
    cure = item_cure(context.host, item, context.facts, [context.cell], provider)
    if cure == "invoke deps":
        tag = selecting_tag(context.facts, context.cell.release)
        return f"{cure} --tag {tag}"
    return cure
