"""GPUs that exist only together with a processor, and so identify a machine.

Such a GPU is part of a superchip, such as GH200 with its Grace processor, or of a board, such as a
Jetson. Both are called boards here.
"""

from collections.abc import Iterable

from torchmill.config.distributions import newest_jetson
from torchmill.config.facts import Facts
from torchmill.config.gpu import Board, BoardIndex, Capability
from torchmill.config.gpu_names import NamedGpu
from torchmill.config.versions import cuda_label
from torchmill.core.errors import ImpossibleBuildError
from torchmill.host.host import Host, HostPlatform, HostResources

# What a cell for a superchip is made with, as an example.
_USUAL_PYTHON = "3.12"
_USUAL_CUDA = "13.0"


def find_board(facts: Facts, gpus: Iterable[NamedGpu]) -> Board | None:
    """Return the board of some GPUs; None unless each of them is known to be on a board.

    A GPU that is also sold as a card may be in any machine. If the GPUs are on different boards,
    the board of the first one is returned.
    """
    boards = [_board_of(facts, gpu) for gpu in gpus]
    if not boards or None in boards:
        return None
    return boards[0]


def _board_of(facts: Facts, gpu: NamedGpu) -> Board | None:
    """Return the board of a GPU; None if it may be a card, or its board is unknown.

    The GPU's name is that of a product, or a capability such as "9.0", which means any GPU with it.
    """
    board_by_gpu: dict[str, Board] = {}
    for board in facts.gpus.boards:
        for name in board.gpus:
            board_by_gpu[name] = board
    product_board = board_by_gpu.get(gpu.name)  # None if the name is a capability
    boards = [board_by_gpu.get(name) for name in gpu.capability.gpus]
    if gpu.capability.tegra:
        # A system on a chip is always on a board. If the facts do not have its product, the board
        # of another system with the same capability stands in.
        tegra_boards = [board for board in boards if board is not None]
        if product_board is None and tegra_boards:
            return tegra_boards[0]
        return product_board
    is_product = gpu.name != gpu.capability.name
    if is_product:
        return product_board
    # A capability implies a board only if none of its GPUs is sold as a card.
    if not boards or None in boards:
        return None
    return boards[0]


def board_machine(board: Board, host: Host) -> Host:
    """Return a Linux machine with a board and without GPUs, to judge wheels for it.

    Cores and memory are those of `host`, because the facts do not have the board's.
    """
    resources = HostResources(host.resources.cores, host.resources.memory)
    platform = HostPlatform(processor_features=board.processor)
    return Host(board.arch, "linux", resources, platform=platform)


def refuse_unbuilt(facts: Facts, board: Board, gpu: NamedGpu) -> None:
    """Raise ImpossibleBuildError for the GPU of a board whose architecture is not in the facts."""
    if board.arch not in facts.arches:
        raise ImpossibleBuildError(
            f"{board_clause(board, gpu)}, which torchmill builds nothing for",
            code="board-not-built-for",
        )


def usual_python_and_cuda(gpu: NamedGpu) -> str:
    """Return the Python and CUDA of the newest JetPack for a board's GPU: "3.12-cu132".

    For a superchip, which has no JetPack, it is a usual one.
    """
    jetson = newest_jetson(gpu.capability.name) if gpu.capability.tegra else None
    if jetson is None:
        return f"{_USUAL_PYTHON}-{cuda_label(_USUAL_CUDA)}"
    return f"{jetson.python}-{cuda_label(jetson.cuda)}"


def board_clause(board: Board, gpu: NamedGpu) -> str:
    """Return a clause that names a GPU, its board's processor and the architecture."""
    name = gpu.name
    if name == gpu.capability.name:
        # The user gave a capability: name a product that has it. GPUs that share a board may have
        # different capabilities: GH200 has 9.0, GB200 has 10.0.
        name = next(product for product in board.gpus if product in gpu.capability.gpus)
    return f"{name} comes with {board.name}: a machine with it is {board.arch}"


def board_indexes(facts: Facts, capabilities: Iterable[Capability]) -> list[BoardIndex]:
    """Return NVIDIA's indexes of wheels for boards whose GPUs have one of some capabilities."""
    gpu_names: set[str] = set()
    for capability in capabilities:
        gpu_names.update(capability.gpus)
    return [index for index in facts.gpus.board_indexes if not gpu_names.isdisjoint(index.gpus)]


def index_clause(index: BoardIndex) -> str:
    """Return a clause that names an index of NVIDIA's, its JetPack and its CUDA."""
    return (
        f"NVIDIA has wheels for JetPack {index.jetpack} (CUDA {index.cuda}) at {index.url}; "
        "they were not read here"
    )
