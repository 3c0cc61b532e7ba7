"""What `invoke deps` installs on which distribution."""

import pytest

from tests.support.refusals import refused
from torchmill.commands.deps import choose_packages
from torchmill.config.linux_distribution import LinuxDistribution

NAMES = {
    "apt": ("build-essential", "git", "ccache", "libopenblas-openmp-dev"),
    "dnf": ("gcc-c++", "git", "ccache", "openblas-devel"),
    "zypper": ("gcc-c++", "git", "ccache"),
    "conda": ("cxx-compiler", "git"),
}


@pytest.mark.parametrize(
    ("manager", "target", "command", "remark"),
    [
        (
            "apt",
            LinuxDistribution("debian", "12"),
            "sudo apt-get install --yes --no-install-recommends build-essential git ccache libopenblas-openmp-dev",
            "",
        ),
        (
            "apt",
            LinuxDistribution("ubuntu", "18.04"),
            "sudo apt-get install --yes --no-install-recommends git libopenblas-dev",
            "left out: look for it as build-essential and ccache among the packages of ubuntu 18.04",
        ),
        (
            "dnf",
            LinuxDistribution("rocky", "9.4"),
            "sudo dnf install --assumeyes --enablerepo=crb gcc-c++ git openblas-devel",
            "left out: ccache comes from EPEL",
        ),
        (
            "yum",
            LinuxDistribution("amzn", "2"),
            "sudo yum install --assumeyes gcc-c++ git",
            "left out: look for it as ccache and openblas-devel among the packages of amzn 2",
        ),
        (
            "zypper",
            LinuxDistribution("sles", "15.6"),
            "sudo zypper --non-interactive install gcc-c++ git",
            "left out: look for it as ccache among the packages of sles 15.6",
        ),
        (
            "apt",
            LinuxDistribution("kali", "2026.3", ("debian",)),
            "sudo apt-get install --yes --no-install-recommends build-essential git ccache libopenblas-openmp-dev",
            "these are the usual names for apt: whether kali 2026.3 has them all is not known",
        ),
        (
            "dnf",
            None,
            "sudo dnf install --assumeyes gcc-c++ git ccache openblas-devel",
            "these are the usual names for dnf: whether a system has them all is not known",
        ),
        ("conda", None, "conda install --yes --channel conda-forge cxx-compiler git", ""),
    ],
)
def test_only_packages_that_a_distribution_has_are_installed(
    manager: str, target: LinuxDistribution | None, command: str, remark: str
) -> None:
    names = NAMES["dnf" if manager == "yum" else manager]
    installation = choose_packages(manager, target, names, sudo=True)
    assert installation.command == command
    assert "".join(installation.remarks) == remark


def test_nothing_to_install_is_a_refusal() -> None:
    with refused("nothing-to-install"):
        choose_packages("dnf", LinuxDistribution("rocky", "9.4"), ["ccache"], sudo=True)
