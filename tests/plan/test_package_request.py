"""Packages by their names: the torch that they are built against, and the cells that follow."""

from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.host.description import load_host
from torchmill.host.installed_packages import EnvironmentPackage
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.cell_choice import BuildQuestion
from torchmill.plan.package_request import (
    GivenTorch,
    PackageBuilds,
    choose_package_builds,
    named_packages,
    split_torch,
    torch_of_path,
    torch_on_pypi,
)

HOST = load_host(ROOT / "tests" / "golden" / "hosts" / "debian-12.toml")


def options_for_installed(version: str, tag: str, cuda: str | None) -> Options:
    dist_info = Path("/venv/lib/site-packages", f"torch-{version}.dist-info")
    package = EnvironmentPackage(dist_info, (tag,), cuda)
    return Options(torch="/venv", torch_installed=(package,))


def builds_of(
    facts: Facts, question: BuildQuestion, torch: GivenTorch | None = None
) -> PackageBuilds:
    packages = list(named_packages(facts, question.names).values())
    return choose_package_builds(
        facts, packages, question, host=HOST, arch=HOST.arch, torch=torch, selected=None
    )


@pytest.mark.parametrize(
    ("spelling", "package"),
    [
        ("flash-attn", "flash-attn"),
        ("Flash_Attn", "flash-attn"),
        ("torch.scatter", "torch-scatter"),
        ("torch", "torch"),
    ],
)
def test_a_name_may_be_spelled_as_pip_takes_it(shipped: Facts, spelling: str, package: str) -> None:
    assert named_packages(shipped, [spelling])[spelling].name == package


@pytest.mark.parametrize("name", ["flash-3.12-cu130", "wheel-3.1*-cpu", "flash", "detectron2"])
def test_other_names_are_no_packages(shipped: Facts, name: str) -> None:
    assert named_packages(shipped, [name]) == {}


def test_the_torch_of_an_environment_decides_on_python_and_toolkit(shipped: Facts) -> None:
    options = options_for_installed("2.12.1", "cp312-cp312-manylinux_2_28_x86_64", "13.0")
    torch = torch_of_path(shipped, options)
    question = BuildQuestion(names=["torch-scatter", "causal-conv1d"])
    builds = builds_of(shipped, question, torch)
    assert builds.names == ["scatter-3.12-cu130", "conv1d-3.12-cu130"]
    assert (builds.release and builds.release.version) == "2.12.1"
    assert str(torch) == "torch 2.12.1 in /venv (cu130, Python 3.12)"


def test_a_python_without_a_gil_is_another_python(shipped: Facts) -> None:
    options = options_for_installed("2.12.1", "cp313-cp313t-manylinux_2_28_x86_64", "13.0")
    assert torch_of_path(shipped, options).python == "3.13t"


def test_what_the_user_names_wins_over_the_torch(shipped: Facts) -> None:
    torch = torch_of_path(
        shipped, options_for_installed("2.12.1", "cp312-cp312-linux_x86_64", "13.0")
    )
    question = BuildQuestion(names=["torch-scatter"], pythons=["3.11"], variants=["cpu"])
    assert builds_of(shipped, question, torch).names == ["scatter-3.11-cpu"]


@pytest.mark.parametrize(
    ("version", "tag"),
    [("not a version", "cp312-cp312-linux_x86_64"), ("2.12.1", "py3-none-any")],
)
def test_a_torch_that_cannot_be_read_is_refused(shipped: Facts, version: str, tag: str) -> None:
    with refused("no-such-wheel"):
        torch_of_path(shipped, options_for_installed(version, tag, None))


def test_a_release_without_facts_is_refused_by_its_name(shipped: Facts) -> None:
    with refused("unknown-release") as caught:
        torch_of_path(shipped, options_for_installed("99.1.0", "cp312-cp312-linux_x86_64", None))
    assert "99.1.0" in str(caught.value)


@pytest.mark.parametrize(
    ("torch", "tag", "expected"),
    [
        (None, "v2.11.0", (None, "v2.11.0")),
        ("PyPI", "", ("PyPI", "")),
        ("2.13.0", "", ("PyPI", "v2.13.0")),
        ("v2.13.0", "v2.13.0", ("PyPI", "v2.13.0")),
        ("2.13.0", "2.13.0", ("PyPI", "v2.13.0")),
        ("torch==2.13", "", ("PyPI", "v2.13.0")),
        ("torch-2.13.0-cp312-cp312-linux_x86_64.whl", "", None),
        ("2", "", None),
        ("2.13.0rc1", "", None),
    ],
)
def test_a_torch_may_be_named_by_its_release(
    torch: str | None, tag: str, expected: tuple[str | None, str] | None
) -> None:
    assert split_torch(torch, tag) == (expected or (torch, tag))


def test_a_torch_of_another_release_than_the_tag_is_refused() -> None:
    with refused("torch-of-another-release"):
        split_torch("2.13.0", "v2.12.0")


def test_of_pypi_that_torch_is_taken_which_a_package_was_built_against(shipped: Facts) -> None:
    flash = shipped.packages["flash-attn"]
    torch = torch_on_pypi(shipped, [flash], "x86_64", "3.12", None)
    assert (torch.option, torch.release.version, torch.variant) == (PYPI, "2.11.0", "cu130")


def test_a_selected_release_wins_over_one_that_was_tried(shipped: Facts) -> None:
    selected = find_release(shipped, "torch", "2.13.0")
    flash = shipped.packages["flash-attn"]
    assert torch_on_pypi(shipped, [flash], "x86_64", "3.12", selected).release == selected


def test_packages_that_no_torch_has_in_common_are_refused(shipped: Facts) -> None:
    flash = shipped.packages["flash-attn"]
    with refused("no-partner-release") as caught:
        torch_on_pypi(shipped, [flash], "x86_64", "3.6", None)
    assert "Python 3.6" in str(caught.value)


def test_torch_is_built_if_it_is_named_and_then_the_others_against_it(shipped: Facts) -> None:
    question = BuildQuestion(names=["torch-scatter", "torch"], pythons=["3.11"], variants=["cpu"])
    builds = builds_of(shipped, question)
    assert builds.names == ["wheel-3.11-cpu", "scatter-3.11-cpu"]
    assert builds.torch is None


def test_torch_is_built_if_it_is_named_although_another_is_given(shipped: Facts) -> None:
    torch = torch_of_path(
        shipped, options_for_installed("2.12.1", "cp312-cp312-linux_x86_64", "13.0")
    )
    question = BuildQuestion(names=["torch"], pythons=["3.11"], variants=["cpu"])
    assert builds_of(shipped, question, torch).names == ["wheel-3.11-cpu"]
