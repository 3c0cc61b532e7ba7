"""GPUs that exist only together with a processor, and so identify a machine.

They are on superchips, such as GH200 with a Grace processor, or on boards, such as Jetson's. This
module calls both boards.
"""

from collections.abc import Iterable

from torchmill.config.facts import Facts
from torchmill.config.gpu import Board, BoardIndex, Capability
from torchmill.config.gpu_names import NamedGpu
from torchmill.host.host import Host, HostPlatform, HostResources


def find_board(facts: Facts, gpus: Iterable[NamedGpu]) -> Board | None:
    """Return the board of some GPUs; None if one of them is sold as a card too.

    If they are on different boards, it is the first GPU's. None without GPUs.
    """
    boards = [_board_of(facts, gpu) for gpu in gpus]
    if not boards or None in boards:
        return None
    return boards[0]


def _board_of(facts: Facts, gpu: NamedGpu) -> Board | None:
    """Return the board of a GPU, which a user names by its product or by its capability, "9.0"."""
    board_by_gpu: dict[str, Board] = {}
    for board in facts.gpus.boards:
        for name in board.gpus:
            board_by_gpu[name] = board
    named_board = board_by_gpu.get(gpu.name)
    boards = [board_by_gpu.get(name) for name in gpu.capability.gpus]
    if gpu.capability.tegra:
        # A system on a chip is always on a board, even if the facts do not have its name.
        known_boards = [board for board in boards if board is not None]
        if named_board is None and known_boards:
            return known_boards[0]
        return named_board
    is_named_by_capability = gpu.name == gpu.capability.name
    if not is_named_by_capability:
        return named_board
    # A capability tells a board only if no GPU with it is sold as a card.
    if not boards or None in boards:
        return None
    return boards[0]


def board_machine(board: Board, host: Host) -> Host:
    """Return the description of a machine with a board, for plans and judgements.

    Cores and memory are those of `host`, because the facts do not have the board's.
    """
    resources = HostResources(host.resources.cores, host.resources.memory)
    platform = HostPlatform(processor_features=board.processor)
    return Host(board.arch, "linux", resources, platform=platform)


def board_clause(board: Board, gpu: NamedGpu) -> str:
    """Return a clause on the machine that a GPU's board implies."""
    name = gpu.name
    if name == gpu.capability.name:  # the user gave a capability, not the name of a GPU
        # GPUs on one board's list may have different capabilities: GH200 has 9.0, GB200 has 10.0.
        name = next(each for each in board.gpus if each in gpu.capability.gpus)
    return f"{name} comes with {board.name}: a machine with it is {board.arch}"


def board_indexes(facts: Facts, capabilities: Iterable[Capability]) -> list[BoardIndex]:
    """Return NVIDIA's indexes of wheels for boards with GPUs of some capabilities."""
    names: set[str] = set()
    for capability in capabilities:
        names.update(capability.gpus)
    return [index for index in facts.gpus.board_indexes if not names.isdisjoint(index.gpus)]


def index_clause(index: BoardIndex) -> str:
    """Return a clause on an index in which NVIDIA has wheels for boards."""
    return (
        f"NVIDIA has wheels for JetPack {index.jetpack} (CUDA {index.cuda}) at {index.url}; "
        "they were not read here"
    )
