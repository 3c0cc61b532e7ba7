"""Predict whether the link of libtorch_cuda overflows: its code reaches only so many bytes.

The code of a library refers to its data by 32-bit offsets, so everything must lie within 2 GiB.
Device code (.nv_fatbin) stands between them. With too many compute capabilities, the linker ends
with "relocation truncated to fit".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchmill.config.arch_list import SEPARATORS, parse_targets
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.link_facts import LinkFacts
from torchmill.config.release import Release
from torchmill.config.served_gpus import serving_kind
from torchmill.config.versions import is_within
from torchmill.core.units import format_bytes
from torchmill.plan.build_options import SWITCHED_ON

_DEVICE_LIBRARIES = ("libtorch_cuda", "libcaffe2_gpu")
_RISK_VERBS = {
    "none": "fits into",
    "possible": "may exceed",
    "likely": "will hardly fit into",
}


@dataclass(frozen=True, slots=True)
class OverflowRisk:
    """How near a link comes to its limit, and the settings that would make it smaller."""

    level: str  # "none", "possible", "likely"
    expected: CostRange  # bytes of the largest library
    limit: int  # bytes
    sentence: str
    cures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _DeviceLink:
    """A link whose size is predicted."""

    facts: LinkFacts
    release: Release
    cuda: str  # version of the toolkit
    weight: float  # bytes of one image of device code
    variables: Mapping[str, str]  # of the build

    def is_on(self, switch: str) -> bool:
        """Tell whether the build switches something on."""
        return self.variables.get(switch, "").upper() in SWITCHED_ON

    def library_bytes(self, **changes: str) -> CostRange:
        """Return the bytes of the largest library, if some variables of the build are changed."""
        link = _DeviceLink(
            self.facts, self.release, self.cuda, self.weight, {**self.variables, **changes}
        )
        return _library_bytes(link)


def count_code_images(capabilities: str) -> int:
    """Return how many times device code is compiled for a list of compute capabilities.

    It is compiled once for each, and once more for the PTX of "8.6+PTX".
    """
    entries = _split_capabilities(capabilities)
    return len(entries) + sum(entry.endswith("+PTX") for entry in entries)


def predict_overflow(
    facts: Facts,
    release: Release,
    cuda: str,
    variables: Mapping[str, str],
    gpus: Sequence[Capability] = (),
) -> OverflowRisk | None:
    """Return the risk of a build with these variables, TORCH_CUDA_ARCH_LIST among them.

    A shorter list is proposed only if it serves `gpus` as the whole list does. None if nothing is
    known: there is no list, or no official wheel by which to weigh device code.
    """
    capabilities = variables.get("TORCH_CUDA_ARCH_LIST", "")
    weight = capability_weight(facts, release)
    if facts.linking is None or weight is None or not count_code_images(capabilities):
        return None
    weight_bytes, weighed_release = weight
    link = _DeviceLink(facts.linking, release, cuda, weight_bytes, variables)
    limit = facts.linking.limit
    expected = link.library_bytes()
    if expected.low > limit:
        level = "likely"
    elif expected.high > limit:
        level = "possible"
    else:
        level = "none"
    sentence = (
        f"libtorch_cuda is expected to take {expected.in_bytes} ({capabilities}, judged by the "
        f"official wheel of {weighed_release.version}), which {_RISK_VERBS[level]} the "
        f"{format_bytes(limit)} that its code can reach"
    )
    cures: tuple[str, ...] = ()
    if level != "none":
        cures = tuple(_find_cures(link, _fitting_list(facts, link, gpus)))
    return OverflowRisk(level, expected, limit, sentence, cures)


def capability_weight(facts: Facts, release: Release) -> tuple[float, Release] | None:
    """Return the bytes of one image of device code, and the release whose wheel shows them.

    It is the release itself, or else the nearest whose sizes are recorded.
    """
    releases = facts.releases[release.package]
    position = [candidate.version for candidate in releases].index(release.version)
    nearest: tuple[float, Release] | None = None
    nearest_distance = len(releases)
    for index, candidate in enumerate(releases):
        weight = _weight_in_wheel(facts, candidate)
        distance = abs(index - position)
        if weight and distance < nearest_distance:
            nearest = weight, candidate
            nearest_distance = distance
    return nearest


def _weight_in_wheel(facts: Facts, release: Release) -> float | None:
    """Return the bytes of one image of device code in a release's wheel on PyPI.

    What is linked statically, such as cuDNN, is subtracted, and the rest scaled to the unit of
    sizes: compressed by `-compress-all`.
    """
    linking = facts.linking
    cuda = release.cuda_pypi
    official = release.cuda_official.get(cuda or "")
    libraries = 0.0
    for name, size in release.sizes.items():
        if name.startswith(_DEVICE_LIBRARIES):
            libraries += size
    if linking is None or cuda is None or official is None or not libraries:
        return None
    # A wheel that requires NVIDIA's package of a library has not linked it statically.
    required = " ".join(official.requires)
    static = 0.0
    for library in linking.static:
        if is_within(library.cuda, cuda) and f"nvidia-{library.name.lower()}" not in required:
            static += _mean(library.size)
    flags = ["-compress-all"]
    for flag, toolkits in linking.official_compression.items():
        if is_within(toolkits, cuda):
            flags.append(flag)
    device = (libraries - static) / _mean(_compression(linking, " ".join(flags)))
    images = count_code_images(official.capabilities.get("x86_64", ""))
    return device / images if images and device > 0 else None


def _library_bytes(link: _DeviceLink) -> CostRange:
    """Return the bytes of the largest library of device code."""
    facts = link.facts
    factor = _compression(facts, link.variables.get("TORCH_NVCC_FLAGS", ""))
    code = count_code_images(link.variables["TORCH_CUDA_ARCH_LIST"]) * link.weight
    device = CostRange(
        code * (1 - facts.margin) * factor.low, code * (1 + facts.margin) * factor.high
    )
    static = CostRange(0, 0)
    for library in facts.static:
        if is_within(library.cuda, link.cuda) and link.is_on(library.variable):
            static += library.size
    if is_within(facts.split, link.release.version) and link.is_on("BUILD_SPLIT_CUDA"):
        # Two libraries: one with torch's device code, the other with cuDNN and its like.
        return CostRange(max(device.low, static.low), max(device.high, static.high))
    return device + static


def _fitting_list(facts: Facts, link: _DeviceLink, gpus: Sequence[Capability]) -> str:
    """Return the longest part of a build's list whose library fits for certain; "" if none does."""
    capabilities = link.variables["TORCH_CUDA_ARCH_LIST"]
    for shorter in _shorter_lists(facts, capabilities, gpus):
        if link.library_bytes(TORCH_CUDA_ARCH_LIST=shorter).high <= link.facts.limit:
            return shorter
    return ""


def _shorter_lists(facts: Facts, capabilities: str, gpus: Sequence[Capability]) -> Iterator[str]:
    """Yield ever shorter parts of a list, each without one more of its oldest entries.

    Entries stay if some of `gpus` would be served otherwise without them.
    """
    targets = parse_targets(facts, capabilities)
    served = {gpu.name: serving_kind(facts, targets, gpu) for gpu in gpus}
    entries = _split_capabilities(capabilities)
    for entry in list(entries):
        fewer = [other for other in entries if other != entry]
        if not fewer:
            continue
        targets = parse_targets(facts, ";".join(fewer))
        if all(serving_kind(facts, targets, gpu) == served[gpu.name] for gpu in gpus):
            entries = fewer
            yield ";".join(entries)


def _find_cures(link: _DeviceLink, shorter_list: str) -> Iterator[str]:
    """Yield the ways to make a library smaller; `shorter_list` is one that fits, or ""."""
    for name, value in _smaller_settings(link):
        if link.variables.get(name) != value:
            quoted = f'"{value}"' if " " in value else value
            yield f"{name}={quoted}: {link.library_bytes(**{name: value}).in_bytes}"
    if shorter_list:
        yield f"a shorter list, such as TORCH_CUDA_ARCH_LIST={shorter_list!r}"
    yield (
        "a linker script that puts .nv_fatbin behind .bss, as "
        "`nvcc --host-linker-script=gen-lcs` writes it"
    )


def _smaller_settings(link: _DeviceLink) -> Iterator[tuple[str, str]]:
    """Yield the settings that make a library smaller, as name and value."""
    if is_within(link.facts.split, link.release.version):
        yield "BUILD_SPLIT_CUDA", "ON"
    if link.is_on("USE_STATIC_CUDNN"):
        yield "USE_STATIC_CUDNN", "0"
    flags = link.variables.get("TORCH_NVCC_FLAGS", "")
    if "-compress-all" not in flags and "-compress-mode" not in flags:
        yield "TORCH_NVCC_FLAGS", "-Xfatbin -compress-all"
    for flag, toolkits in link.facts.official_compression.items():
        if is_within(toolkits, link.cuda) and flag not in flags:
            yield "TORCH_NVCC_FLAGS", f"-Xfatbin {flag}"


def _compression(linking: LinkFacts, flags: str) -> CostRange:
    """Return the factor of the strongest compression that flags ask for."""
    asked_for = [option for option in linking.compression if option.flag and option.flag in flags]
    uncompressed = [option for option in linking.compression if not option.flag]
    strongest = min(asked_for or uncompressed, key=lambda option: option.factor.high)
    return strongest.factor


def _split_capabilities(capabilities: str) -> list[str]:
    return [entry for entry in SEPARATORS.split(capabilities) if entry]


def _mean(bounds: CostRange) -> float:
    return (bounds.low + bounds.high) / 2
