"""Predict whether libtorch_cuda becomes too large to link: code reaches data at most 2 GiB away.

The host code of a library refers to its data by 32-bit offsets, so both must lie within 2 GiB.
Device code (the section .nv_fatbin) stands between them. With too many compute capabilities, the
linker ends with "relocation truncated to fit".

Device code is counted in images: one for each entry of the list of compute capabilities, and one
for each PTX. An image is taken to weigh as much as in the official wheels, which compress device
code by `-compress-all`. Every other compression is a factor on that weight.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchmill.config.arch_list import SEPARATORS, parse_arch_list, parse_checked_arch_list
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
# An option of fatbinary, among those of nvcc. Of two modes, only one can hold.
_COMPRESS_MODE = re.compile(r"(?:-Xfatbin[ =]+)?-compress-mode=\S+")
_RISK_VERBS = {
    "none": "fits into",
    "possible": "may exceed",
    "likely": "will most likely exceed",
}


@dataclass(frozen=True, slots=True)
class OverflowRisk:
    """How near a link comes to its limit, and the settings that would make it smaller."""

    level: str  # "none", "possible", "likely"
    expected: CostRange  # bytes of the largest library
    limit: int  # bytes
    sentence: str  # for users, without its full stop
    cures: tuple[str, ...]  # each is a clause; () for the level "none"


@dataclass(frozen=True, slots=True)
class _DeviceLink:
    """A link of libraries with device code, whose size is predicted."""

    linking: LinkFacts
    release: Release
    cuda: str  # version of the toolkit
    image_bytes: float  # of one image of device code, compressed by `-compress-all`
    variables: Mapping[str, str]  # of the build

    def is_on(self, switch: str) -> bool:
        """Tell whether a variable of the build switches something on, such as USE_STATIC_NCCL."""
        return self.variables.get(switch, "").upper() in SWITCHED_ON

    def largest_library(self) -> CostRange:
        """Return the bytes of the largest library that is linked."""
        factor = _compression_factor(self.linking, self.variables.get("TORCH_NVCC_FLAGS", ""))
        images = count_code_images(self.variables["TORCH_CUDA_ARCH_LIST"])
        code = images * self.image_bytes
        margin = self.linking.margin
        device = CostRange(code * (1 - margin) * factor.low, code * (1 + margin) * factor.high)
        static = CostRange(0, 0)
        for library in self.linking.static:
            if is_within(library.cuda, self.cuda) and self.is_on(library.variable):
                static += library.size
        if is_within(self.linking.split, self.release.version) and self.is_on("BUILD_SPLIT_CUDA"):
            # Two libraries: one with torch's device code, the other with cuDNN and its like.
            return CostRange(max(device.low, static.low), max(device.high, static.high))
        return device + static

    def largest_library_with(self, name: str, value: str) -> CostRange:
        """Return the bytes of the largest library if one variable of the build had this value."""
        return replace(self, variables={**self.variables, name: value}).largest_library()


def count_code_images(capabilities: str) -> int:
    """Return the number of images of device code for a list: "8.0;8.6+PTX" makes three.

    Each entry makes one, and "+PTX" a second one; "" makes none. A word that stands for several
    capabilities, such as "Ampere", counts as one entry.
    """
    entries = _split_capabilities(capabilities)
    return len(entries) + sum(entry.endswith("+PTX") for entry in entries)


def predict_overflow(
    facts: Facts,
    release: Release,
    cuda: str,
    variables: Mapping[str, str],
    gpu_capabilities: Sequence[Capability] = (),
) -> OverflowRisk | None:
    """Return the risk that the link of a build overflows.

    `cuda` is the version of the toolkit, and `variables` are the build's, with
    TORCH_CUDA_ARCH_LIST. Among the cures, a shorter list is proposed only if it serves GPUs of
    `gpu_capabilities` as the whole list does. None if nothing can be predicted: there is no list,
    or no official wheel by which to weigh device code.
    """
    capabilities = variables.get("TORCH_CUDA_ARCH_LIST", "")
    image = measured_image(facts, release)
    if facts.linking is None or image is None or not count_code_images(capabilities):
        return None
    image_bytes, weighed_release = image
    # `--set` passes the user's list as it is, with words such as "Ampere", which make several
    # images.
    targets, unreadable = parse_arch_list(facts, capabilities, release.torch_version)
    if not unreadable:
        expanded = ";".join(str(target) for target in targets)
        variables = {**variables, "TORCH_CUDA_ARCH_LIST": expanded}
    link = _DeviceLink(facts.linking, release, cuda, image_bytes, variables)
    limit = facts.linking.limit
    expected = link.largest_library()
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
        cures = tuple(_find_cures(link, _fitting_list(facts, link, gpu_capabilities)))
    return OverflowRisk(level, expected, limit, sentence, cures)


def measured_image(facts: Facts, release: Release) -> tuple[float, Release] | None:
    """Return the bytes of one image of device code, and the release in whose wheel it weighs them.

    That is the release itself if the sizes of its wheel are recorded, else the release nearest to
    it in the list of releases. None if no wheel of the package can be weighed.
    """
    releases = facts.releases[release.package]
    position = [candidate.version for candidate in releases].index(release.version)
    nearest: tuple[float, Release] | None = None
    nearest_distance = len(releases)  # more than any
    for index, candidate in enumerate(releases):
        weight = _weight_in_wheel(facts, candidate)
        distance = abs(index - position)
        if weight and distance < nearest_distance:
            nearest = weight, candidate
            nearest_distance = distance
    return nearest


def _weight_in_wheel(facts: Facts, release: Release) -> float | None:
    """Return the bytes of one image of device code in a release's wheel on PyPI.

    Libraries that are linked statically, such as cuDNN, are subtracted. The rest is divided by the
    factor of the wheel's compression, so that all weights are of code under `-compress-all`. None
    if the wheel has no device code, or if its sizes are not recorded.
    """
    linking = facts.linking
    cuda = release.cuda.pypi
    official = release.cuda.official.get(cuda or "")
    libraries = 0.0
    for name, size in release.upstream.sizes.items():
        if name.startswith(_DEVICE_LIBRARIES):
            libraries += size
    if linking is None or cuda is None or official is None or not libraries:
        return None
    # A wheel that requires NVIDIA's package of a library has not linked it statically.
    required = " ".join(official.requires)
    static = 0.0  # bytes
    for library in linking.static:
        if is_within(library.cuda, cuda) and f"nvidia-{library.name.lower()}" not in required:
            static += _mean(library.size)
    flags = ["-compress-all"]
    for flag, toolkits in linking.official_compression.items():
        if is_within(toolkits, cuda):
            flags.append(flag)
    device = (libraries - static) / _mean(_compression_factor(linking, " ".join(flags)))
    # The sizes in the facts are those of the wheels for x86_64.
    images = count_code_images(official.capabilities.get("x86_64", ""))
    if not images or device <= 0:
        return None
    return device / images


def _fitting_list(facts: Facts, link: _DeviceLink, gpu_capabilities: Sequence[Capability]) -> str:
    """Return the longest part of a build's list whose library fits for certain; "" if none does."""
    capabilities = link.variables["TORCH_CUDA_ARCH_LIST"]
    for shorter in _shorter_lists(facts, capabilities, gpu_capabilities):
        if link.largest_library_with("TORCH_CUDA_ARCH_LIST", shorter).high <= link.linking.limit:
            return shorter
    return ""


def _shorter_lists(
    facts: Facts, capabilities: str, gpu_capabilities: Sequence[Capability]
) -> Iterator[str]:
    """Yield ever shorter parts of a list, each without one more entry.

    Entries are dropped in list order, which begins with the oldest capability. An entry stays if
    GPUs of one of `gpu_capabilities` would be served otherwise without it.
    """
    targets = parse_checked_arch_list(facts, capabilities)
    kinds = [serving_kind(facts, targets, capability) for capability in gpu_capabilities]
    entries = _split_capabilities(capabilities)
    for entry in list(entries):
        fewer = [other for other in entries if other != entry]
        if not fewer:
            continue
        targets = parse_checked_arch_list(facts, ";".join(fewer))
        if [serving_kind(facts, targets, capability) for capability in gpu_capabilities] == kinds:
            entries = fewer
            yield ";".join(entries)


def _find_cures(link: _DeviceLink, shorter_list: str) -> Iterator[str]:
    """Yield the ways to make a library smaller, each as a clause.

    `shorter_list` is the list of compute capabilities to propose; "" proposes none.
    """
    for name, value in _smaller_settings(link):
        if link.variables.get(name) != value:
            quoted = f'"{value}"' if " " in value else value
            yield f"{name}={quoted}: {link.largest_library_with(name, value).in_bytes}"
    if shorter_list:
        yield f"a shorter list, such as TORCH_CUDA_ARCH_LIST={shorter_list!r}"
    yield (
        "a linker script that puts .nv_fatbin behind .bss, as "
        "`nvcc --host-linker-script=gen-lcs` writes it"
    )


def _smaller_settings(link: _DeviceLink) -> Iterator[tuple[str, str]]:
    """Yield the settings that make a library smaller, as name and value."""
    can_split = is_within(link.linking.split, link.release.version)
    if can_split and not link.is_on("BUILD_SPLIT_CUDA"):
        yield "BUILD_SPLIT_CUDA", "ON"
    if link.is_on("USE_STATIC_CUDNN"):
        yield "USE_STATIC_CUDNN", "0"
    flags = link.variables.get("TORCH_NVCC_FLAGS", "")
    # The flags of the build stay: a value of --set replaces the whole variable.
    if "-compress-all" not in flags and "-compress-mode" not in flags:
        yield "TORCH_NVCC_FLAGS", f"{flags} -Xfatbin -compress-all".strip()
    for flag, toolkits in link.linking.official_compression.items():
        if is_within(toolkits, link.cuda) and flag not in flags:
            if flag.startswith("-compress-mode="):
                flags = " ".join(_COMPRESS_MODE.sub("", flags).split())
            yield "TORCH_NVCC_FLAGS", f"{flags} -Xfatbin {flag}".strip()


def _compression_factor(linking: LinkFacts, flags: str) -> CostRange:
    """Return the factor on the bytes of device code by the strongest compression among flags.

    `flags` are those of nvcc. Device code under `-compress-all` has the factor 1, and device code
    without compression one above it.
    """
    # The facts always have an option without a flag: device code that is not compressed.
    requested = [option for option in linking.compression if option.flag and option.flag in flags]
    uncompressed = [option for option in linking.compression if not option.flag]
    strongest = min(requested or uncompressed, key=lambda option: option.factor.high)
    return strongest.factor


def _split_capabilities(capabilities: str) -> list[str]:
    """Return the entries of a list of capabilities, as they are written."""
    return [entry for entry in SEPARATORS.split(capabilities) if entry]


def _mean(bounds: CostRange) -> float:
    """Return the arithmetic mean of two bounds."""
    return (bounds.low + bounds.high) / 2
