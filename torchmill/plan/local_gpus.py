"""The GPUs of the machine that builds: the default for a list of compute capabilities."""

from collections.abc import Sequence
from dataclasses import replace

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.gpu_names import gpu_capability, known_capabilities
from torchmill.config.toolkit import Toolkit
from torchmill.host.host import Host
from torchmill.plan.arch_choice import find_arch_problems, shortest_arch_list
from torchmill.plan.arch_toolkits import find_toolkit
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.drivers import is_driven


def with_local_gpus(facts: Facts, cell: Cell, host: Host, options: Options) -> Options:
    """Return the options of a build, with an arch list for the host's GPUs if none was given.

    The options stay as they are, and with them the official list, if

    - the user gave a list,
    - the build is for another kind of machine, or one share of a build on several machines,
    - the host's driver cannot run the code of the toolkit, or
    - the compute capability of one of the host's GPUs is not known.
    """
    if options.arch_list or "TORCH_CUDA_ARCH_LIST" in options.settings:
        return options
    if options.shard or options.parts or cell.build.arch != host.arch:
        return options
    toolkit = _toolkit_of_build(facts, cell, options)
    if toolkit is None or not is_driven(toolkit, host):
        return options
    gpus = servable_gpus(facts, cell, toolkit, host)
    if not gpus:
        return options
    targets = shortest_arch_list(facts, gpus)
    return replace(options, arch_list=arch_list.format_arch_list(targets))


def is_local_list(facts: Facts, host: Host, listed: str | None) -> bool:
    """Tell whether a list is the shortest one for the host's GPUs, as `with_local_gpus` gives."""
    gpus = known_capabilities(facts, host.gpus.devices)
    if not gpus:
        return False
    return listed == arch_list.format_arch_list(shortest_arch_list(facts, gpus))


def servable_gpus(facts: Facts, cell: Cell, toolkit: Toolkit, host: Host) -> Sequence[Capability]:
    """Return the capabilities of a host's GPUs that a toolkit and a release make code for.

    There are none if the capability of any GPU is not known: a list for the other GPUs alone would
    make a wheel that does not run on all of this machine.
    """
    servable: list[Capability] = []
    for gpu in host.gpus.devices:
        capability = gpu_capability(facts, gpu)
        if capability is None or facts.capability(capability.name) is None:
            return []
        if not takes_no_code(facts, cell, toolkit, capability):
            servable.append(capability)
    return servable


def takes_no_code(facts: Facts, cell: Cell, toolkit: Toolkit, gpu: Capability) -> bool:
    """Tell whether a toolkit or a release refuses every arch list that has a capability."""
    problems = find_arch_problems(facts, [ArchTarget(gpu.name)], toolkit, cell.release)
    return any(problems)


def _toolkit_of_build(facts: Facts, cell: Cell, options: Options) -> Toolkit | None:
    """Return the toolkit that compiles a cell: the one that `--toolkit` names, or its own."""
    if cell.build.cuda is None:
        return None
    if options.toolkit:
        return find_toolkit(facts, "--toolkit", options.toolkit)
    return facts.toolkit(cell.build.cuda)
