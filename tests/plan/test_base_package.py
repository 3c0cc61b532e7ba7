"""The torch that a dependent package is built against: ours, PyPI's, a wheel, or an installed one."""

from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.plans import find_torch_cell, plan_torch
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.core.errors import TorchmillError
from torchmill.host.description import load_host
from torchmill.host.installed_packages import EnvironmentPackage
from torchmill.plan.base_package import base_pip_requirement, base_version
from torchmill.plan.build_options import Options
from torchmill.plan.plan import Plan

PYPI = Options(torch="PyPI")
PACKAGES = Path("/env/lib/python3.12/site-packages")


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


def plan_against(shipped: Facts, options: Options) -> Plan:
    """Return the plan of torchvision for CUDA 12.1 and Python 3.12 against another torch."""
    host = load_host(ROOT / "tests/golden/hosts/rtx3090.toml")
    return plan_torch(shipped, "vision-3.12-cu121", "v2.4.1", host, options=options)


def torch_or_code(shipped: Facts, options: Options) -> str | None:
    """Return the torch that such a plan requires, or the code of the error that refuses it."""
    try:
        return plan_against(shipped, options).wheel.torch
    except TorchmillError as error:
        return error.code


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch-2.4.1+cu121-cp312-cp312-linux_x86_64.whl", "torch==2.4.1+cu121"),
        ("torch-2.4.1+own-cp312-cp312-linux_x86_64.whl", "torch==2.4.1+own"),
        ("torch-2.4.1+cpu-cp312-cp312-linux_x86_64.whl", "torch-cuda-mismatch"),
        ("torch-2.4.1+cu118-cp312-cp312-linux_x86_64.whl", "torch-cuda-mismatch"),
        ("torch-2.5.0+cu121-cp312-cp312-linux_x86_64.whl", "torch-of-another-release"),
        ("torch-2.4.1+cu121-cp311-cp311-linux_x86_64.whl", "no-such-wheel"),
        ("torch-2.4.1+cu121-cp312-cp312-linux_aarch64.whl", "no-such-wheel"),
        ("torch-2.4.1-cp312-cp312-macosx_11_0_x86_64.whl", "no-such-wheel"),
        ("torchvision-0.19.1-cp312-cp312-linux_x86_64.whl", "no-such-wheel"),
        ("torch.whl", "no-such-wheel"),
    ],
)
def test_a_wheel_must_be_of_that_torch_for_that_python_and_cuda(
    shipped: Facts, name: str, expected: str
) -> None:
    assert torch_or_code(shipped, Options(torch=f"/wheels/{name}")) == expected


def with_installed(
    version: str, tag: str = "cp312-cp312-linux_x86_64", cuda: str | None = None
) -> Options:
    """Return options that name an environment in which torch is installed once."""
    dist_info = PACKAGES / f"torch-{version}.dist-info"
    return Options(torch="/env", torch_installed=(EnvironmentPackage(dist_info, (tag,), cuda),))


def test_an_installed_torch_is_borrowed(shipped: Facts) -> None:
    plan = plan_against(shipped, with_installed("2.4.1a0+own"))
    assert plan.wheel.torch == "torch==2.4.1a0+own"
    assert plan.wheel.torch_folder == PACKAGES
    assert not any(requirement.startswith("torch") for requirement in plan.requirements)


def test_an_environment_without_torch_or_with_two_is_refused(shipped: Facts) -> None:
    assert torch_or_code(shipped, Options(torch="/env")) == "no-such-wheel"
    installed = [
        EnvironmentPackage(PACKAGES / f"torch-{version}.dist-info", ("cp312-cp312-linux_x86_64",))
        for version in ("2.4.0", "2.4.1")
    ]
    two = Options(torch="/env", torch_installed=tuple(installed))
    with refused("no-such-wheel") as caught:
        plan_against(shipped, two)
    assert str(caught.value) == (
        "--torch /env: torch is installed there 2 times: name an environment that has it once"
    )


@pytest.mark.parametrize("tag", ["cp312-cp312-linux_aarch64", "cp311-cp311-linux_x86_64"])
def test_an_environment_of_another_python_or_machine_is_refused(shipped: Facts, tag: str) -> None:
    assert torch_or_code(shipped, with_installed("2.4.1", tag)) == "no-such-wheel"


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        ("2.4.1", "12.1", "torch==2.4.1"),
        ("2.4.1", "11.8", "torch-cuda-mismatch"),
        ("2.4.1", "", "torch-cuda-mismatch"),
        ("2.4.1a0+nv25.06", None, "torch==2.4.1a0+nv25.06"),
        ("2.4.1+custom", None, "torch==2.4.1+custom"),
        ("2.4.one", None, "no-such-wheel"),
        ("2.5.0", "12.1", "torch-of-another-release"),
    ],
)
def test_an_installed_torch_must_be_of_that_release_and_cuda(
    shipped: Facts, version: str, cuda: str | None, expected: str
) -> None:
    assert torch_or_code(shipped, with_installed(version, cuda=cuda)) == expected
