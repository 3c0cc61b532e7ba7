"""Recognise distributions by the files of real systems."""

from pathlib import Path

import pytest

from tests.support.machines import file, only, program
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.host import distribution

UBUNTU = 'NAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=jammy\n'
ROCKY = 'NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n'
JETSON = (
    "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, "
    "DATE: Wed Jan 8 01:49:37\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (UBUNTU, LinuxDistribution("ubuntu", "22.04", ("debian",))),
        (ROCKY, LinuxDistribution("rocky", "9.4", ("rhel", "centos", "fedora"))),
        ("ID=arch\nBUILD_ID=rolling\n", LinuxDistribution("arch")),
        ("# a comment\nNAME='un closed\nID=Odd\nnot an assignment\n", LinuxDistribution("odd")),
        ("NAME=Nothing\n", None),
    ],
)
def test_a_distribution_is_read_from_its_file(
    tmp_path: Path, text: str, expected: LinuxDistribution | None
) -> None:
    file(tmp_path / "etc/os-release", text)
    assert distribution.measure_distribution(tmp_path) == expected


def test_the_file_in_usr_is_read_if_there_is_none_in_etc(tmp_path: Path) -> None:
    assert distribution.measure_distribution(tmp_path) is None
    file(tmp_path / "usr/lib/os-release", "ID=clear\n")
    assert distribution.measure_distribution(tmp_path) == LinuxDistribution("clear")


def test_a_jetson_is_recognised_by_its_file_or_package(tmp_path: Path) -> None:
    file(tmp_path / "etc/os-release", UBUNTU)
    file(tmp_path / "etc/nv_tegra_release", JETSON)
    measured = distribution.measure_distribution(tmp_path)
    assert measured == LinuxDistribution("ubuntu", "22.04", ("debian",), "36.4.3")
    assert (measured.jetpack, str(measured)) == (6, "ubuntu 22.04 (JetPack 6)")
    (tmp_path / "etc/nv_tegra_release").unlink()
    packages = (
        "Package: zlib\nVersion: 1\n\n"
        "Package: nvidia-l4t-core\nStatus: install ok\nVersion: 35.4.1-2023\n"
    )
    file(tmp_path / "var/lib/dpkg/status", packages)
    assert distribution.measure_distribution(tmp_path) == LinuxDistribution(
        "ubuntu", "22.04", ("debian",)
    )
    file(tmp_path / "proc/device-tree/compatible", "nvidia,p3737-0000\0nvidia,tegra234\0")
    measured = distribution.measure_distribution(tmp_path)
    assert measured is not None
    assert (measured.l4t, measured.jetpack) == ("35.4.1", 5)


def test_package_managers_are_those_on_path(tmp_path: Path) -> None:
    program(tmp_path, "conda")
    program(tmp_path, "apt-get")
    assert distribution.installed_managers({"PATH": str(tmp_path)}) == ("apt", "conda")


def test_without_sudo_only_root_may_install(tmp_path: Path) -> None:
    assert distribution.may_use_root(only(tmp_path)) is distribution.is_root()
