"""What nvcc is asked to make code for, and which GPUs that code runs on."""

from collections.abc import Iterable
from dataclasses import dataclass

from torchmill.model import Capability, Facts


def number(capability: str) -> tuple[int, int]:
    """Return a capability in an order that people expect: "9.0" before "10.0"."""
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


@dataclass(frozen=True, slots=True)
class Target:
    """One entry of a list of compute capabilities."""

    capability: str  # "9.0"
    suffix: str = ""  # "a": code for this capability alone; "f": for its family
    ptx: bool = False  # PTX too, which drivers compile for later GPUs

    @property
    def name(self) -> str:
        """Return "9.0a": what toolkits list."""
        return self.capability + self.suffix

    def __str__(self) -> str:
        """Return "9.0a+PTX": what PyTorch reads."""
        return self.name + "+PTX" * self.ptx


def order(target: Target) -> tuple[tuple[int, int], str]:
    """Order targets from the oldest capability to the newest."""
    return number(target.capability), target.suffix


def plain(name: str) -> bool:
    """Tell whether a target's name is that of a capability, without "a" or "f"."""
    return name[-1].isdigit()


def canonical(targets: Iterable[Target]) -> str:
    """Return a list as PyTorch writes it, "8.0;8.6+PTX": each target once, the oldest first."""
    ptx: dict[tuple[str, str], bool] = {}
    for one in targets:
        key = one.capability, one.suffix
        ptx[key] = ptx.get(key, False) or one.ptx
    return ";".join(map(str, sorted((Target(*key, wanted) for key, wanted in ptx.items()), key=order)))


def is_chip(facts: Facts, capability: str) -> bool:
    """Tell whether a capability is that of systems on a chip, such as Jetson's."""
    known = facts.capability(capability)
    return known is not None and known.tegra


def code_runs(facts: Facts, target: Target, gpu: Capability) -> bool:
    """Tell whether a target's code runs on GPUs of a capability: on the same, or a later minor of its major.

    NVIDIA does not promise the second for systems on a chip, nor between them and graphics cards.
    """
    if target.capability == gpu.name:
        return True
    if target.suffix == "a" or gpu.tegra or is_chip(facts, target.capability):
        return False
    (major, minor), (gpu_major, gpu_minor) = number(target.capability), number(gpu.name)
    return major == gpu_major and minor < gpu_minor


def ptx_runs(facts: Facts, target: Target, gpu: Capability) -> bool:
    """Tell whether a driver compiles a target's PTX for GPUs of a capability: for every later one."""
    if not target.ptx:
        return False
    return code_runs(facts, target, gpu) if target.suffix else number(target.capability) <= number(gpu.name)


def serves(facts: Facts, targets: Iterable[Target], gpu: Capability) -> str | None:
    """Return how a list serves GPUs of a capability: "code", "PTX", or None, not at all."""
    listed = tuple(targets)
    if any(code_runs(facts, one, gpu) for one in listed):
        return "code"
    return "PTX" if any(ptx_runs(facts, one, gpu) for one in listed) else None


def fewest(facts: Facts, gpus: Iterable[Capability]) -> tuple[Target, ...]:
    """Return the shortest list whose code, without PTX, runs on GPUs of each capability."""
    found: list[Target] = []
    for gpu in sorted(gpus, key=lambda one: number(one.name)):
        if serves(facts, found, gpu) is None:
            found.append(Target(gpu.name))
    return tuple(found)
