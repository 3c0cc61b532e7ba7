"""What a package says of itself, for cells that this machine could not build."""

import asyncio
import json
import platform
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
from press_support import written_wheels

from tests.support import tiny_plans
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.paths import Layout
from torchmill.deliver.conda import recipe
from torchmill.deliver.conda.recipe import CondaRecipe
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.plan import cell_lookup
from torchmill.plan.cell import Cell
from torchmill.wheel import finished_wheel

TOLD = {
    "cudnn": "8.0.5",
    "requirements": ["numpy==1.19.5"],
    "toolkit": "11.0",
    "tag": "v1.8.0",
}


def cell(facts: Facts, tag: str, identifier: str, arch: str) -> Cell:
    return cell_lookup.find_cell(facts, identifier, arch, find_release(facts, "torch", tag))


def composed(
    facts: Facts,
    one: Cell,
    wheel: Path,
    told: Mapping[str, object] | None = None,
    **environ: str,
) -> CondaRecipe:
    if told is not None:
        whole = {**told, "sha256": finished_wheel.read_wheel(wheel).sha256}
        wheel.with_name(f"{wheel.name}.json").write_text(json.dumps(whole))
    return recipe.compose_recipe(
        facts, one, finished_wheel.read_wheel(wheel), ["GLIBCXX_3.4.29"], environ
    )


def test_the_package_of_the_recipe_is_called_as_there(shipped: Facts, tmp_path: Path) -> None:
    """R3: torch 1.8.0 with CUDA 11.0 and cuDNN 8.0.5 for Python 3.8."""
    tag = "cp38-cp38-manylinux_2_31_x86_64"
    wheel = written_wheels.made(
        tmp_path, "torch", "1.8.0+cu110", tag, requires=["typing-extensions", "numpy"]
    )
    found = composed(shipped, cell(shipped, "v1.8.0", "wheel-3.8-cu110", "x86_64"), wheel, TOLD)
    assert found.file == "pytorch-1.8.0-py3.8_cuda11.0.221_cudnn8.0.5_0.conda"
    assert (found.subdir, found.number) == ("linux-64", 0)
    assert found.depends == (
        "__cuda >=11.0",
        "__glibc >=2.31,<3.0.a0",
        "numpy >=1.19,<2.0a0",
        "python >=3.8,<3.9.0a0",
        "typing_extensions",
    )
    assert found.constrains == (
        "cuda-version >=11.0,<12.0a0",
        "libstdcxx >=11.1",
        "libstdcxx-ng >=11.1",
        "python_abi 3.8.* *_cp38",
    )
    assert found.run_exports == {"weak": ("pytorch >=1.8.0,<1.9.0a0",)}
    assert found.imports == ("torch",)
    assert found.stamp.isoformat() == "2021-03-04T00:00:00+00:00"
    origin = found.about["extra"]["torchmill"]
    assert (origin["wheel"], origin["tag"]) == (wheel.name, "v1.8.0")
    assert found.about["dev_url"] == "https://github.com/pytorch/pytorch"


@pytest.mark.parametrize(
    ("driver", "spec", "build"),
    [
        ("", "pytorch", "py3.8_cpu_0"),  # a machine without a GPU
        ("10.2", "pytorch", "py3.8_cpu_0"),
        ("11.0", "pytorch", "py3.8_cuda11.1"),  # of the toolkits that fit the newest
        ("12.4", "pytorch", "py3.8_cuda11.1"),
        ("12.4", "pytorch[build='*cuda11.0*']", "py3.8_cuda11.0"),
        ("12.4", "pytorch * *cpu*", "py3.8_cpu_0"),
        ("12.4", "torchvision", "py3.8_cuda11.1"),
        ("", "torchvision", "py3.8_cpu_0"),
        ("", "pytorch * *cuda*", "refused"),
        ("", "pytorch-cpu", "py3.8_cpu_0"),
        ("12.4", "pytorch-cpu", "py3.8_cpu_0"),
        ("12.4", "pytorch-gpu", "py3.8_cuda11.1"),
        ("", "pytorch-gpu", "refused"),
        ("", "libtorch", "cpu_0"),
        ("12.4", "libtorch", "cuda11.1"),
    ],
)
def test_a_machine_gets_cuda_by_its_driver_alone(
    shipped: Facts, tmp_path: Path, driver: str, spec: str, build: str
) -> None:
    """A channel's index with three builds of torch 1.8.0 and of torchvision, solved by conda's own code."""
    rattler = pytest.importorskip("rattler", reason="needs py-rattler")
    records: dict[str, dict[str, object]] = {"linux-64": {}, "noarch": {}}
    for variant, session in product(("cpu", "cu110", "cu111"), ("wheel", "vision")):
        torch = session == "wheel"
        name, version = ("torch", "1.8.0") if torch else ("torchvision", "0.9.0")
        requires = [] if torch else [f"torch==1.8.0+{variant}"]
        wheel = written_wheels.made(
            tmp_path, name, f"{version}+{variant}", "cp38-cp38-linux_x86_64", requires=requires
        )
        told: dict[str, object] = {
            "requirements": [],
            "cudnn": "8.0.5" if variant != "cpu" else None,
        }
        one = cell(shipped, "v1.8.0", f"{session}-3.8-{variant}", "x86_64")
        composed(shipped, one, wheel, told)
        layout = Layout(tmp_path, tmp_path)
        found = VerifiedWheel(layout, shipped, one, tiny_plans.plan(name, version), wheel, told)
        for each in recipe.compose_recipes(
            found, finished_wheel.read_wheel(wheel), (), ProductOptions(libtorch=torch)
        ):
            depends = [spec for spec in each.depends if not spec.startswith("python ")]
            index = {
                "name": each.name,
                "version": each.version,
                "build": each.build,
                "build_number": each.number,
            }
            more = {"depends": depends, "subdir": each.subdir, "sha256": "0" * 64}
            records[each.subdir][each.file] = {**index, **more, **each.index}
    for subdir, there in records.items():
        (tmp_path / subdir).mkdir()
        (tmp_path / subdir / "repodata.json").write_text(
            json.dumps({"packages": {}, "packages.conda": there})
        )
    own = (rattler.PackageName("__cuda"), rattler.package.build_string.BuildString("0"))
    known = (
        [rattler.GenericVirtualPackage(own[0], rattler.Version(driver), own[1])] if driver else []
    )
    channels, platforms = [rattler.Channel(tmp_path.as_uri())], ["linux-64", "noarch"]

    def solve() -> dict[str, str]:
        found = asyncio.run(
            rattler.solve(channels, [spec], platforms=platforms, virtual_packages=known)
        )
        return {record.name.normalized: str(record.build) for record in found}

    if build == "refused":
        with pytest.raises(Exception, match="__cuda"):  # what py-rattler raises has no public name
            solve()
    else:
        solved = solve()
        assert solved.get("pytorch", solved.get("libtorch", "")).startswith(build)


def test_a_build_without_cudnn_is_not_called_after_that_of_the_official_one(
    shipped: Facts, tmp_path: Path
) -> None:
    wheel = written_wheels.made(tmp_path, "torch", "1.13.1+cu117", "cp310-cp310-linux_x86_64")
    told = {"cudnn": None, "requirements": ["numpy==1.21.6"]}
    found = composed(shipped, cell(shipped, "v1.13.1", "wheel-3.10-cu117", "x86_64"), wheel, told)
    assert found.build == "py3.10_cuda11.7_0"
    assert found.depends == ("__cuda >=11", "numpy >=1.21,<2.0a0", "python >=3.10,<3.11.0a0")


def test_torchvision_is_bound_to_its_torch(shipped: Facts, tmp_path: Path) -> None:
    requires = ["typing-extensions", "numpy", "torch==1.13.1", "pillow!=8.3.*,>=5.3.0"]
    tag = "cp310-cp310-macosx_11_0_arm64"
    wheel = written_wheels.made(tmp_path, "torchvision", "0.14.1", tag, requires=requires)
    found = composed(shipped, cell(shipped, "v1.13.1", "vision-3.10-cpu", "arm64"), wheel)
    assert found.file == "torchvision-0.14.1-py3.10_cpu_0.conda"
    assert found.subdir == "osx-arm64"
    assert {"pytorch 1.13.1", "__osx >=11.0", "pillow >=5.3.0,!=8.3.*"} <= set(found.depends)
    labelled = written_wheels.made(
        tmp_path,
        "torchvision",
        "0.14.1+cpu",
        "cp310-cp310-linux_aarch64",
        requires=["torch==1.13.1+cpu"],
    )
    one = cell(shipped, "v1.13.1", "vision-3.10-cpu", "aarch64")
    found = composed(shipped, one, labelled)
    assert found.subdir == "linux-aarch64"
    assert "pytorch 1.13.1 py3.10_cpu_*" in found.depends
    with refused("conda-subdir-differs"):
        composed(shipped, one, labelled, CONDA_SUBDIR="linux-64")


def test_a_wheels_build_number_is_the_packages(shipped: Facts, tmp_path: Path) -> None:
    made = written_wheels.made(
        tmp_path, "torch", "1.13.1+cpu", f"cp310-cp310-linux_{platform.machine()}"
    )
    wheel = made.rename(made.with_name(made.name.replace("+cpu-", "+cpu-3-")))
    found = composed(shipped, cell(shipped, "v1.13.1", "wheel-3.10-cpu", "x86_64"), wheel)
    assert (found.build, found.number) == ("py3.10_cpu_3", 3)


@pytest.mark.parametrize(
    ("said", "license_", "summary"),
    [
        (b"License: BSD-3\nSummary: Tensors\n", "BSD-3-Clause", "Tensors"),
        (b"License-Expression: Apache-2.0\nLicense: Other\n", "Apache-2.0", None),
        (b"License: UNKNOWN\nSummary: UNKNOWN\n", None, None),
    ],
)
def test_the_licence_is_that_of_metadata(
    shipped: Facts, tmp_path: Path, said: bytes, license_: str | None, summary: str | None
) -> None:
    def spoken(members: written_wheels.Members) -> None:
        name = next(one for one in members if one.endswith("METADATA"))
        members[name] += said + b"Project-URL: Homepage, https://pytorch.org/\n"

    wheel = written_wheels.made(
        tmp_path, "torch", "1.13.1+cpu", "cp310-cp310-linux_x86_64", change=spoken
    )
    found = composed(shipped, cell(shipped, "v1.13.1", "wheel-3.10-cpu", "x86_64"), wheel)
    assert found.license == license_
    assert found.about.get("summary") == summary
    assert found.about["home"] == "https://pytorch.org/"


def test_the_time_in_a_package_is_told() -> None:
    assert (
        recipe.package_timestamp({"SOURCE_DATE_EPOCH": "1700000000"}, "2021-03-04")
        .isoformat()
        .startswith("2023-11-14T22")
    )
    assert recipe.package_timestamp({"SOURCE_DATE_EPOCH": "0"}, None).year == 1980
    assert recipe.package_timestamp({}, None).year == 1980
    for wrong in ("yesterday", "-5", "9" * 12):
        with refused("invalid-source-date-epoch"):
            recipe.package_timestamp({"SOURCE_DATE_EPOCH": wrong}, None)
