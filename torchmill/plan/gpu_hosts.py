"""Superchips and boards: GPUs that exist only together with a processor, and so tell what machine they are in."""

from collections.abc import Iterable

from torchmill.config.facts import Facts
from torchmill.config.gpu import BoardIndex, Capability, GpuHost
from torchmill.config.gpu_names import NamedGpu
from torchmill.host.host import Host, HostPlatform, HostResources


def find_board(facts: Facts, gpus: Iterable[NamedGpu]) -> GpuHost | None:
    """Return the board that all of some GPUs are on; None if one of them is sold as a card, too, or there is none."""
    boards = [_board_of(facts, one) for one in gpus]
    return boards[0] if boards and None not in boards else None


def _board_of(facts: Facts, gpu: NamedGpu) -> GpuHost | None:
    """Return the board of a GPU by its name; of a bare capability the first board, if all its GPUs are on boards."""
    by_name = {name: board for board in facts.boards for name in board.gpus}
    boards = [by_name.get(name) for name in gpu.capability.gpus]
    if gpu.capability.tegra:  # a system on a chip, by whatever name
        return by_name.get(gpu.gpu) or next(filter(None, boards), None)
    if gpu.gpu != gpu.capability.name:
        return by_name.get(gpu.gpu)
    return boards[0] if boards and None not in boards else None


def board_machine(board: GpuHost, host: Host) -> Host:
    """Return what is known of a machine with a board; `host` lends the cores and the memory, which no fact has."""
    return Host(
        board.arch,
        "linux",
        HostResources(host.resources.cores, host.resources.memory),
        platform=HostPlatform(processor_features=board.processor),
    )


def board_sentence(board: GpuHost, gpu: NamedGpu) -> str:
    """Return what a GPU's board says of the machine that it is in, as a clause."""
    name = board.gpus[0] if gpu.gpu == gpu.capability.name else gpu.gpu
    return f"{name} comes with {board.name}: a machine with it is {board.arch}"


def board_indexes(facts: Facts, capabilities: Iterable[Capability]) -> list[BoardIndex]:
    """Return the indexes of wheels that NVIDIA keeps for boards with GPUs of some capabilities."""
    names = {name for one in capabilities for name in one.gpus}
    return [one for one in facts.board_indexes if not names.isdisjoint(one.gpus)]


def index_sentence(index: BoardIndex) -> str:
    """Return what an index of a board's maker has, as a clause."""
    return f"NVIDIA has wheels for JetPack {index.jetpack} (CUDA {index.cuda}) at {index.url}; they were not read here"
