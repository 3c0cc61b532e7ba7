"""Builds of the same release with another toolkit, which the doctor offers as a cure."""

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import known_capabilities
from torchmill.config.served_gpus import serving_kind
from torchmill.host.host import Host
from torchmill.plan.arch_choice import official_arch_list
from torchmill.plan.cell import Cell
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.drivers import driver_runs
from torchmill.plan.local_gpus import refuses_capability
from torchmill.plan.matrix import possible_cells
from torchmill.plan.trial import find_trial


def coded_gpus(facts: Facts, cell: Cell, host: Host) -> frozenset[str]:
    """Return the capabilities of a host's GPUs that a cell can have code for.

    The driver of the host does not matter.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None:
        return frozenset()
    official = _official_targets(facts, cell)
    gpus: set[str] = set()
    for gpu in known_capabilities(facts, host.gpus.devices):
        # Code for an older capability may serve a GPU for which the release takes no code.
        is_served = serving_kind(facts, official, gpu) == "code"
        if is_served or not refuses_capability(facts, cell, toolkit, gpu):
            gpus.add(gpu.name)
    return frozenset(gpus)


def _official_targets(facts: Facts, cell: Cell) -> list[ArchTarget]:
    return arch_list.parse_targets(facts, official_arch_list(facts, cell) or "")


def served_gpus(facts: Facts, cell: Cell, host: Host) -> frozenset[str] | None:
    """Return the capabilities of a host's GPUs on which a cell's code runs.

    None if the driver runs nothing that the cell's toolkit makes, or if the cell has no CUDA.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None or not driver_runs(toolkit, host):
        return None
    return coded_gpus(facts, cell, host)


def serves_as_well(context: CheckContext, cell: Cell, reference: Cell) -> bool:
    """Tell whether a cell runs on each GPU of this machine that a reference cell serves."""
    served = served_gpus(context.facts, cell, context.host)
    if served is None:
        return False
    if not served and known_capabilities(context.facts, context.host.gpus.devices):
        return False
    return served >= (served_gpus(context.facts, reference, context.host) or frozenset())


def other_toolkits(context: CheckContext) -> list[Cell]:
    """Return the cells that serve the most GPUs of this machine, the oldest toolkit first.

    They are of the build's release and Python. There are none if no toolkit serves any of the GPUs.
    If the GPUs are not known, the driver alone counts.
    """
    facts = context.facts
    host = context.host
    served: list[tuple[Cell, frozenset[str]]] = []
    for cell in possible_cells(facts, context.cell.release, context.build.arch):
        if cell.build.python == context.build.python:
            gpus = served_gpus(facts, cell, host)
            if gpus is not None:
                served.append((cell, gpus))
    most = max((len(gpus) for _, gpus in served), default=0)
    if not most and known_capabilities(facts, host.gpus.devices):
        return []
    return [cell for cell, gpus in served if len(gpus) == most]


def tried_toolkit(context: CheckContext, gpu: str = "") -> str:
    """Return the command that builds with a toolkit that serves this machine and was tried.

    It has been tried if somebody is known to have built the release with it; "" if there is no such
    toolkit. The newest goes first, but before it those whose official build has code for all GPUs
    of this machine. `gpu` is a capability that the toolkit has to serve.
    """
    facts = context.facts
    gpus = {capability.name for capability in known_capabilities(facts, context.host.gpus.devices)}

    def is_official(cell: Cell) -> bool:
        return gpus <= {target.capability for target in _official_targets(facts, cell)}

    tried = [cell for cell in _serving(context, gpu) if find_trial(facts, cell).witness]
    if not tried:
        return ""
    best = max(reversed(tried), key=is_official)
    return f"nox -s {best.build.identifier(context.host.arch)}"


def untried_toolkit(context: CheckContext, gain: str, gpu: str = "") -> str:
    """Return a clause on the newest build that would serve this machine; "" if there is none.

    It is for machines that `tried_toolkit` finds nothing for. `gain` is the advantage of the build,
    as a verb phrase: "makes code for it".
    """
    cells = _serving(context, gpu)
    if not cells:
        return ""
    identifier = cells[-1].build.identifier(context.host.arch)
    return f"`nox -s {identifier}` {gain}; nobody is known to have built that"


def _serving(context: CheckContext, gpu: str) -> list[Cell]:
    """Return the cells that serve the most GPUs, if `gpu` is among these or none is asked for."""
    cells = other_toolkits(context)
    if not gpu:
        return cells
    serving: list[Cell] = []
    for cell in cells:
        served = served_gpus(context.facts, cell, context.host)
        if served is not None and gpu in served:
            serving.append(cell)
    return serving
