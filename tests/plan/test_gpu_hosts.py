"""The machines that GPUs on boards imply."""

from dataclasses import replace

from torchmill.config.facts import Facts
from torchmill.config.gpu_names import NamedGpu
from torchmill.plan.gpu_hosts import board_clause


def test_a_board_is_explained_by_a_gpu_with_the_capability_that_the_user_gave(
    shipped: Facts,
) -> None:
    """One list of a board's GPUs may have several capabilities."""
    (board,) = [board for board in shipped.gpus.boards if "NVIDIA GH200" in board.gpus]
    (capability,) = [each for each in shipped.gpus.capabilities if each.name == "10.0"]
    only_on_board = replace(capability, gpus=("NVIDIA GB200",))
    assert board_clause(board, NamedGpu("10.0", only_on_board)).startswith(
        "NVIDIA GB200 comes with"
    )
