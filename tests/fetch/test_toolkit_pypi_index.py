"""Which wheels a machine can use."""

import pytest

from torchmill.fetch.package_index import IndexFile
from torchmill.fetch.toolkit.pypi import platform_runs, usable_wheels


@pytest.mark.parametrize(
    ("platform", "fits"),
    [
        ("manylinux1_x86_64", True),
        ("manylinux2014_x86_64", True),
        ("manylinux_2_27_x86_64", True),
        ("manylinux_2_28_x86_64", False),
        ("linux_x86_64", True),
        ("any", True),
        ("manylinux2014_aarch64", False),
        ("musllinux_1_2_x86_64", False),
        ("win_amd64", False),
    ],
)
def test_a_wheel_is_for_a_machine_and_its_c_library(platform: str, fits: bool) -> None:
    assert platform_runs(platform, "x86_64", (2, 27)) is fits


def file(version: str, tag: str = "manylinux2014_x86_64", *, yanked: bool = False) -> IndexFile:
    return IndexFile(f"a-{version}-py3-none-{tag}.whl", "", None, None, yanked)


def test_the_best_wheel_comes_last() -> None:
    files = [
        file("2.10"),
        file("2.9"),
        file("2.10-2"),
        file("3.0rc1"),
        file("2.11", yanked=True),
        file("2.12", "manylinux2014_aarch64"),
        IndexFile("a-2.13.tar.gz", "", None, None, yanked=False),
    ]
    found = usable_wheels("a", files, "x86_64", (2, 17))
    assert [(str(wheel.version), wheel.build) for wheel in found] == [("2.9", 0), ("2.10", 0), ("2.10", 2)]
