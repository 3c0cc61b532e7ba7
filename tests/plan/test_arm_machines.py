"""Builds on x86_64 for machines with an Arm processor, by what NVIDIA says of their GPUs."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plan.test_crossing import HOST, MEANS, host_with
from tests.support.plans import plan_torch
from tests.support.refusals import refused
from torchmill.config import arch_list
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import find_gpus
from torchmill.plan.arch_choice import shortest_arch_list
from torchmill.plan.arch_toolkits import toolkits_with_target
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.gpu_hosts import find_board

MACHINES: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("arm_machines.toml").read_text(encoding="utf-8")
)["machine"]


def capability_list(facts: Facts, name: str) -> str:
    """Return the list of capabilities for a GPU, as `invoke build --gpu` makes it."""
    capabilities = [gpu.capability for gpu in find_gpus(facts, name)]
    return arch_list.format_arch_list(shortest_arch_list(facts, capabilities))


@pytest.fixture(params=MACHINES, ids=lambda machine: machine["gpu"])
def machine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return one machine of the table."""
    chosen: dict[str, Any] = request.param
    return chosen


def test_a_gpu_tells_its_capability_and_its_machine(
    shipped: Facts, machine: dict[str, Any]
) -> None:
    gpus = find_gpus(shipped, machine["gpu"])
    assert {gpu.capability.name for gpu in gpus} == {machine["capability"]}
    board = find_board(shipped, gpus)
    assert board is not None
    assert board.arch == "aarch64"
    assert machine["processor"] in board.name


def test_a_wheel_for_cuda_13_has_code_for_exactly_that_gpu(
    shipped: Facts, machine: dict[str, Any]
) -> None:
    listed = capability_list(shipped, machine["gpu"])
    assert listed == machine["capability"], "code for an older one of its generation is not enough"
    options = Options(torch=PYPI, arch_list=listed)
    toolkits = {toolkit.version for toolkit in toolkits_with_target(shipped, listed)}
    if "13.0" not in toolkits:
        with refused("arch-list-impossible"):
            plan_torch(shipped, "scatter-3.11-cu130-aarch64", "v2.13.0", HOST, options=options)
        return
    plan = plan_torch(shipped, "scatter-3.11-cu130-aarch64", "v2.13.0", HOST, options=options)
    assert plan.arch_list == machine["capability"]
    assert plan.cuda.toolkit == "13.0"
    assert plan.target_torch == "torch===2.13.0"
    assert plan.wheel.platform_tag == "manylinux_2_36_aarch64"
    assert plan.variables["CXX"] == "aarch64-linux-gnu-g++-12"


def test_before_cuda_13_boards_have_their_own_cuda(shipped: Facts, machine: dict[str, Any]) -> None:
    listed = capability_list(shipped, machine["gpu"])
    if "12.6" not in {toolkit.version for toolkit in toolkits_with_target(shipped, listed)}:
        pytest.skip("CUDA 12.6 makes no code for it")
    host = host_with(replace(MEANS, toolkits={"12.6": "/cache/12.6-crossing-1-aarch64"}))
    name = "scatter-3.11-cu126-aarch64"
    torch = "/given/torch-2.9.1+cu126-cp311-cp311-manylinux_2_28_aarch64.whl"
    options = Options(torch=torch, arch_list=listed)
    if machine.get("own_cuda"):
        with refused("board-needs-own-cuda"):
            plan_torch(shipped, name, "v2.9.1", host, options=options)
    else:
        assert plan_torch(shipped, name, "v2.9.1", host, options=options).arch_list == listed


def test_every_machine_has_an_address() -> None:
    assert all(machine["source"].startswith("https://") for machine in MACHINES)
    assert len({machine["gpu"] for machine in MACHINES}) == len(MACHINES)
