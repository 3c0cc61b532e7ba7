"""Builds of the same release with another toolkit, which are offered as a cure: judged before they are named."""

from torchmill.config import arch_list
from torchmill.config.matrix import Cell, possible_cells
from torchmill.config.model import Facts, Host
from torchmill.config.trial import find_trial
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.drivers import is_driven
from torchmill.plan.local_gpus import takes_no_code


def coded_gpus(facts: Facts, cell: Cell, host: Host) -> frozenset[str]:
    """Return the capabilities of a host's GPUs for which a cell can have code, whatever the driver is."""
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None:
        return frozenset()
    targets = arch_list.parse_targets(facts, arch_list.official_arch_list(facts, cell) or "")
    return frozenset(
        gpu.name
        for gpu in arch_list.known_capabilities(facts, host.gpus)
        if not takes_no_code(facts, cell, toolkit, gpu)
        or arch_list.how_served(facts, targets, gpu) == "code"
    )


def served_gpus(facts: Facts, cell: Cell, host: Host) -> frozenset[str] | None:
    """Return the capabilities of a host's GPUs on which a cell's code runs; None if the driver does not run any."""
    toolkit = facts.toolkit(cell.build.cuda)
    return coded_gpus(facts, cell, host) if toolkit and is_driven(toolkit, host) else None


def serves_as_well(context: CheckContext, cell: Cell, own: Cell) -> bool:
    """Tell whether a cell runs on this machine, on each GPU that another cell has code for."""
    served = served_gpus(context.facts, cell, context.host)
    gpus = arch_list.known_capabilities(context.facts, context.host.gpus)
    has_use = served is not None and (bool(served) or not gpus)
    return has_use and (served or frozenset()) >= (
        served_gpus(context.facts, own, context.host) or frozenset()
    )


def other_toolkits(context: CheckContext) -> list[Cell]:
    """Return the cells of the release and the Python that serve the most GPUs of this machine, oldest toolkit first.

    There are none if no toolkit serves any of its GPUs. Of a machine whose GPUs are not known, the driver alone counts.
    """
    facts, build = context.facts, context.build
    alike = [
        one
        for one in possible_cells(facts, context.cell.release, build.arch)
        if one.build.python == build.python
    ]
    served = [
        (cell, found)
        for cell in alike
        if (found := served_gpus(facts, cell, context.host)) is not None
    ]
    most = max((len(found) for _, found in served), default=0)
    if not most and arch_list.known_capabilities(facts, context.host.gpus):
        return []
    return [cell for cell, found in served if len(found) == most]


def tried_toolkit(context: CheckContext, gpu: str = "") -> str:
    """Return the command that builds the release with a tried toolkit that serves this machine; "" if there is none.

    One whose official build has code for its GPUs goes before newer ones. `gpu` is a capability that it has to serve.
    """
    facts, host = context.facts, context.host
    gpus = {one.name for one in arch_list.known_capabilities(facts, host.gpus)}

    def is_official(cell: Cell) -> bool:
        targets = arch_list.parse_targets(facts, arch_list.official_arch_list(facts, cell) or "")
        return gpus <= {target.capability for target in targets}

    tried = [cell for cell in _serving(context, gpu) if find_trial(facts, cell).witness]
    best = max(reversed(tried), key=is_official, default=None)
    return f"nox -s {best.build.identifier(host.arch)}" if best else ""


def untried_toolkit(context: CheckContext, gain: str, gpu: str = "") -> str:
    """Return the newest build that would serve this machine, though nobody is known to have built it, as a clause.

    `gain` is what it does here, as in "makes code for it". "" if there is no such build.
    """
    best = next(reversed(_serving(context, gpu)), None)
    if best is None:
        return ""
    return f"`nox -s {best.build.identifier(context.host.arch)}` {gain}; nobody is known to have built that"


def _serving(context: CheckContext, gpu: str) -> list[Cell]:
    cells = other_toolkits(context)
    return [
        one
        for one in cells
        if not gpu or gpu in (served_gpus(context.facts, one, context.host) or ())
    ]
