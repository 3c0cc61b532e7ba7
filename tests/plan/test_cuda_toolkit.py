"""Which toolkit compiles a cell, and what is said of one that cannot."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.config import cell_lookup, matrix
from torchmill.config.matrix import Cell
from torchmill.config.model import Facts, Host
from torchmill.plan import cuda_toolkit


def cell(facts: Facts, identifier: str, tag: str = "v1.13.1") -> Cell:
    return cell_lookup.find_cell(facts, identifier, "x86_64", matrix.find_release(facts, "torch", tag))


def chosen(facts: Facts, identifier: str, asked: str | None, tag: str = "v1.13.1") -> str | None:
    return cuda_toolkit.choose_toolkit(facts, cell(facts, identifier, tag), asked, identifier)


def test_a_cell_takes_the_toolkit_of_its_variant(shipped: Facts) -> None:
    assert chosen(shipped, "wheel-3.10-cu117", None) == "11.7"
    assert chosen(shipped, "wheel-3.10-cu117", "11.7") == "11.7"
    assert chosen(shipped, "wheel-3.10-cpu", None) is None


def test_a_newer_one_of_the_same_major_version_stands_for_it_on_request(shipped: Facts) -> None:
    assert chosen(shipped, "wheel-3.10-cu117", "11.8") == "11.8"
    assert chosen(shipped, "vision-3.10-cu117", "11.8") == "11.8"


@pytest.mark.parametrize("asked", ["11.6", "10.2", "12.1"])
def test_an_older_one_or_another_major_version_does_not(shipped: Facts, asked: str) -> None:
    with refused("toolkit-cannot-replace"):
        chosen(shipped, "wheel-3.10-cu117", asked)


def test_what_is_no_toolkit_is_refused_with_what_is_near(shipped: Facts) -> None:
    with refused("unknown-toolkit") as caught:
        chosen(shipped, "wheel-3.10-cu117", "11.88")
    assert "choose from 11.8" in str(caught.value)


def test_a_build_without_cuda_has_no_toolkit_to_choose(shipped: Facts) -> None:
    with refused("toolkit-without-cuda"):
        chosen(shipped, "wheel-3.10-cpu", "11.8")


def test_a_release_that_does_not_build_with_it_says_so(shipped: Facts) -> None:
    with refused("toolkit-impossible") as caught:
        chosen(shipped, "wheel-3.12-cu130", "13.3", "v2.13.0")
    assert "arch_id" in str(caught.value)


def test_installed_ones_that_could_stand_in_are_named(shipped: Facts) -> None:
    wanted = cell(shipped, "wheel-3.10-cu117")
    assert cuda_toolkit.usable_toolkits(shipped, wanted, ["13.0", "11.8", "11.6", "11.7"]) == ["11.8"]
    assert cuda_toolkit.usable_toolkits(shipped, wanted, []) == []


def test_a_named_folder_that_is_not_used_is_told(tmp_path: Path) -> None:
    ours, other = tmp_path / "cuda-11.8", tmp_path / "cuda-12.4"
    for folder in (ours, other):
        folder.mkdir()
    (tmp_path / "cuda").symlink_to(ours)
    host = Host("x86_64", "linux", 4, 2**34, toolkits={"11.8": str(ours), "12.4": str(other)})

    def told(folder: Path, version: str | None = "11.8") -> str | None:
        return cuda_toolkit.describe_passed_over({"CUDA_HOME": str(folder)}, host, version)

    assert told(tmp_path / "cuda") is None  # it is the same folder
    assert told(other, None) is None  # a build without CUDA
    assert cuda_toolkit.describe_passed_over({}, host, "11.8") is None
    assert told(other) == (
        f"CUDA_HOME={other} holds CUDA 12.4; the build needs CUDA 11.8, which it takes from {ours}"
    )
    assert told(tmp_path) == (
        f"CUDA_HOME={tmp_path} holds no toolkit that can be used; the build needs CUDA 11.8, "
        f"which it takes from {ours}"
    )
    assert told(other, "11.7") == (
        f"CUDA_HOME={other} holds CUDA 12.4; the build needs CUDA 11.7, which it finds nowhere"
    )
    whole = replace(host, completed={"11.8": f"{tmp_path}, completed with nvidia-cufft-cu11 10.9.0.58"})
    named = {"CUDA_HOME": str(tmp_path)}
    assert cuda_toolkit.describe_passed_over(named, whole, "11.8") is None, (
        "its own files are in the one that is used"
    )
