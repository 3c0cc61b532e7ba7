"""Recipes people follow by hand, and tables of releases: golden/ shows what a change of facts does."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.plans import options_of, plan_torch
from torchmill.config.facts import Facts
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release, paired_release
from torchmill.config.rule import Rule
from torchmill.config.versions import format_bounds
from torchmill.deliver.conda.recipe import planned_package
from torchmill.deliver.products import product_cell
from torchmill.host.description import load_host
from torchmill.host.host import Host, HostResources
from torchmill.plan import build_plan, matrix, render
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_libraries import used_cudnn
from torchmill.plan.plan import Plan
from torchmill.plan.rules import make_case, rule_matches

GOLDEN = Path(__file__).parents[1] / "golden"
# The libraries of the toolkit linked dynamically, with the system's NCCL.
LINKED = (
    "--set=USE_STATIC_CUDNN=0",
    "--set=USE_STATIC_NCCL=0",
    "--set=USE_NCCL=1",
    "--set=USE_SYSTEM_NCCL=1",
    "--set=NCCL_INCLUDE_DIR=/usr/include",
    "--set=NCCL_LIB_DIR=/usr/lib/x86_64-linux-gnu",
    "--set=NCCL_ROOT_DIR=/usr",
)
SWITCHED_OFF = (
    "--set=USE_FBGEMM=0",
    "--set=USE_MIOPEN=0",
    "--set=USE_MKLDNN=0",
    "--set=USE_NNPACK=0",
    "--set=USE_QNNPACK=0",
)

# Name -> cell, tag, host and options.
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
        ("--arch-list=3.5;6.0;6.1;7.0+PTX", "--label=none", *SWITCHED_OFF, *LINKED),
    ),
    "r4-cu90-vision": ("vision-3.5-cu90", "v1.1.0", "ubuntu-1604", ("--label=none",)),
    "r5-macos": ("wheel-3.8-cpu", "v1.8.0", "macbook", ()),
}


def recipe_host(name: str) -> Host:
    return load_host(GOLDEN / "hosts" / f"{RECIPES[name][2]}.toml")


def plan_recipe(shipped: Facts, name: str) -> Plan:
    identifier, tag, _, words = RECIPES[name]
    options = options_of(*words)
    return plan_torch(shipped, identifier, tag, recipe_host(name), options=options)


@pytest.mark.parametrize("name", RECIPES)
def test_the_plan_of_a_recipe(name: str, shipped: Facts, request: pytest.FixtureRequest) -> None:
    data = render.plan_as_data(plan_recipe(shipped, name))
    # All that is known of them would hide every other change.
    data["vulnerabilities"] = {entry["id"]: entry["state"] for entry in data["vulnerabilities"]}
    text = json.dumps(data, indent=2) + "\n"
    file = GOLDEN / f"{name}.json"
    if request.config.getoption("--update-golden"):
        file.write_text(text, encoding="utf-8")
    assert json.loads(text) == json.loads(file.read_text(encoding="utf-8"))


def test_r1_gives_the_wheel_of_the_recipe(shipped: Facts) -> None:
    plan = plan_recipe(shipped, "r1-aarch64-cpu")
    name = "torch-1.13.1+git49444c3-cp310-cp310-manylinux_2_36_aarch64.whl"
    assert plan.wheel.file_name == name
    assert plan.variables["USE_CUDA"] == "0"
    assert plan.variables["USE_CUDNN"] == "0"


def test_r2_pins_differ_by_machine(shipped: Facts) -> None:
    assert plan_recipe(shipped, "r2-linux-cu118").wheel.version == "2.4.0+cu118"
    assert plan_recipe(shipped, "r2-macos").wheel.version == "2.4.0"
    assert plan_recipe(shipped, "r2-linux-cu118-vision").wheel.torch == "torch==2.4.0+cu118"


def test_r3_sets_the_variables_of_the_recipe(shipped: Facts) -> None:
    variables = plan_recipe(shipped, "r3-cu110").variables
    assert variables["TORCH_CUDA_ARCH_LIST"] == "6.1;7.0;7.5;8.0"
    assert variables["TORCH_NVCC_FLAGS"] == "-Xfatbin -compress-all"
    assert variables["CMAKE_PREFIX_PATH"] == "${kit}"
    assert variables["PYTORCH_BUILD_NUMBER"] == "1"
    assert variables["USE_STATIC_CUDNN"] == "1"
    assert variables["USE_STATIC_NCCL"] == "1"


def test_r3_makes_the_conda_package_of_the_recipe(shipped: Facts) -> None:
    plan = plan_recipe(shipped, "r3-cu110")
    host = recipe_host("r3-cu110")
    product, cell = product_cell(shipped, "conda-3.8-cu110", host.arch, plan.release)
    assert product == "conda"
    package = planned_package(shipped, cell, plan, used_cudnn(plan, host))
    assert package == "conda/linux-64/pytorch-1.8.0-py3.8_cuda11.0.221_cudnn8.0.5_0.conda"
    options = options_of("--set=USE_CUDNN=0")
    without_cudnn = build_plan.compute_plan(shipped, cell, host, options)
    assert used_cudnn(without_cudnn, host) is None


def test_r4_spells_its_switches_as_1_1_0_reads_them(shipped: Facts) -> None:
    variables = plan_recipe(shipped, "r4-cu90").variables
    for name in ("TEST", "FBGEMM", "MIOPEN", "MKLDNN", "NNPACK", "QNNPACK"):
        assert variables.get(f"NO_{name}") == "1", name
    assert variables["USE_NCCL"] == "1"
    assert variables["USE_SYSTEM_NCCL"] == "1"
    assert variables["NCCL_ROOT_DIR"] == "/usr"
    assert variables["USE_STATIC_CUDNN"] == "0"
    assert variables["USE_STATIC_NCCL"] == "0"


def test_r4_gives_the_wheels_of_the_recipe(shipped: Facts) -> None:
    torch = plan_recipe(shipped, "r4-cu90").wheel.file_name
    assert torch == "torch-1.1.0-cp35-cp35m-manylinux_2_23_x86_64.whl"
    vision = plan_recipe(shipped, "r4-cu90-vision").wheel.file_name
    assert vision.startswith("torchvision-0.3.0-cp35-cp35m-")


def test_r5_builds_on_apple_silicon_without_a_label(shipped: Facts) -> None:
    plan = plan_recipe(shipped, "r5-macos")
    assert plan.wheel.file_name == "torch-1.8.0-cp38-cp38-macosx_11_0_arm64.whl"
    _, cell = product_cell(shipped, "conda-3.8-cpu", plan.build.arch, plan.release)
    package = planned_package(shipped, cell, plan, None)
    assert package == "conda/osx-arm64/pytorch-1.8.0-py3.8_cpu_0.conda"


RELEASES = (
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
# Variables of every plan, which rules do not decide on.
COMMON_VARIABLES = {"PATH", "MAX_JOBS", "GIT_CEILING_DIRECTORIES"}


@pytest.mark.parametrize("version", RELEASES)
def test_the_table_of_a_release(
    version: str, shipped: Facts, request: pytest.FixtureRequest
) -> None:
    text = "\n".join(table_lines(shipped, find_release(shipped, "torch", version)))
    file = GOLDEN / "tables" / f"{version}.txt"
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def table_lines(shipped: Facts, torch: Release) -> Iterator[str]:
    """Yield what the rules do with a release, by package and machine, without CUDA and with it."""
    for package in shipped.packages:
        release = paired_release(shipped, package, torch)
        if release is None:
            continue
        for arch in MACHINES:
            for cell in table_cells(list(matrix.possible_cells(shipped, release, arch))):
                yield from cell_lines(shipped, cell)


def table_cells(cells: list[Cell]) -> Iterator[Cell]:
    """Yield the cell without CUDA of the newest Python, and the one with the newest toolkit.

    That is the newest with which upstream builds the release, if there is one.
    """
    without_cuda = [cell for cell in cells if cell.build.cuda is None]
    yield from without_cuda[-1:]
    if not cells:
        return
    python = cells[-1].build.python
    with_cuda = [cell for cell in cells if cell.build.cuda and cell.build.python == python]
    official = [cell for cell in with_cuda if cell.build.cuda in cell.release.cuda.official]
    yield from (official or with_cuda)[-1:]


def cell_lines(shipped: Facts, cell: Cell) -> Iterator[str]:
    """Yield what a rule may decide on for a cell, a line for each kind, without paths and host."""
    build = cell.build
    system = shipped.arches[build.arch].system
    host = Host(build.arch, system, HostResources(cores=1, memory=2**40))
    plan = build_plan.compute_plan(shipped, cell, host, Options())
    case = make_case(shipped, build, cell.release)
    package_rules = shipped.packages[build.package].rules
    rules = [rule for rule in package_rules if rule_matches(rule.when, case)]
    settings = []
    for name, value in plan.variables.items():
        if name not in COMMON_VARIABLES:
            settings.append(f"{name}={value}")
    kinds = {
        "c++": [str(rule.cxx) for rule in rules if rule.cxx],
        "needs": list(bounds_of(rules, "needs")),
        "advises": list(bounds_of(rules, "advises")),
        "prepare": [" ".join(command.argv) for command in plan.tree.preparation],
        "set": settings,
        "requires": sorted(plan.requirements),
        "build": [" ".join(plan.commands[0].argv[1:3])],
    }
    yield f"{plan.identifier} of {cell.release.package} {cell.release.version} on {build.arch}"
    for kind, words in kinds.items():
        if words:
            yield f"  {kind:8} {', '.join(words)}"
    yield ""


def bounds_of(rules: list[Rule], effect: str) -> Iterator[str]:
    """Yield the bounds of an effect as people write them."""
    for rule in rules:
        for name, bounds in getattr(rule, effect).items():
            yield f"{name}{format_bounds(bounds)}"
