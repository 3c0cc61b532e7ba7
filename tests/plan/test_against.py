"""What a dependent package is built against."""

from tests.support.refusals import refused
from torchmill.config import cell_lookup, matrix
from torchmill.config.matrix import Cell
from torchmill.config.model import Facts, Options
from torchmill.plan import base_requirement

PYPI = Options(torch="PyPI")


def cell(facts: Facts, identifier: str, arch: str = "x86_64") -> Cell:
    return cell_lookup.find_cell(facts, identifier, arch, matrix.find_release(facts, "torch", "v1.13.1"))


def test_the_wheel_on_pypi_has_no_label(shipped: Facts) -> None:
    assert base_requirement.base_version(shipped, cell(shipped, "vision-3.10-cu117"), PYPI) == "1.13.1"
    assert base_requirement.base_version(shipped, cell(shipped, "vision-3.10-cpu"), PYPI) == "1.13.1"
    assert (
        base_requirement.base_version(shipped, cell(shipped, "vision-3.10-cu117"), Options())
        == "1.13.1+cu117"
    )
    assert base_requirement.base_version(shipped, cell(shipped, "wheel-3.10-cu117"), Options()) is None


def test_another_cuda_than_that_of_the_wheel_on_pypi_is_refused(shipped: Facts) -> None:
    with refused("pypi-torch-cuda-mismatch") as told:
        base_requirement.base_version(shipped, cell(shipped, "vision-3.10-cu118"), PYPI)
    assert str(told.value) == (
        "--torch PyPI: torch 1.13.1 on PyPI is built with CUDA 11.7, but vision-3.10-cu118 is for CUDA 11.8: "
        "build vision-3.10-cu117, or omit --torch"
    )


def test_of_other_machines_the_wheel_on_pypi_is_not_known(shipped: Facts) -> None:
    assert (
        base_requirement.base_version(shipped, cell(shipped, "vision-3.10-cu118", "aarch64"), PYPI)
        == "1.13.1"
    )


def test_pip_gets_the_very_wheel() -> None:
    assert (
        base_requirement.base_pip_requirement("torch", "1.13.1", PYPI) == "torch===1.13.1"
    )  # "==" means any label, too
    assert base_requirement.base_pip_requirement("torch", "1.13.1+cu117", Options()) == "torch==1.13.1+cu117"
    assert base_requirement.base_pip_requirement("torch", "1.13.1+x", Options(torch="/a/b.whl")) == "/a/b.whl"
