"""The GPUs of the machine that builds: a build without an arch list makes code for these.

An arch list is a list of compute capabilities, the value of TORCH_CUDA_ARCH_LIST: "8.0;8.6+PTX".
"""

from collections.abc import Sequence
from dataclasses import replace

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import gpu_capability
from torchmill.config.toolkit import Toolkit
from torchmill.host.host import Host
from torchmill.plan.arch_choice import find_arch_problems, shortest_arch_list
from torchmill.plan.arch_toolkits import find_toolkit
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.drivers import driver_runs


def with_local_gpus(facts: Facts, cell: Cell, host: Host, options: Options) -> Options:
    """Return the options of a build, with an arch list for the host's GPUs if the user gave none.

    The options stay as they are, and with them the official list, if

    - the user gave a list,
    - the build is for another kind of machine, or one share of a build on several machines,
    - the host's driver cannot run the code of the toolkit,
    - the compute capability of one of the host's GPUs is not known, or
    - no GPU is left for which the build can make code, or the build is without CUDA.
    """
    if options.arch_list or "TORCH_CUDA_ARCH_LIST" in options.settings:
        return options
    # Every machine that compiles a share must compile for the same list.
    if options.shard or options.parts or cell.build.arch != host.arch:
        return options
    toolkit = _toolkit_of_build(facts, cell, options)
    if toolkit is None or not driver_runs(toolkit, host):
        return options
    listed = _local_list(facts, cell, toolkit, host)
    return replace(options, arch_list=listed) if listed else options


def is_local_list(facts: Facts, cell: Cell, host: Host, options: Options) -> bool:
    """Tell whether the arch list among options is the one for the GPUs of the host.

    It may have come from `with_local_gpus`, or from the user.
    """
    toolkit = _toolkit_of_build(facts, cell, options)
    if toolkit is None or not options.arch_list:
        return False
    return options.arch_list == _local_list(facts, cell, toolkit, host)


def _local_list(facts: Facts, cell: Cell, toolkit: Toolkit, host: Host) -> str:
    """Return the shortest arch list for the GPUs of a host; "" if none can be made."""
    gpus = servable_gpus(facts, cell, toolkit, host)
    return arch_list.format_arch_list(shortest_arch_list(facts, gpus)) if gpus else ""


def servable_gpus(facts: Facts, cell: Cell, toolkit: Toolkit, host: Host) -> Sequence[Capability]:
    """Return the compute capabilities of a host's GPUs for which a build can make code.

    They are those that neither the toolkit nor the cell's release refuses.

    There are none if the capability of any GPU is not known: a list for the other GPUs alone would
    make a wheel that does not run on all of this machine.
    """
    servable: list[Capability] = []
    for gpu in host.gpus.devices:
        capability = gpu_capability(facts, gpu)
        # A driver may report a capability that is newer than the facts.
        if capability is None or facts.capability(capability.name) is None:
            return []
        if not refuses_capability(facts, cell, toolkit, capability):
            servable.append(capability)
    return servable


def refuses_capability(facts: Facts, cell: Cell, toolkit: Toolkit, gpu: Capability) -> bool:
    """Tell whether a toolkit, or the release of a cell, makes no code for a compute capability."""
    problems = find_arch_problems(facts, [ArchTarget(gpu.name)], toolkit, cell.release)
    return any(problems)


def _toolkit_of_build(facts: Facts, cell: Cell, options: Options) -> Toolkit | None:
    """Return the toolkit that compiles a cell: the one that `--toolkit` names, or its own.

    None for a build without CUDA, or if the facts do not have the cell's own.
    """
    if cell.build.cuda is None:
        return None
    if options.toolkit:
        return find_toolkit(facts, "--toolkit", options.toolkit)
    return facts.toolkit(cell.build.cuda)
