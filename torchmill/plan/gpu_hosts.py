"""Superchips and boards: GPUs that exist only with a processor, and so identify a machine."""

from collections.abc import Iterable

from torchmill.config.facts import Facts
from torchmill.config.gpu import BoardIndex, Capability, GpuHost
from torchmill.config.gpu_names import NamedGpu
from torchmill.host.host import Host, HostPlatform, HostResources


def find_board(facts: Facts, gpus: Iterable[NamedGpu]) -> GpuHost | None:
    """Return the board that GPUs are on; None if one of them is sold as a card as well, or of none.

    If they are on several boards, it is that of the first.
    """
    boards = [_board_of(facts, gpu) for gpu in gpus]
    if not boards or None in boards:
        return None
    return boards[0]


def _board_of(facts: Facts, gpu: NamedGpu) -> GpuHost | None:
    """Return the board of a GPU by its name.

    For a bare capability it is the first board, if all GPUs of that capability are on boards.
    """
    by_name: dict[str, GpuHost] = {}
    for board in facts.boards:
        for name in board.gpus:
            by_name[name] = board
    boards = [by_name.get(name) for name in gpu.capability.gpus]
    if gpu.capability.tegra:
        # A system on a chip is on a board under whatever name it is known.
        known = [board for board in boards if board is not None]
        return by_name.get(gpu.gpu) or (known[0] if known else None)
    is_bare_capability = gpu.gpu == gpu.capability.name
    if not is_bare_capability:
        return by_name.get(gpu.gpu)
    if not boards or None in boards:
        return None
    return boards[0]


def board_machine(board: GpuHost, host: Host) -> Host:
    """Return a machine with a board, as far as it is known.

    Cores and memory are those of `host`, because no fact has them.
    """
    resources = HostResources(host.resources.cores, host.resources.memory)
    platform = HostPlatform(processor_features=board.processor)
    return Host(board.arch, "linux", resources, platform=platform)


def board_sentence(board: GpuHost, gpu: NamedGpu) -> str:
    """Return which machine a GPU's board implies, as a clause."""
    name = board.gpus[0] if gpu.gpu == gpu.capability.name else gpu.gpu
    return f"{name} comes with {board.name}: a machine with it is {board.arch}"


def board_indexes(facts: Facts, capabilities: Iterable[Capability]) -> list[BoardIndex]:
    """Return NVIDIA's indexes of wheels for boards with GPUs of some capabilities."""
    names: set[str] = set()
    for capability in capabilities:
        names.update(capability.gpus)
    return [index for index in facts.board_indexes if not names.isdisjoint(index.gpus)]


def index_sentence(index: BoardIndex) -> str:
    """Return a clause about an index of a board's maker."""
    return (
        f"NVIDIA has wheels for JetPack {index.jetpack} (CUDA {index.cuda}) at {index.url}; "
        "they were not read here"
    )
