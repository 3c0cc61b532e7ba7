"""Recorded wheels: what their names say, and which go with a torch and a machine."""

from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.package_wheels import WheelFiles, WheelSource
from torchmill.plan import recorded_wheels
from torchmill.plan.recorded_wheels import RecordedWheel

RELEASES = "https://github.com/Dao-AILab/flash-attention/releases/download"
FLASH = f"{RELEASES}/v2.8.3.post1/flash_attn-2.8.3"


def only_wheel(name: str, **fields: object) -> RecordedWheel:
    """Return a recorded wheel of this name, with what is recorded beside it."""
    group = replace(WheelFiles((name,)), **fields)  # type: ignore[arg-type]
    place = WheelSource("here", "{file}", "test", "listed", wheels=(group,))
    facts = Facts({}, {}, (), {}, None, package_wheels={"spam": (place,)})  # type: ignore[arg-type]
    (wheel,) = recorded_wheels.recorded_wheels(facts, "spam")
    return wheel


@pytest.mark.parametrize(
    ("name", "torch", "version", "variant", "has_new_abi"),
    [
        (
            "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
            "==2.8.*",
            "2.8.0",
            "cu12",
            True,
        ),
        (
            "flash_attn-2.5.8+cu118torch1.12cxx11abiFALSE-cp310-cp310-linux_x86_64.whl",
            "==1.12.*",
            "1.12.0",
            "cu118",
            False,
        ),
        (
            "torch_scatter-2.1.2+pt28cu128-cp312-cp312-linux_x86_64.whl",
            "==2.8.*",
            "2.8.0",
            "cu128",
            None,
        ),
        ("a-1+pt210.1cpu-py3-none-any.whl", None, "", "cpu", None),
        ("a-1+pt210cpu-cp312-cp312-win_amd64.whl", "==2.10.*", "2.10.0", "cpu", None),
        ("natten-0.21.0+torch270cu128-py3-none-any.whl", "==2.7.0", "2.7.0", "cu128", None),
        ("natten-0.21.1+torch2100cu130-py3-none-any.whl", "==2.10.0", "2.10.0", "cu130", None),
        ("xformers-0.0.35+cu130-py39-none-win_amd64.whl", None, "", "cu130", None),
        ("a-1-py3-none-any.whl", None, "", "", None),
    ],
)
def test_names_say_torch_and_toolkit_in_many_ways(
    name: str, torch: str | None, version: str, variant: str, has_new_abi: bool | None
) -> None:
    wheel = only_wheel(name)
    assert wheel.torch == (None if torch is None else SpecifierSet(torch))
    assert (wheel.torch_version, wheel.variant, wheel.has_new_abi) == (
        version,
        variant,
        has_new_abi,
    )


def test_what_is_recorded_beside_a_name_goes_first() -> None:
    wheel = only_wheel(
        "a-1+cu123torch2.1-py3-none-any.whl", variant="cu12", torch=SpecifierSet("==2.1.2")
    )
    assert (str(wheel.torch), wheel.torch_version, wheel.variant) == ("==2.1.2", "2.1.2", "cu12")
    assert wheel.says_its_torch
    assert not only_wheel("a-1+cu123-py3-none-any.whl").says_its_torch


@pytest.mark.parametrize(
    ("tags", "fitting"),
    [
        ("cp312-cp312", {"3.12"}),
        ("cp313-cp313t", {"3.13t"}),
        ("cp37-cp37m", {"3.7"}),
        ("cp39-abi3", {"3.9", "3.12"}),
        ("py3-none", {"3.7", "3.9", "3.12", "3.13t"}),
        ("py39-none", {"3.9", "3.12", "3.13t"}),
        ("py2-none", set()),
        ("py2.py3-none", {"3.7", "3.9", "3.12", "3.13t"}),
        ("cp312-none", {"3.12"}),
        ("pp310-pypy310_pp73", set()),
    ],
)
def test_tags_name_pythons(tags: str, fitting: set[str]) -> None:
    wheel = only_wheel(f"a-1-{tags}-win_amd64.whl")
    pythons = ("3.7", "3.9", "3.12", "3.13t")
    assert {python for python in pythons if recorded_wheels.fits_python(wheel, python)} == fitting


def test_a_name_that_is_no_wheels_is_refused() -> None:
    with refused("facts-invalid"):
        only_wheel("a-x-py3-none-any.whl")


@pytest.mark.parametrize(
    ("variant", "fitting"),
    [
        ("cu12", {"12.6", "12.8"}),
        ("cu128", {"12.8"}),
        ("cpu", {None}),
        ("cu11", {"11.8"}),
        ("cu92", {"9.2"}),
    ],
)
def test_a_variant_is_that_of_a_torch(shipped: Facts, variant: str, fitting: set[str]) -> None:
    wheel = only_wheel("a-1-py3-none-any.whl", variant=variant)
    versions = (None, "9.2", "11.8", "12.6", "12.8", "13.0")
    assert {
        version
        for version in versions
        if recorded_wheels.fits_variant(wheel, shipped.toolkit(version))
    } == fitting


@pytest.mark.parametrize(
    ("torch", "arch", "fitting"),
    [
        ("2.5.1", "x86_64", {"FALSE"}),
        ("2.6.0", "x86_64", {"FALSE", "TRUE"}),  # not all of its wheels were read
        ("2.7.1", "x86_64", {"TRUE"}),
        ("2.6.0", "aarch64", {"TRUE"}),
    ],
)
def test_the_abi_must_be_that_of_the_official_torch(
    shipped: Facts, torch: str, arch: str, fitting: set[str]
) -> None:
    minor = torch.rpartition(".")[0]
    assert {
        word
        for word in ("FALSE", "TRUE")
        if recorded_wheels.fits_torch(
            shipped, only_wheel(f"a-1+torch{minor}cxx11abi{word}-py3-none-any.whl"), torch, arch
        )
    } == fitting


@pytest.mark.parametrize(
    ("package", "torch", "cuda", "python", "arguments"),
    [
        (
            "flash-attn",
            "2.8.0",
            "12.8",
            "3.12",
            f"{FLASH}.post1+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
        ),
        ("flash-attn", "2.15.0", "13.0", "3.12", None),
        ("xformers", "2.9.1", "12.8", "3.12", "xformers==0.0.33.post2"),
        ("xformers", "2.9.1", "12.8", "3.13t", None),
        ("xformers", "2.10.0", "12.8", "3.12", "xformers==0.0.35"),
        ("xformers", "2.15.0", "13.0", "3.12", None),
        (
            "torch-scatter",
            "2.8.0",
            None,
            "3.13",
            "torch-scatter==2.1.2+pt28cpu -f https://data.pyg.org/whl/torch-2.8.0+cpu.html",
        ),
        # Those for this torch have no code for GPUs. 0.0.3, of which no torch is known, is no
        # better one.
        ("torchcodec", "2.9.1", "12.8", "3.12", None),
        ("torchcodec", "2.9.1", None, "3.12", "torchcodec==0.9.1"),
    ],
)
def test_the_wheel_for_a_torch_is_found(  # noqa: PLR0917 - a cell, and its wheel
    shipped: Facts,
    package: str,
    torch: str,
    cuda: str | None,
    python: str,
    arguments: str | None,
) -> None:
    wheels = recorded_wheels.wheels_for_torch(shipped, package, torch, "x86_64")
    wheel = recorded_wheels.best_wheel(wheels, python, shipped.toolkit(cuda))
    assert (wheel.arguments if wheel else None) == arguments


def test_every_recorded_name_is_that_of_a_wheel(shipped: Facts) -> None:
    for package in shipped.package_wheels:
        for wheel in recorded_wheels.recorded_wheels(shipped, package):
            project = shipped.packages[package].source.pypi
            assert wheel.package == (project or package).lower().replace("_", "-")
            assert wheel.arguments
