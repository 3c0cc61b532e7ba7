"""Builds of the same release with other toolkits, which the doctor offers as a cure.

A build serves a GPU if its wheel runs on it: the toolkit can make code for the GPU, and the driver
runs the toolkit's code.
"""

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


def compilable_gpus(facts: Facts, cell: Cell, host: Host) -> frozenset[str]:
    """Return the capabilities of a host's GPUs for which a cell's wheel can have code.

    Whether the host's driver runs the code is left aside.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None:
        return frozenset()
    official = _official_targets(facts, cell)
    gpus: set[str] = set()
    for gpu in known_capabilities(facts, host.gpus.devices):
        # Code for an older capability may serve a GPU whose own capability the release refuses.
        is_served = serving_kind(facts, official, gpu) == "code"
        if is_served or not refuses_capability(facts, cell, toolkit, gpu):
            gpus.add(gpu.name)
    return frozenset(gpus)


def _official_targets(facts: Facts, cell: Cell) -> list[ArchTarget]:
    """Return the entries of a cell's official arch list."""
    return arch_list.parse_checked_arch_list(facts, official_arch_list(facts, cell) or "")


def served_gpus(facts: Facts, cell: Cell, host: Host) -> frozenset[str] | None:
    """Return the capabilities of a host's GPUs that a cell can serve.

    None if the driver runs no code of the cell's toolkit, or if the cell has no CUDA.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None or not driver_runs(toolkit, host):
        return None
    return compilable_gpus(facts, cell, host)


def serves_as_well(context: CheckContext, cell: Cell, reference: Cell) -> bool:
    """Tell whether a cell serves each GPU of this machine that a reference cell serves.

    A cell that serves no known GPU of this machine does not. If no GPU is known, it does if the
    driver runs its toolkit's code.
    """
    served = served_gpus(context.facts, cell, context.host)
    if served is None:
        return False
    if not served and known_capabilities(context.facts, context.host.gpus.devices):
        return False
    return served >= (served_gpus(context.facts, reference, context.host) or frozenset())


def other_toolkits(context: CheckContext) -> list[Cell]:
    """Return the cells that serve the most GPUs of this machine, the oldest toolkit first.

    They are of the build's release and Python, and the build itself may be among them. There are
    none if no toolkit serves any of the GPUs. If the GPUs are not known, the driver alone counts.
    """
    facts = context.facts
    host = context.host
    counted: list[tuple[Cell, int]] = []  # with the number of GPUs that the cell serves
    for cell in possible_cells(facts, context.cell.release, context.build.arch):
        if cell.build.python == context.build.python:
            gpus = served_gpus(facts, cell, host)
            if gpus is not None:
                counted.append((cell, len(gpus)))
    most = max((count for _, count in counted), default=0)
    if not most and known_capabilities(facts, host.gpus.devices):
        return []
    return [cell for cell, count in counted if count == most]


def tried_toolkit(context: CheckContext, gpu: str = "") -> str:
    """Return the command of a build that serves this machine and that somebody has made before.

    Best is a toolkit whose official build has code that runs on all GPUs of this machine, PTX aside,
    then the newest.
    `gpu` is a capability that the toolkit has to serve; "" requires none. "" if no toolkit that
    serves this machine was tried.
    """
    facts = context.facts
    gpus = known_capabilities(facts, context.host.gpus.devices)

    def is_official(cell: Cell) -> bool:
        targets = _official_targets(facts, cell)
        return all(serving_kind(facts, targets, capability) == "code" for capability in gpus)

    tried = [cell for cell in _serving_cells(context, gpu) if find_trial(facts, cell).witness]
    if not tried:
        return ""
    # `max` returns the first of equals, so the newest toolkit has to come first.
    best = max(reversed(tried), key=is_official)
    return f"nox -s {best.build.identifier(context.host.arch)}"


def untried_toolkit(context: CheckContext, gain: str, gpu: str = "") -> str:
    """Return a clause on the newest build that would serve this machine; "" if there is none.

    It is meant for machines for which `tried_toolkit` finds no build. `gain` is the advantage of
    the build, as a verb phrase: "makes code for it".
    """
    cells = _serving_cells(context, gpu)
    if not cells:
        return ""
    identifier = cells[-1].build.identifier(context.host.arch)
    return f"`nox -s {identifier}` {gain}; nobody is known to have built that"


def _serving_cells(context: CheckContext, gpu: str) -> list[Cell]:
    """Return those of `other_toolkits` that serve GPUs of a capability; "" stands for any."""
    cells = other_toolkits(context)
    if not gpu:
        return cells
    serving: list[Cell] = []
    for cell in cells:
        served = served_gpus(context.facts, cell, context.host)
        if served is not None and gpu in served:
            serving.append(cell)
    return serving
