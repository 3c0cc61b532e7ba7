"""Tell which GPUs device code runs on: code of the same major version, and PTX that drivers compile."""

from collections.abc import Iterable

from packaging.version import Version

from torchmill.config.arch_list import ArchTarget, capability_key, parse_targets, target_key
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability


def is_chip(facts: Facts, capability: str) -> bool:
    """Tell whether a capability is that of systems on a chip, such as Jetson's."""
    known = facts.capability(capability)
    return known is not None and known.tegra


def code_runs(facts: Facts, target: ArchTarget, gpu: Capability) -> bool:
    """Tell whether a target's code runs on GPUs of a capability: on the same, or a later minor of its major.

    NVIDIA does not promise the second for systems on a chip, nor between them and graphics cards.
    """
    if target.capability == gpu.name:
        return True
    if target.suffix == "a" or gpu.tegra or is_chip(facts, target.capability):
        return False
    (major, minor), (gpu_major, gpu_minor) = (
        capability_key(target.capability),
        capability_key(gpu.name),
    )
    return major == gpu_major and minor < gpu_minor


def ptx_runs(facts: Facts, target: ArchTarget, gpu: Capability) -> bool:
    """Tell whether a driver compiles a target's PTX for GPUs of a capability: for every later one."""
    if target.suffix:
        return target.ptx and code_runs(facts, target, gpu)
    return target.ptx and capability_key(target.capability) <= capability_key(gpu.name)


def how_served(facts: Facts, targets: Iterable[ArchTarget], gpu: Capability) -> str | None:
    """Return how a list serves GPUs of a capability: "code", "PTX", or None, not at all."""
    served = serving_target(facts, targets, gpu)
    return served[0] if served else None


def serving_target(
    facts: Facts, targets: Iterable[ArchTarget], gpu: Capability
) -> tuple[str, ArchTarget] | None:
    """Return how a list serves GPUs of a capability, "code" or "PTX", and the entry that does; None: not at all."""
    newest_first = sorted(targets, key=target_key, reverse=True)
    ways = (("code", code_runs), ("PTX", ptx_runs))
    return next(
        ((way, one) for way, runs in ways for one in newest_first if runs(facts, one, gpu)), None
    )


def unserved_capabilities(facts: Facts, code: str, listed: str) -> list[str]:
    """Return the capabilities of a list whose GPUs some code does not run on, nor a driver's PTX of it.

    Both are written as TORCH_CUDA_ARCH_LIST is: "7.0;8.6+PTX". PTX that the list asks for is not missed.
    """
    there, wanted = parse_targets(facts, code), parse_targets(facts, listed)
    known = {one.capability: facts.capability(one.capability) for one in wanted}
    return [
        name for name, gpu in known.items() if gpu is None or how_served(facts, there, gpu) is None
    ]


def without_cudnn(version: str, capabilities: Iterable[Capability]) -> list[str]:
    """Return for which capabilities a version of cuDNN has no code."""
    return list(
        dict.fromkeys(one.name for one in capabilities if Version(version) not in one.cudnn)
    )
