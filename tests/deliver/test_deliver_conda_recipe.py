"""The recipes of conda packages, for cells that this machine could not build."""

import asyncio
import json
import platform
from collections.abc import Mapping
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

MANIFEST = {
    "cudnn": "8.0.5",
    "requirements": ["numpy==1.19.5"],
    "toolkit": "11.0",
    "tag": "v1.8.0",
}


def find_cell(facts: Facts, tag: str, identifier: str, arch: str) -> Cell:
    return cell_lookup.find_cell(facts, identifier, arch, find_release(facts, "torch", tag))


def composed(
    facts: Facts,
    cell: Cell,
    wheel: Path,
    manifest: Mapping[str, object] | None = None,
    **environ: str,
) -> CondaRecipe:
    """Return the recipe of a wheel with a manifest, which is written beside it."""
    if manifest is not None:
        fields = {**manifest, "sha256": finished_wheel.read_wheel(wheel).sha256}
        wheel.with_name(f"{wheel.name}.json").write_text(json.dumps(fields))
    return recipe.compose_recipe(
        facts, cell, finished_wheel.read_wheel(wheel), ["GLIBCXX_3.4.29"], environ
    )


@pytest.mark.parametrize(
    ("version", "exported"),
    [
        ("1.8.0+cpu", "pytorch >=1.8.0,<1.9.0a0"),
        ("1!2.9.3+cpu", "pytorch >=1!2.9.3,<1!2.10.0a0"),
    ],
)
def test_what_is_compiled_against_it_needs_the_same_minor_version(
    shipped: Facts, tmp_path: Path, version: str, exported: str
) -> None:
    tag = "cp38-cp38-manylinux_2_31_x86_64"
    wheel = written_wheels.made(tmp_path, "torch", version, tag)
    cell = find_cell(shipped, "v1.8.0", "wheel-3.8-cpu", "x86_64")
    planned = composed(shipped, cell, wheel, {**MANIFEST, "toolkit": None})
    assert planned.run_exports == {"weak": (exported,)}


def test_the_package_of_recipe_r3_has_its_name(shipped: Facts, tmp_path: Path) -> None:
    """R3: torch 1.8.0 with CUDA 11.0 and cuDNN 8.0.5 for Python 3.8."""
    tag = "cp38-cp38-manylinux_2_31_x86_64"
    wheel = written_wheels.made(
        tmp_path, "torch", "1.8.0+cu110", tag, requires=["typing-extensions", "numpy"]
    )
    planned = composed(
        shipped, find_cell(shipped, "v1.8.0", "wheel-3.8-cu110", "x86_64"), wheel, MANIFEST
    )
    assert planned.file == "pytorch-1.8.0-py3.8_cuda11.0.221_cudnn8.0.5_0.conda"
    assert (planned.subdir, planned.number) == ("linux-64", 0)
    assert planned.depends == (
        "__cuda >=11.0",
        "__glibc >=2.31,<3.0.a0",
        "numpy >=1.19,<2.0a0",
        "python >=3.8,<3.9.0a0",
        "typing_extensions",
    )
    assert planned.constrains == (
        "cuda-version >=11.0,<12.0a0",
        "libstdcxx >=11.1",
        "libstdcxx-ng >=11.1",
        "python_abi 3.8.* *_cp38",
    )
    assert planned.run_exports == {"weak": ("pytorch >=1.8.0,<1.9.0a0",)}
    assert planned.imports == ("torch",)
    assert planned.stamp.isoformat() == "2021-03-04T00:00:00+00:00"
    origin = planned.about["extra"]["torchmill"]
    assert (origin["wheel"], origin["tag"]) == (wheel.name, "v1.8.0")
    assert planned.about["dev_url"] == "https://github.com/pytorch/pytorch"


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
    """Conda's own code solves an index with three builds of torch and torchvision."""
    rattler = pytest.importorskip("rattler", reason="needs py-rattler")
    records: dict[str, dict[str, object]] = {"linux-64": {}, "noarch": {}}
    for variant in ("cpu", "cu110", "cu111"):
        for session in ("wheel", "vision"):
            for planned in recipes_of(shipped, tmp_path, session, variant):
                records[planned.subdir][planned.file] = index_record(planned)
    for subdir, packages in records.items():
        (tmp_path / subdir).mkdir()
        index = {"packages": {}, "packages.conda": packages}
        (tmp_path / subdir / "repodata.json").write_text(json.dumps(index))
    virtual_packages = []
    if driver:
        name = rattler.PackageName("__cuda")
        string = rattler.package.build_string.BuildString("0")
        version = rattler.Version(driver)
        virtual_packages.append(rattler.GenericVirtualPackage(name, version, string))

    def solve() -> dict[str, str]:
        solution = rattler.solve(
            [rattler.Channel(tmp_path.as_uri())],
            [spec],
            platforms=["linux-64", "noarch"],
            virtual_packages=virtual_packages,
        )
        return {record.name.normalized: str(record.build) for record in asyncio.run(solution)}

    if build == "refused":
        # the exception of py-rattler has no public name
        with pytest.raises(Exception, match="__cuda"):
            solve()
    else:
        solved = solve()
        assert solved.get("pytorch", solved.get("libtorch", "")).startswith(build)


def recipes_of(facts: Facts, folder: Path, session: str, variant: str) -> list[CondaRecipe]:
    """Return the recipes of a made-up wheel of torch 1.8.0, or of the torchvision of that."""
    is_torch = session == "wheel"
    name, version = ("torch", "1.8.0") if is_torch else ("torchvision", "0.9.0")
    requires = [] if is_torch else [f"torch==1.8.0+{variant}"]
    wheel = written_wheels.made(
        folder, name, f"{version}+{variant}", "cp38-cp38-linux_x86_64", requires=requires
    )
    manifest: dict[str, object] = {"requirements": [], "cudnn": None}
    if variant != "cpu":
        manifest["cudnn"] = "8.0.5"
    cell = find_cell(facts, "v1.8.0", f"{session}-3.8-{variant}", "x86_64")
    composed(facts, cell, wheel, manifest)
    plan = tiny_plans.plan(name, version)
    verified = VerifiedWheel(Layout(folder, folder), facts, cell, plan, wheel, manifest)
    read = finished_wheel.read_wheel(wheel)
    return recipe.compose_recipes(verified, read, (), ProductOptions(libtorch=is_torch))


def index_record(planned: CondaRecipe) -> dict[str, object]:
    """Return the record of a package in an index; no index here has a Python to depend on."""
    return {
        "name": planned.name,
        "version": planned.version,
        "build": planned.build,
        "build_number": planned.number,
        "depends": [line for line in planned.depends if not line.startswith("python ")],
        "subdir": planned.subdir,
        "sha256": "0" * 64,
        **planned.index,
    }


def test_the_build_string_of_a_wheel_without_cudnn_has_none(shipped: Facts, tmp_path: Path) -> None:
    wheel = written_wheels.made(tmp_path, "torch", "1.13.1+cu117", "cp310-cp310-linux_x86_64")
    manifest = {"cudnn": None, "requirements": ["numpy==1.21.6"]}
    planned = composed(
        shipped, find_cell(shipped, "v1.13.1", "wheel-3.10-cu117", "x86_64"), wheel, manifest
    )
    assert planned.build == "py3.10_cuda11.7_0"
    assert planned.depends == ("__cuda >=11", "numpy >=1.21,<2.0a0", "python >=3.10,<3.11.0a0")


def test_torchvision_is_bound_to_its_torch(shipped: Facts, tmp_path: Path) -> None:
    requires = ["typing-extensions", "numpy", "torch==1.13.1", "pillow!=8.3.*,>=5.3.0"]
    tag = "cp310-cp310-macosx_11_0_arm64"
    wheel = written_wheels.made(tmp_path, "torchvision", "0.14.1", tag, requires=requires)
    planned = composed(shipped, find_cell(shipped, "v1.13.1", "vision-3.10-cpu", "arm64"), wheel)
    assert planned.file == "torchvision-0.14.1-py3.10_cpu_0.conda"
    assert planned.subdir == "osx-arm64"
    assert {"pytorch 1.13.1", "__osx >=11.0", "pillow >=5.3.0,!=8.3.*"} <= set(planned.depends)
    labelled = written_wheels.made(
        tmp_path,
        "torchvision",
        "0.14.1+cpu",
        "cp310-cp310-linux_aarch64",
        requires=["torch==1.13.1+cpu"],
    )
    cell = find_cell(shipped, "v1.13.1", "vision-3.10-cpu", "aarch64")
    planned = composed(shipped, cell, labelled)
    assert planned.subdir == "linux-aarch64"
    assert "pytorch 1.13.1 py3.10_cpu_*" in planned.depends
    with refused("conda-subdir-differs"):
        composed(shipped, cell, labelled, CONDA_SUBDIR="linux-64")


def test_the_package_has_the_build_number_of_the_wheel(shipped: Facts, tmp_path: Path) -> None:
    plain = written_wheels.made(
        tmp_path, "torch", "1.13.1+cpu", f"cp310-cp310-linux_{platform.machine()}"
    )
    wheel = plain.rename(plain.with_name(plain.name.replace("+cpu-", "+cpu-3-")))
    planned = composed(shipped, find_cell(shipped, "v1.13.1", "wheel-3.10-cpu", "x86_64"), wheel)
    assert (planned.build, planned.number) == ("py3.10_cpu_3", 3)


@pytest.mark.parametrize(
    ("headers", "license_name", "summary"),
    [
        (b"License: BSD-3\nSummary: Tensors\n", "BSD-3-Clause", "Tensors"),
        (b"License-Expression: Apache-2.0\nLicense: Other\n", "Apache-2.0", None),
        (b"License: UNKNOWN\nSummary: UNKNOWN\n", None, None),
    ],
)
def test_licence_and_summary_are_those_of_metadata(
    shipped: Facts, tmp_path: Path, headers: bytes, license_name: str | None, summary: str | None
) -> None:
    def add_headers(members: written_wheels.Members) -> None:
        name = next(name for name in members if name.endswith("METADATA"))
        members[name] += headers + b"Project-URL: Homepage, https://pytorch.org/\n"

    wheel = written_wheels.made(
        tmp_path, "torch", "1.13.1+cpu", "cp310-cp310-linux_x86_64", change=add_headers
    )
    planned = composed(shipped, find_cell(shipped, "v1.13.1", "wheel-3.10-cpu", "x86_64"), wheel)
    assert planned.license == license_name
    assert planned.about.get("summary") == summary
    assert planned.about["home"] == "https://pytorch.org/"


def test_the_timestamp_is_that_of_the_variable_or_the_release() -> None:
    stamp = recipe.package_timestamp({"SOURCE_DATE_EPOCH": "1700000000"}, "2021-03-04")
    assert stamp.isoformat().startswith("2023-11-14T22")
    assert recipe.package_timestamp({"SOURCE_DATE_EPOCH": "0"}, None).year == 1980
    assert recipe.package_timestamp({}, None).year == 1980
    for value in ("yesterday", "-5", "9" * 12):
        with refused("invalid-source-date-epoch"):
            recipe.package_timestamp({"SOURCE_DATE_EPOCH": value}, None)
