"""Complete the measurement of this machine by what the facts ask about it.

A measurement (host/) knows no facts. These name system packages and parts of toolkits, and the
doctor needs to know which of them the machine has.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.core.errors import HostError
from torchmill.fetch.source import apt_archives
from torchmill.host.cuda_toolkits import lacking_toolkit_parts
from torchmill.host.host import Host
from torchmill.host.programs import make_runner
from torchmill.host.system_state import installed_packages
from torchmill.plan import system_packages


def survey_host(facts: Facts, host: Host, environ: Mapping[str, str]) -> Host:
    """Return a measured host with further values, which the facts ask for.

    These are the parts that its toolkits lack, the distributions whose archives it trusts, its
    package manager, and the versions of all system packages that a rule names ("" for one that is
    not installed). On a machine without a package manager, and if it does not answer, the packages
    stay as they were in `host`.
    """
    lacking_parts: dict[str, str] = {}
    for version, folder in host.toolkits.homes.items():
        parts = lacking_toolkit_parts(Path(folder), version, facts.toolkit_parts)
        if parts:
            lacking_parts[version] = ", ".join(part.name for part in parts)
    archives = apt_archives.trusted_distributions(Path("/etc/apt"))
    host = replace(
        host,
        packages=replace(host.packages, archives=archives),
        toolkits=replace(host.toolkits, lacking_parts=lacking_parts),
    )
    try:
        manager = find_host_manager(environ, host.platform.distribution)
    except HostError:
        return host
    host = replace(host, packages=replace(host.packages, manager=manager))
    run = make_runner(environ)
    versions = installed_packages(manager, environ, run)
    if run.unanswered:
        # A package manager that does not answer does not prove that packages are missing.
        unanswered = {**host.programs.unanswered, **run.unanswered}
        return replace(host, programs=replace(host.programs, unanswered=unanswered))
    names = sorted(_packages_of_rules(facts, manager))
    installed = {name: versions.get(name, "") for name in names}
    return replace(host, packages=replace(host.packages, installed=installed))


def _packages_of_rules(facts: Facts, manager: str) -> set[str]:
    """Return the system packages that any rule names for a package manager, with alternatives."""
    packages: set[str] = set()
    for package in facts.packages.values():
        for rule in package.rules:
            names = rule.system_packages.get(system_packages.naming_manager(manager), ())
            packages.update(system_packages.package_choices(names))
    return packages


def find_host_manager(environ: Mapping[str, str], distribution: LinuxDistribution | None) -> str:
    """Return the package manager of this machine. Raises HostError if it has none."""

    def path_has(program: str) -> bool:
        return shutil.which(program, path=environ.get("PATH")) is not None

    in_conda = bool(environ.get("CONDA_PREFIX"))  # an empty value names no environment
    return system_packages.find_manager(path_has, distribution, conda=in_conda)
