"""The machines that GPUs on boards imply."""

from dataclasses import replace

import pytest

from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import NamedGpu, find_gpus
from torchmill.plan.gpu_hosts import (
    board_clause,
    find_board,
    refuse_unbuilt,
    usual_python_and_cuda,
)


def test_a_board_is_explained_by_a_gpu_with_the_capability_that_the_user_gave(
    shipped: Facts,
) -> None:
    """One list of a board's GPUs may have several capabilities."""
    (board,) = [board for board in shipped.gpus.boards if "NVIDIA GH200" in board.gpus]
    (capability,) = [
        candidate for candidate in shipped.gpus.capabilities if candidate.name == "10.0"
    ]
    only_on_board = replace(capability, gpus=("NVIDIA GB200",))
    assert board_clause(board, NamedGpu("10.0", only_on_board)).startswith(
        "NVIDIA GB200 comes with"
    )


@pytest.mark.parametrize(
    ("gpu", "example"),
    [
        ("Jetson Nano", "3.6-cu102"),
        ("Jetson AGX Xavier", "3.8-cu114"),
        ("Jetson Orin Nano", "3.12-cu132"),
        ("Jetson AGX Thor", "3.12-cu132"),
        ("NVIDIA GH200", "3.12-cu130"),
    ],
)
def test_the_example_of_a_cell_is_one_that_runs_on_the_board(
    shipped: Facts, gpu: str, example: str
) -> None:
    assert usual_python_and_cuda(find_gpus(shipped, gpu)[0]) == example


def test_every_gpu_of_a_jetson_has_a_board(shipped: Facts) -> None:
    for capability in shipped.gpus.capabilities:
        for name in capability.gpus:
            if name.startswith(("Jetson", "Tegra")):
                board = find_board(shipped, [NamedGpu(name, capability)])
                assert board is not None, name
                assert name in board.gpus


def test_nothing_is_built_for_a_board_of_32_bits(shipped: Facts) -> None:
    (gpu,) = find_gpus(shipped, "Jetson TK1")
    board = find_board(shipped, [gpu])
    assert board is not None
    with refused("board-not-built-for") as caught:
        refuse_unbuilt(shipped, board, gpu)
    assert "armv7l" in str(caught.value)
