"""Which wheel variant a machine gets: the properties of variants and machines, and the choice.

The properties of a machine are those that a client's provider tells, and the choice is that of PEP
825 (a draft). Both are modelled here, to tell beforehand which GPUs take which wheel: a variant must
have all code that any of them would run. uv itself is asked by deliver/variant_resolver.py.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from packaging.version import Version

from torchmill.config import wheel_variants
from torchmill.config.arch_list import capability_key
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.versions import cuda_label
from torchmill.config.wheel_variants import NULL_VARIANT, VariantProperty, WheelVariant
from torchmill.host.processor import processor_needs

NVIDIA = "nvidia"
X86_64 = "x86_64"
AARCH64 = "aarch64"
LOWER_BOUND = "cuda_version_lower_bound"
SM_ARCH = "sm_arch"
_LEVEL = "level"
_VERSION = "version"
# Systems on a chip have Arm processors.
_ARCH_OF_CHIPS = AARCH64
_OLDEST_CUDA_MAJOR = 11  # that NVIDIA's provider tells
_NEWEST_CUDA_MINOR = 20
_END = (1 << 30, 0, 0)  # after all properties of a variant

# The values that a machine has of each feature, by namespace and feature, the best first.
MachineProperties = Mapping[tuple[str, str], Sequence[str]]
NO_PROPERTIES: MachineProperties = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs that get one variant of a wheel."""

    capability: str  # of the variant: "8.6"
    takers: tuple[Capability, ...]  # of these GPUs, oldest first: 8.6, 8.9


def group_gpus(facts: Facts, capabilities: Iterable[str], arch: str) -> list[GpuGroup]:
    """Return which GPUs get the variant of each capability, oldest first.

    A provider of NVIDIA's tells that a GPU runs the code of all minor versions of its major one, up
    to its own. So the GPUs of 8.9 get the variant for 8.6, if none is for 8.9. Systems on a chip
    are left out unless `arch`, the machine of the wheel, is theirs, or their very capability is one
    of `capabilities`.
    """
    ordered = sorted(set(capabilities), key=capability_key)
    takers: dict[str, list[Capability]] = {capability: [] for capability in ordered}
    for gpu in facts.gpus.capabilities:
        if not is_of_arch(gpu, arch) and gpu.name not in takers:
            continue
        variant = _variant_for(gpu.name, ordered)
        if variant is not None:
            takers[variant].append(gpu)
    return [GpuGroup(capability, tuple(gpus)) for capability, gpus in takers.items()]


def gpus_without_group(
    facts: Facts, capabilities: Iterable[str], groups: Iterable[GpuGroup]
) -> list[Capability]:
    """Return the GPUs of some capabilities that get none of the groups' variants, oldest first."""
    taken = {gpu.name for group in groups for gpu in group.takers}
    rest = set(capabilities) - taken
    return [gpu for gpu in facts.gpus.capabilities if gpu.name in rest]


def is_of_arch(gpu: Capability, arch: str) -> bool:
    """Tell whether a GPU may be in a machine of an architecture: no chip of x86_64 has one."""
    return not gpu.tegra or arch == _ARCH_OF_CHIPS


def _variant_for(gpu: str, capabilities: Sequence[str]) -> str | None:
    """Return the capability whose variant GPUs of `gpu` get, of some in order; None if none."""
    major, minor = capability_key(gpu)
    fitting = None
    for capability in capabilities:
        variant_major, variant_minor = capability_key(capability)
        if variant_major == major and variant_minor <= minor:
            fitting = capability
    return fitting


def gpu_variant(capability: str, cuda: str, driver_cuda: str) -> WheelVariant:
    """Return the variant for GPUs of a capability, of a wheel that was made with a CUDA toolkit.

    `cuda` is the toolkit's version, "13.2", or "" if it is not known; `driver_cuda` is that of the
    oldest driver that runs the wheel's code.
    """
    label = f"sm{capability.replace('.', '')}"
    if cuda:
        label = f"{cuda_label(cuda)}_{label}"
    return _code_variant(label, [capability], driver_cuda if cuda else "")


def cuda_variant(capabilities: Iterable[str], cuda: str, driver_cuda: str) -> WheelVariant:
    """Return the variant for all GPUs of some capabilities, of a wheel for a CUDA toolkit.

    `cuda` and `driver_cuda` are as for `gpu_variant`. A provider tells of a GPU all older code of
    its major version, so that a capability stands for newer GPUs, too.
    """
    return _code_variant(cuda_label(cuda), capabilities, driver_cuda)


def _code_variant(label: str, capabilities: Iterable[str], driver_cuda: str) -> WheelVariant:
    """Return a variant with code for some capabilities; `driver_cuda` is "" if it is not known."""
    properties = []
    for capability in capabilities:
        number = capability.replace(".", "")
        properties.append(VariantProperty(NVIDIA, SM_ARCH, f"{number}_real"))
    if driver_cuda:
        properties.append(VariantProperty(NVIDIA, LOWER_BOUND, driver_cuda))
    return WheelVariant(label, tuple(sorted(properties)))


def oldest_drivers(facts: Facts, cudas: Iterable[str]) -> dict[str, str]:
    """Return the CUDA of the oldest driver for wheels of one release, by that of their toolkits.

    Of several toolkits of one major version, whose code runs with the same drivers, the oldest gets
    all of these drivers. Each newer one gets drivers from its own version on, so that clients can
    tell which of them goes before the others.
    """
    drivers: dict[str, str] = {}
    majors = set()
    for cuda in sorted(set(cudas), key=Version):
        major = Version(cuda).major
        drivers[cuda] = cuda if major in majors else oldest_cuda(facts, cuda)
        majors.add(major)
    return drivers


def oldest_cuda(facts: Facts, cuda: str) -> str:
    """Return the oldest CUDA version of a driver that runs the code of a toolkit.

    Toolkits of a major version share one (NVIDIA's minor version compatibility): "13.0" for "13.2".
    A toolkit that no fact describes needs its own.
    """
    toolkit = facts.toolkit(cuda)
    if toolkit is None or toolkit.driver is None:
        return cuda
    same = [other.version for other in facts.toolkits if other.driver == toolkit.driver]
    return min(same, key=Version)


def machine_properties(
    gpus: Iterable[str], driver_cuda: str, processor: MachineProperties = NO_PROPERTIES
) -> MachineProperties:
    """Return the properties that a client's providers tell of a machine.

    `gpus` are the capabilities of its GPUs, of which only the newest counts. `driver_cuda` is the
    CUDA version of its driver, "" if there is none: then nothing is told of GPUs. `processor` is
    what `processor_properties` returns.
    """
    properties = dict(processor)
    if driver_cuda:
        major, minor = capability_key(driver_cuda)
        bounds: list[str] = []
        for lower_major in range(major, _OLDEST_CUDA_MAJOR - 1, -1):
            newest_minor = minor if lower_major == major else _NEWEST_CUDA_MINOR
            bounds += [f"{lower_major}.{number}" for number in range(newest_minor, -1, -1)]
            bounds.append(str(lower_major))
        properties[NVIDIA, LOWER_BOUND] = bounds
    capability = max(gpus, key=capability_key, default=None)
    if driver_cuda and capability is not None:
        # Of several GPUs only the newest counts, as for NVIDIA's provider.
        major, minor = capability_key(capability)
        codes = [f"{major}{number}_real" for number in range(minor, -1, -1)]
        properties[NVIDIA, SM_ARCH] = [*codes, f"{major}0_virtual"]
    return properties


def processor_properties(arch: str, features: Collection[str]) -> MachineProperties:
    """Return the properties that a client's providers tell of a processor, by its features.

    There are none for an arch other than x86_64 and aarch64. A client also goes by the number of an
    Arm core, which is not known here.
    """
    if arch == X86_64:
        levels = ["v1"]
        for number in (2, 3, 4):
            if set(processor_needs(X86_64, f"x86-64-v{number}")) <= set(features):
                levels.append(f"v{number}")
        return {(X86_64, _LEVEL): levels[::-1]}
    if arch == AARCH64:
        versions: list[str] = []
        for version, needs in wheel_variants.arm_versions().items():
            if not set(needs) <= set(features):
                break
            versions.append(version)
        return {(AARCH64, _VERSION): versions[::-1]}
    return NO_PROPERTIES


def runs_on(variant: WheelVariant, machine: MachineProperties) -> bool:
    """Tell whether a machine has one value of every feature that a variant names."""
    for feature, values in variant.features.items():
        if not set(values).intersection(machine.get(feature, ())):
            return False
    return True


def missing_properties(variant: WheelVariant, machine: MachineProperties) -> list[VariantProperty]:
    """Return the properties of a variant that a machine has not."""
    missing = []
    for required in variant.properties:
        values = machine.get((required.namespace, required.feature), ())
        if required.value not in values:
            missing.append(required)
    return missing


def rank_variants(
    variants: Iterable[WheelVariant], machine: MachineProperties
) -> list[WheelVariant]:
    """Return the variants that run on a machine, the best first.

    They are compared by their best property, then by the next, and so on; a variant with more
    properties goes before one with less, and the null variant is the last.
    https://peps.python.org/pep-0825/#variant-ordering
    """
    ranks: dict[tuple[str, str], tuple[int, int]] = {}
    for namespace_rank, provider in enumerate(wheel_variants.list_providers()):
        for feature_rank, feature in enumerate(provider.features):
            ranks[provider.namespace, feature] = (namespace_rank, feature_rank)

    def key(variant: WheelVariant) -> tuple[list[tuple[int, int, int]], str]:
        keys = []
        for feature, values in variant.features.items():
            order = list(machine[feature])
            best = min(order.index(value) for value in values if value in order)
            keys.append((*ranks[feature], best))
        # Of two lists that begin alike, the longer one goes first.
        return [*sorted(keys), _END], variant.label

    return sorted((variant for variant in variants if runs_on(variant, machine)), key=key)


def choose_variant(variants: Iterable[WheelVariant], machine: MachineProperties) -> WheelVariant:
    """Return the variant that a machine gets; the null variant if no other runs on it."""
    ranked = rank_variants(variants, machine)
    return ranked[0] if ranked else NULL_VARIANT
