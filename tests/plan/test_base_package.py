"""The torch that a dependent package is built against: ours, PyPI's, a wheel, or an installed one."""

from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.plans import find_torch_cell, plan_torch
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.core.errors import TorchmillError
from torchmill.host.description import load_host
from torchmill.plan.base_package import base_pip_requirement, base_version, find_installed
from torchmill.plan.build_options import Options
from torchmill.plan.options import format_options, parse_options
from torchmill.plan.plan import Plan

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


def plan_against(shipped: Facts, path: Path) -> Plan:
    """Return the plan of torchvision for CUDA 12.1 and Python 3.12 against what a path has."""
    host = load_host(ROOT / "tests/golden/hosts/rtx3090.toml")
    options = parse_options([f"--torch={path}"], "test")
    return plan_torch(shipped, "vision-3.12-cu121", "v2.4.1", host, options=options)


def torch_or_code(shipped: Facts, path: Path) -> str | None:
    """Return the torch that such a plan requires, or the code of the error that refuses the path."""
    try:
        return plan_against(shipped, path).wheel.torch
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
        ("torchvision-0.19.1-cp312-cp312-linux_x86_64.whl", "no-such-wheel"),
        ("torch.whl", "no-such-wheel"),
    ],
)
def test_a_wheel_must_be_of_that_torch_for_that_python_and_cuda(
    shipped: Facts, name: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).touch()
    assert torch_or_code(shipped, tmp_path / name) == expected


def install_torch(folder: Path, version: str, tag: str, arch: str = "x86_64") -> Path:
    """Write an installed torch into a folder of packages; return its .dist-info."""
    info = folder / f"torch-{version}.dist-info"
    info.mkdir(parents=True)
    (folder / "torch").mkdir(exist_ok=True)
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}-linux_{arch}\n")
    return info


@pytest.mark.parametrize("place", ["env", "env/lib/python3.12/site-packages"])
def test_an_installed_torch_is_borrowed(shipped: Facts, place: str, tmp_path: Path) -> None:
    packages = tmp_path / "env/lib/python3.12/site-packages"
    info = install_torch(packages, "2.4.1a0+own", "cp312-cp312")
    plan = plan_against(shipped, tmp_path / place)
    assert plan.wheel.torch == "torch==2.4.1a0+own"
    assert plan.wheel.torch_folder == packages
    assert not any(requirement.startswith("torch") for requirement in plan.requirements)
    assert find_installed("torch", tmp_path / place) == info
    options = parse_options([f"--torch={tmp_path / place}"], "nox")
    assert parse_options(format_options(options), "nox") == options


def test_an_environment_without_torch_is_refused(shipped: Facts, tmp_path: Path) -> None:
    assert torch_or_code(shipped, tmp_path) == "no-such-wheel"
    install_torch(tmp_path, "2.4.1", "cp312-cp312")
    (tmp_path / "torch").rmdir()  # as an "editable" install
    assert torch_or_code(shipped, tmp_path) == "no-such-wheel"


def test_an_environment_of_another_python_or_machine_or_with_two_torch_is_refused(
    shipped: Facts, tmp_path: Path
) -> None:
    install_torch(tmp_path / "board", "2.4.1", "cp312-cp312", "aarch64")
    assert torch_or_code(shipped, tmp_path / "board") == "no-such-wheel"
    install_torch(tmp_path / "older", "2.4.1", "cp311-cp311")
    assert torch_or_code(shipped, tmp_path / "older") == "no-such-wheel"
    install_torch(tmp_path / "two", "2.4.1", "cp312-cp312")
    install_torch(tmp_path / "two", "2.4.0", "cp312-cp312")
    assert torch_or_code(shipped, tmp_path / "two") == "no-such-wheel"


@pytest.mark.parametrize(
    ("version", "line", "expected"),
    [
        ("2.4.1", "cuda: Optional[str] = '12.1'", "torch==2.4.1"),
        ("2.4.1", "cuda = '11.8'", "torch-cuda-mismatch"),
        ("2.4.1", "cuda: Optional[str] = None", "torch-cuda-mismatch"),
        ("2.4.1a0+nv25.06", "hip = None", "torch==2.4.1a0+nv25.06"),
        ("2.4.1+custom", "", "torch==2.4.1+custom"),
        ("2.4.one", "", "no-such-wheel"),
        ("2.5.0", "cuda = '12.1'", "torch-of-another-release"),
    ],
)
def test_the_version_module_of_an_installed_torch_tells_its_cuda(
    shipped: Facts, version: str, line: str, expected: str, tmp_path: Path
) -> None:
    install_torch(tmp_path, version, "cp312-cp312")
    (tmp_path / "torch/version.py").write_text(f"__version__ = 'x'\n{line}\n")
    assert torch_or_code(shipped, tmp_path) == expected
