"""Recipes people follow by hand, and tables of releases: golden/ shows what a change of facts does."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release, paired_release
from torchmill.config.rule import Rule
from torchmill.config.versions import format_bounds
from torchmill.deliver.conda.recipe import planned_package
from torchmill.deliver.products import product_cell
from torchmill.host.description import load_host
from torchmill.host.host import Host, HostResources
from torchmill.plan import build_plan, cell_lookup, matrix, render
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_libraries import used_cudnn
from torchmill.plan.options import parse_options
from torchmill.plan.plan import Plan
from torchmill.plan.rules import make_case, rule_matches

GOLDEN = Path(__file__).parents[1] / "golden"
LINKED = (  # dynamically, and to the system's NCCL
    "--set=USE_STATIC_CUDNN=0",
    "--set=USE_STATIC_NCCL=0",
    "--set=USE_NCCL=1",
    "--set=USE_SYSTEM_NCCL=1",
    "--set=NCCL_INCLUDE_DIR=/usr/include",
    "--set=NCCL_LIB_DIR=/usr/lib/x86_64-linux-gnu",
    "--set=NCCL_ROOT_DIR=/usr",
)
WITHOUT = tuple(
    f"--set=USE_{name}=0" for name in ("FBGEMM", "MIOPEN", "MKLDNN", "NNPACK", "QNNPACK")
)

RECIPES = {
    "r1-aarch64-cpu": ("wheel-3.10-cpu", "v1.13.1", "m1-container", ("--label=git",)),
    "r2-linux-cu118": ("wheel-3.11-cu118", "v2.4.0", "rtx3090", ("--arch-list=8.6",)),
    "r2-linux-cu118-vision": ("vision-3.11-cu118", "v2.4.0", "rtx3090", ()),
    "r2-macos": ("wheel-3.11-cpu", "v2.4.0", "macbook", ()),
    "r3-cu110": (
        "wheel-3.8-cu110",
        "v1.8.0",
        "ubuntu-2004",
        ("--arch-list=6.1;7.0;7.5;8.0",),
    ),
    "r4-cu90": (
        "wheel-3.5-cu90",
        "v1.1.0",
        "ubuntu-1604",
        ("--arch-list=3.5;6.0;6.1;7.0+PTX", "--label=none", *WITHOUT, *LINKED),
    ),
    "r4-cu90-vision": ("vision-3.5-cu90", "v1.1.0", "ubuntu-1604", ("--label=none",)),
    "r5-macos": ("wheel-3.8-cpu", "v1.8.0", "macbook", ()),
}


def made(known: Facts, name: str) -> tuple[Plan, Host]:
    identifier, tag, machine, arguments = RECIPES[name]
    described = load_host(GOLDEN / "hosts" / f"{machine}.toml")
    release = find_release(known, "torch", tag)
    cell = cell_lookup.find_cell(known, identifier, described.arch, release)
    return build_plan.compute_plan(
        known, cell, described, parse_options(arguments, "test")
    ), described


@pytest.mark.parametrize("name", RECIPES)
def test_the_plan_of_a_recipe(name: str, shipped: Facts, request: pytest.FixtureRequest) -> None:
    text = json.dumps(render.plan_as_data(made(shipped, name)[0]), indent=2) + "\n"
    file = GOLDEN / f"{name}.json"
    if request.config.getoption("--update-golden"):
        file.write_text(text, encoding="utf-8")
    assert json.loads(text) == json.loads(file.read_text(encoding="utf-8"))


def environment(known: Facts, name: str) -> dict[str, str]:
    return dict(made(known, name)[0].variables)


def test_r1_gives_the_wheel_that_the_recipe_gives(shipped: Facts) -> None:
    computed, _ = made(shipped, "r1-aarch64-cpu")
    assert (
        computed.wheel.file_name == "torch-1.13.1+git49444c3-cp310-cp310-manylinux_2_36_aarch64.whl"
    )
    assert (computed.variables["USE_CUDA"], computed.variables["USE_CUDNN"]) == ("0", "0")


def test_r2_pins_differ_by_machine(shipped: Facts) -> None:
    assert made(shipped, "r2-linux-cu118")[0].wheel.version == "2.4.0+cu118"
    assert made(shipped, "r2-macos")[0].wheel.version == "2.4.0"
    assert made(shipped, "r2-linux-cu118-vision")[0].wheel.torch == "torch==2.4.0+cu118"


def test_r3_sets_what_the_recipe_sets(shipped: Facts) -> None:
    found = environment(shipped, "r3-cu110")
    assert found["TORCH_CUDA_ARCH_LIST"] == "6.1;7.0;7.5;8.0"
    assert found["TORCH_NVCC_FLAGS"] == "-Xfatbin -compress-all"
    assert found["CMAKE_PREFIX_PATH"] == "${kit}"
    assert found["PYTORCH_BUILD_NUMBER"] == "1"
    assert (found["USE_STATIC_CUDNN"], found["USE_STATIC_NCCL"]) == ("1", "1")


def test_r3_makes_the_conda_package_of_the_recipe(shipped: Facts) -> None:
    computed, host = made(shipped, "r3-cu110")
    product, cell = product_cell(shipped, "conda-3.8-cu110", host.arch, computed.release)
    file = planned_package(shipped, cell, computed, used_cudnn(computed, host))
    assert (product, file) == (
        "conda",
        "conda/linux-64/pytorch-1.8.0-py3.8_cuda11.0.221_cudnn8.0.5_0.conda",
    )
    without = build_plan.compute_plan(
        shipped, cell, host, parse_options(["--set=USE_CUDNN=0"], "test")
    )
    assert used_cudnn(without, host) is None


def test_r4_spells_its_switches_as_1_1_0_reads_them(shipped: Facts) -> None:
    found = environment(shipped, "r4-cu90")
    asked = ["NO_TEST", "NO_FBGEMM", "NO_MIOPEN", "NO_MKLDNN", "NO_NNPACK", "NO_QNNPACK"]
    assert {name: found.get(name) for name in asked} == dict.fromkeys(asked, "1")
    assert (found["USE_NCCL"], found["USE_SYSTEM_NCCL"], found["NCCL_ROOT_DIR"]) == (
        "1",
        "1",
        "/usr",
    )
    assert (found["USE_STATIC_CUDNN"], found["USE_STATIC_NCCL"]) == ("0", "0")
    assert (
        made(shipped, "r4-cu90")[0].wheel.file_name
        == "torch-1.1.0-cp35-cp35m-manylinux_2_23_x86_64.whl"
    )
    assert made(shipped, "r4-cu90-vision")[0].wheel.file_name.startswith(
        "torchvision-0.3.0-cp35-cp35m-"
    )


def test_r5_builds_on_apple_silicon_without_a_label(shipped: Facts) -> None:
    computed, host = made(shipped, "r5-macos")
    assert computed.wheel.file_name == "torch-1.8.0-cp38-cp38-macosx_11_0_arm64.whl"
    _, cell = product_cell(shipped, "conda-3.8-cpu", host.arch, computed.release)
    assert (
        planned_package(shipped, cell, computed, None)
        == "conda/osx-arm64/pytorch-1.8.0-py3.8_cpu_0.conda"
    )


TABLES = (
    "1.0.0",
    "1.4.0",
    "1.8.1",
    "1.10.2",
    "1.11.0",
    "1.13.1",
    "2.0.1",
    "2.3.1",
    "2.6.0",
    "2.9.1",
    "2.13.0",
    "2.15.0",
)
MACHINES = ("x86_64", "aarch64", "arm64")


@pytest.mark.parametrize("version", TABLES)
def test_the_table_of_a_release(
    version: str, shipped: Facts, request: pytest.FixtureRequest
) -> None:
    text = "\n".join(table(shipped, find_release(shipped, "torch", version)))
    file = GOLDEN / "tables" / f"{version}.txt"
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def table(known: Facts, torch: Release) -> Iterator[str]:
    """Yield what the rules make of a release: per package and machine a cpu cell and a CUDA cell."""
    for package in known.packages:
        release = paired_release(known, package, torch)
        for arch in MACHINES if release else ():
            assert release is not None
            cells = list(matrix.possible_cells(known, release, arch))
            for cell in (*cpu_cell(cells), *cuda_cell(cells)):
                yield from described(known, cell)


def cpu_cell(cells: list[Cell]) -> list[Cell]:
    """Return the cpu cell of the newest Python, if any."""
    return [one for one in cells if one.build.cuda is None][-1:]


def cuda_cell(cells: list[Cell]) -> list[Cell]:
    """Return the cell of the newest Python with the newest official toolkit, or else the newest, if any."""
    python = cells[-1].build.python if cells else ""
    cuda = [one for one in cells if one.build.cuda and one.build.python == python]
    return ([one for one in cuda if one.build.cuda in one.release.cuda_official] or cuda)[-1:]


def described(known: Facts, cell: Cell) -> Iterator[str]:
    """Yield what a rule may say of a cell, one line for each kind; paths and the host stay out."""
    build = cell.build
    machine = Host(
        build.arch, known.arches[build.arch].system, HostResources(cores=1, memory=2**40)
    )
    computed = build_plan.compute_plan(known, cell, machine, Options())
    rules = [
        rule
        for rule in known.packages[build.package].rules
        if rule_matches(rule.when, make_case(known, build, cell.release))
    ]
    always = {"PATH", "MAX_JOBS", "GIT_CEILING_DIRECTORIES"}
    setting = [
        f"{name}={value}" for name, value in computed.variables.items() if name not in always
    ]
    lines = {
        "c++": [str(rule.cxx) for rule in rules if rule.cxx],
        "needs": list(needed(rules, "needs")),
        "advises": list(needed(rules, "advises")),
        "prepare": [" ".join(command.argv) for command in computed.tree.preparation],
        "set": setting,
        "requires": sorted(computed.requirements),
        "build": [" ".join(computed.commands[0].argv[1:3])],
    }
    yield f"{computed.identifier} of {cell.release.package} {cell.release.version} on {build.arch}"
    yield from (f"  {name:8} {', '.join(words)}" for name, words in lines.items() if words)
    yield ""


def needed(rules: list[Rule], effect: str) -> Iterator[str]:
    """Yield the bounds of an effect as people write them."""
    for rule in rules:
        for name, bounds in getattr(rule, effect).items():
            yield f"{name}{format_bounds(bounds)}"
