"""A gcc that both a toolkit and a release of torch take, and how to install it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from packaging.specifiers import SpecifierSet

from torchmill.config import distributions
from torchmill.config.distributions import DistributionRelease
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.rule import When
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_within
from torchmill.plan import system_packages
from torchmill.plan.host_compiler import variables_for_compiler

MAJORS = range(4, 17)  # the major versions of gcc that there are, and that some toolkit takes
_MOST_TOOLKITS = 2 / 3
_OLDEST_GXX = 10  # of conda-forge's package gxx: https://anaconda.org/conda-forge/gxx/files


@dataclass(frozen=True, slots=True)
class GccChoice:
    """A gcc to take, and how to get it and to use it."""

    major: int
    install: str  # "sudo apt-get install g++-10"
    exports: str  # "export CC=gcc-10 CXX=g++-10 …"


def parse_distribution(text: str | None) -> LinuxDistribution | None:
    """Return the distribution in the value of a fact, "ubuntu 20.04"; None without a value.

    Whether the distribution is recorded is not looked up.
    """
    if not text:
        return None
    name, _, version = text.partition(" ")
    return LinuxDistribution(name, version)


def takes_major(bounds: SpecifierSet, major: int) -> bool:
    """Tell whether bounds of versions allow a gcc of a major version: its first or its last."""
    return is_within(bounds, f"{major}.0") or is_within(bounds, f"{major}.99")


def fitting_majors(facts: Facts, toolkit: Toolkit | None, torch: str | None) -> list[int]:
    """Return the major versions of gcc that a toolkit and a release of torch take, newest first.

    None of either puts no bounds.
    """
    bounds = [toolkit.gcc] if toolkit else []
    bounds += torch_gcc_bounds(facts, torch, toolkit.version if toolkit else None)
    majors: list[int] = []
    for major in reversed(MAJORS):
        if all(takes_major(bound, major) for bound in bounds):
            majors.append(major)
    return majors


def widely_taken_majors(facts: Facts) -> list[int]:
    """Return the major versions of gcc that two thirds of the toolkits take, newest first."""
    majors: list[int] = []
    for major in reversed(MAJORS):
        taking = [toolkit for toolkit in facts.toolkits if takes_major(toolkit.gcc, major)]
        if facts.toolkits and len(taking) >= _MOST_TOOLKITS * len(facts.toolkits):
            majors.append(major)
    return majors


def torch_gcc_bounds(
    facts: Facts, torch: str | None, cuda: str | None = None
) -> list[SpecifierSet]:
    """Return the bounds of gcc that the rules put on code with a torch release's headers.

    All of them hold at once; there are none if `torch` is None. `cuda` is the toolkit that compiles
    the code. If it is None, that is not known, and rules on some toolkits alone are left out.
    """
    package = facts.packages.get("torch")
    if torch is None or package is None:
        return []
    bounds: list[SpecifierSet] = []
    for rule in package.rules:
        when = rule.when
        is_of_toolkit = when.cuda is None or is_within(when.cuda, cuda)
        # Other conditions are about what a build of torch itself contains.
        other = replace(when, release=None, cuda=None)
        is_of_release = is_within(when.release, torch)
        if "gcc" in rule.needs and other == When() and is_of_toolkit and is_of_release:
            bounds.append(rule.needs["gcc"])
    return bounds


def choose_gcc(
    majors: Sequence[int], distribution: LinuxDistribution | None, *, conda: bool
) -> GccChoice | None:
    """Return the gcc to take of some that fit, the newest first; None of none.

    One that the distribution's archives have goes first. Where they are known to have none, it is
    conda-forge's; None if that has none either. Where the distribution is not known, it is
    conda-forge's for a user of `conda`, else the newest, as apt has it.
    """
    if not majors:
        return None
    release = distributions.find_recorded_release(distribution)
    if release is not None:
        for major in majors:
            if release.has_gcc(major):
                return _recorded_choice(release, major)
            if release.gcc == str(major):
                return _usual_choice(release, major)
    conda_majors = [major for major in majors if major >= _OLDEST_GXX]
    if conda_majors and (conda or release is not None):
        # Its compilers have long names, which the environment puts into CC and CXX.
        exports = 'export CUDAHOSTCXX=$CXX NVCC_PREPEND_FLAGS="-ccbin $CXX"'
        major = conda_majors[0]
        install = f"conda install -c conda-forge gxx={major} && conda activate $CONDA_PREFIX"
        return GccChoice(major, install, exports)
    if release is not None:
        return None
    return GccChoice(
        majors[0], f"sudo apt-get install g++-{majors[0]}", _exports(f"g++-{majors[0]}")
    )


def _recorded_choice(release: DistributionRelease, major: int) -> GccChoice:
    """Return a gcc that a release of a distribution has beside its usual one."""
    names = release.compiler_packages or tuple(system_packages.gcc_packages(release.manager))
    packages = [name.format(major=major) for name in names]
    command = release.compiler_command or system_packages.gcc_command(release.manager)
    install = system_packages.install_command(release.manager, packages, sudo=True)
    return GccChoice(major, install, _exports(command.format(major=major)))


def _usual_choice(release: DistributionRelease, major: int) -> GccChoice:
    """Return the usual gcc of a release of a distribution."""
    manager = system_packages.naming_manager(release.manager)
    packages = [system_packages.PACKAGES["item"]["compiler"][manager]]
    install = system_packages.install_command(release.manager, packages, sudo=True)
    return GccChoice(major, install, _exports("g++"))


def _exports(command: str) -> str:
    """Return the command by which a shell's builds take a g++, nvcc's host compiler included."""
    variables = variables_for_compiler(command, cuda=True)
    assignments = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"export {assignments} NVCC_PREPEND_FLAGS='-ccbin {command}'"
