"""The C library of the machine against the one that the official wheels promise."""

import pytest

from torchmill.plan.doctor import system


@pytest.mark.parametrize(
    ("tags", "arch", "glibc"),
    [
        (["manylinux1_x86_64", "macosx_11_0_arm64"], "x86_64", "2.17"),
        (["manylinux2014_aarch64", "manylinux_2_28_x86_64"], "x86_64", "2.28"),
        (["manylinux2014_aarch64", "manylinux_2_28_x86_64"], "aarch64", "2.17"),
        (["manylinux_2_28_aarch64", "manylinux_2_35_aarch64"], "aarch64", "2.28"),
        (["win_amd64", "linux_x86_64"], "x86_64", None),
        ([], "x86_64", None),
    ],
)
def test_the_official_tags_promise_a_glibc(tags: list[str], arch: str, glibc: str | None) -> None:
    assert system.official_glibc(dict.fromkeys(tags), arch) == glibc
