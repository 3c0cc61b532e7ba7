"""The GPUs of the machine that builds: the default of a list of compute capabilities."""

from collections.abc import Sequence
from dataclasses import replace

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.matrix import Cell
from torchmill.config.model import Capability, Facts, Host, Options, Toolkit
from torchmill.plan import published


def with_local_gpus(facts: Facts, cell: Cell, host: Host, options: Options) -> Options:
    """Return the options of a build on a host: without a list of capabilities, those of its GPUs are asked for.

    The official list stays if the build is for another kind of machine or a share of one on several, if nothing that it
    makes runs on this machine, or if a GPU is not known.
    """
    if options.arch_list or "TORCH_CUDA_ARCH_LIST" in options.settings:
        return options
    if options.shard or options.parts or cell.build.arch != host.arch:
        return options
    toolkit = _toolkit(facts, cell, options)
    if toolkit is None or not published.is_driven(toolkit, host):
        return options
    able = servable_gpus(facts, cell, toolkit, host)
    shortest = arch_list.shortest_arch_list(facts, able)
    return replace(options, arch_list=arch_list.format_arch_list(shortest)) if able else options


def is_local_list(facts: Facts, host: Host, listed: str | None) -> bool:
    """Tell whether a list is the shortest one for the GPUs of a host: what `with_local_gpus` asks for."""
    gpus = [gpu for one in host.gpus if (gpu := arch_list.gpu_capability(facts, one))]
    return bool(gpus) and listed == arch_list.format_arch_list(
        arch_list.shortest_arch_list(facts, gpus)
    )


def servable_gpus(facts: Facts, cell: Cell, toolkit: Toolkit, host: Host) -> Sequence[Capability]:
    """Return the GPUs of a host for which a toolkit and a release make code; none if one of the GPUs is not known."""
    gpus = [arch_list.gpu_capability(facts, gpu) for gpu in host.gpus]
    known = [gpu for gpu in gpus if gpu is not None and facts.capability(gpu.name)]
    if len(known) < len(gpus):
        return []
    return [gpu for gpu in known if not takes_no_code(facts, cell, toolkit, gpu)]


def takes_no_code(facts: Facts, cell: Cell, toolkit: Toolkit, gpu: Capability) -> bool:
    """Tell whether a toolkit or a release refuses every list with a capability."""
    return any(arch_list.find_arch_problems(facts, [ArchTarget(gpu.name)], toolkit, cell.release))


def _toolkit(facts: Facts, cell: Cell, options: Options) -> Toolkit | None:
    if cell.build.cuda is None:
        return None
    named = options.toolkit
    return (
        arch_list.find_toolkit(facts, "--toolkit", named)
        if named
        else facts.toolkit(cell.build.cuda)
    )
