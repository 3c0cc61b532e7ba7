"""The torch that a dependent package is built against."""

import pytest

from tests.support.plans import find_torch_cell
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.plan.base_package import base_pip_requirement, base_version
from torchmill.plan.build_options import Options

PYPI = Options(torch="PyPI")


def version_for(
    shipped: Facts,
    identifier: str,
    options: Options,
    arch: str = "x86_64",
    tag: str = "v1.13.1",
) -> str | None:
    cell = find_torch_cell(shipped, identifier, tag, arch)
    return base_version(shipped, cell, options)


def test_the_wheel_on_pypi_has_no_label(shipped: Facts) -> None:
    assert version_for(shipped, "vision-3.10-cu117", PYPI) == "1.13.1"
    assert version_for(shipped, "vision-3.10-cpu", PYPI) == "1.13.1"
    assert version_for(shipped, "vision-3.10-cu117", Options()) == "1.13.1+cu117"


def test_torch_is_built_against_no_other_package(shipped: Facts) -> None:
    assert version_for(shipped, "wheel-3.10-cu117", Options()) is None


def test_another_cuda_than_that_of_the_wheel_on_pypi_is_refused(shipped: Facts) -> None:
    with refused("torch-cuda-mismatch") as caught:
        version_for(shipped, "vision-3.10-cu118", PYPI)
    assert str(caught.value) == (
        "--torch PyPI: torch 1.13.1 there is built for cu117, and not for cu118: build for that, "
        "or omit --torch"
    )


def test_of_other_machines_the_wheel_on_pypi_is_not_known(shipped: Facts) -> None:
    assert version_for(shipped, "vision-3.10-cu118", PYPI, "aarch64") == "1.13.1"


@pytest.mark.parametrize(
    ("identifier", "tag"), [("vision-3.12-cu124", "v2.5.1"), ("vision-3.12-cu126", "v2.11.0")]
)
def test_the_wheel_on_pypi_for_arm_is_of_one_cuda_or_none(
    shipped: Facts, identifier: str, tag: str
) -> None:
    with refused("torch-cuda-mismatch"):
        version_for(shipped, identifier, PYPI, "aarch64", tag)
    assert version_for(shipped, "vision-3.12-cu130", PYPI, "aarch64", "v2.11.0") == "2.11.0"


@pytest.mark.parametrize(
    ("version", "torch", "requirement"),
    [
        ("1.13.1", "PyPI", "torch===1.13.1"),  # to pip, "==" allows any label
        ("1.13.1+cu117", None, "torch==1.13.1+cu117"),
        ("1.13.1+x", "/a/b.whl", "/a/b.whl"),
    ],
)
def test_pip_installs_the_very_wheel(version: str, torch: str | None, requirement: str) -> None:
    assert base_pip_requirement("torch", version, Options(torch=torch)) == requirement
