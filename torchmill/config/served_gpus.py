"""Tell which GPUs device code runs on: code of the same major version, and PTX.

A wheel has code for some capabilities. PTX is an intermediate language, which a driver compiles for
later GPUs.

https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
"""

from collections.abc import Iterable

from packaging.version import Version

from torchmill.config.arch_list import (
    ArchTarget,
    capability_key,
    parse_checked_arch_list,
    target_key,
)
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability


def is_chip(facts: Facts, capability: str) -> bool:
    """Tell whether a capability is that of systems on a chip, such as Jetson's."""
    known_capability = facts.capability(capability)
    return known_capability is not None and known_capability.tegra


def code_runs(facts: Facts, target: ArchTarget, gpu: Capability) -> bool:
    """Tell whether a target's code runs on GPUs of a capability.

    It does on the same capability, and on a later minor version of the same major one. NVIDIA does
    not promise the latter for systems on a chip, nor between them and graphics cards. Code with the
    suffix "a" runs on its own capability alone; "f" counts as no suffix.
    """
    # That holds for code with a suffix too.
    if target.capability == gpu.name:
        return True
    # Code with "f" follows the rule for code without a suffix.
    if target.suffix == "a" or gpu.tegra or is_chip(facts, target.capability):
        return False
    major, minor = capability_key(target.capability)
    gpu_major, gpu_minor = capability_key(gpu.name)
    return major == gpu_major and minor < gpu_minor


def ptx_runs(facts: Facts, target: ArchTarget, gpu: Capability) -> bool:
    """Tell whether a driver compiles a target's PTX for GPUs of a capability: its own, every later one.

    PTX with a suffix runs only where its code does.
    """
    if not target.ptx:
        return False
    if target.suffix:
        return code_runs(facts, target, gpu)
    return capability_key(target.capability) <= capability_key(gpu.name)


def serving_kind(facts: Facts, targets: Iterable[ArchTarget], gpu: Capability) -> str | None:
    """Return how code for `targets` serves GPUs of a capability: "code", "PTX", or None: not at all."""
    served = serving_target(facts, targets, gpu)
    return served[0] if served else None


def serving_target(
    facts: Facts, targets: Iterable[ArchTarget], gpu: Capability
) -> tuple[str, ArchTarget] | None:
    """Return how code for `targets` serves GPUs of a capability, and the target that does.

    Code goes before PTX, and the newest target before older ones. None if no target serves them.
    """
    newest_first = sorted(targets, key=target_key, reverse=True)
    for target in newest_first:
        if code_runs(facts, target, gpu):
            return "code", target
    for target in newest_first:
        if ptx_runs(facts, target, gpu):
            return "PTX", target
    return None


def unserved_capabilities(facts: Facts, code: str, listed: str) -> list[str]:
    """Return the capabilities in `listed` on whose GPUs neither the code nor the PTX of `code` runs.

    Both are written as TORCH_CUDA_ARCH_LIST is: "7.0;8.6+PTX". PTX that only `listed` has is not
    missed, and a suffix in it is ignored. A capability that the facts do not know is not served.
    """
    targets = parse_checked_arch_list(facts, code)
    unserved: list[str] = []
    for listed_target in parse_checked_arch_list(facts, listed):
        name = listed_target.capability
        gpu = facts.capability(name)
        served = gpu is not None and serving_kind(facts, targets, gpu) is not None
        if not served and name not in unserved:
            unserved.append(name)
    return unserved


def unserved_by_cudnn(version: str, capabilities: Iterable[Capability]) -> list[str]:
    """Return the names of those capabilities that a version of cuDNN has no code for."""
    names: list[str] = []
    for capability in capabilities:
        if Version(version) not in capability.cudnn and capability.name not in names:
            names.append(capability.name)
    return names
