"""Predict whether the link of libtorch_cuda overflows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchmill.config.arch_list import SEPARATORS, parse_targets
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.link_facts import LinkFacts
from torchmill.config.release import Release
from torchmill.config.served_gpus import how_served
from torchmill.config.versions import is_within
from torchmill.core.units import format_bytes
from torchmill.plan.build_options import SWITCHED_ON

RISK_LEVELS = ("none", "possible", "likely")
DEVICE_LIBRARIES = ("libtorch_cuda", "libcaffe2_gpu")


@dataclass(frozen=True, slots=True)
class OverflowRisk:
    """How near a link comes to its limit, and what would make it smaller."""

    level: str  # "none", "possible", "likely"
    expected: CostRange  # bytes of the largest library
    limit: int  # bytes
    sentence: str
    cures: tuple[str, ...]


def count_code_images(capabilities: str) -> int:
    """Return how many times device code is compiled for a list: once each, once more for +PTX."""
    listed = _split_capabilities(capabilities)
    return len(listed) + sum(one.endswith("+PTX") for one in listed)


def predict_overflow(
    facts: Facts,
    release: Release,
    cuda: str,
    variables: Mapping[str, str],
    gpus: Sequence[Capability] = (),
) -> OverflowRisk | None:
    """Return the risk of a build of `release` with these variables, TORCH_CUDA_ARCH_LIST among them.

    A shorter list is proposed only if it serves `gpus` as the whole list does.
    None where nothing can be said: no list, or no official wheel to weigh device code by.
    """
    linking = facts.linking
    capabilities = variables.get("TORCH_CUDA_ARCH_LIST", "")
    weighed = capability_weight(facts, release)
    if linking is None or weighed is None or not count_code_images(capabilities):
        return None
    each, like = weighed
    expected = _library_bytes(linking, release, cuda, each, variables)
    level = RISK_LEVELS[(expected.high > linking.limit) + (expected.low > linking.limit)]
    verb = {"none": "fits into", "possible": "may exceed", "likely": "will hardly fit into"}[level]
    sentence = (
        f"libtorch_cuda is expected to take {expected.in_bytes} ({capabilities}, judged by the official wheel of "
        f"{like.version}), which {verb} the {format_bytes(linking.limit)} that its code can reach"
    )
    cures: tuple[str, ...] = ()
    if level != "none":
        shorter = (
            candidate
            for candidate in _shorter_lists(facts, capabilities, gpus)
            if _library_bytes(
                linking, release, cuda, each, {**variables, "TORCH_CUDA_ARCH_LIST": candidate}
            ).high
            <= linking.limit
        )
        cures = tuple(_cures(linking, release, cuda, each, variables, next(shorter, "")))
    return OverflowRisk(level, expected, linking.limit, sentence, cures)


def capability_weight(facts: Facts, release: Release) -> tuple[float, Release] | None:
    """Return what one capability weighs in bytes, and the release whose official wheel says so.

    It is the release itself, or else the one nearest in time.
    """
    releases = facts.releases[release.package]
    order = [one.version for one in releases]
    here = order.index(release.version)
    known = [(bytes_, one) for one in releases if (bytes_ := _own_weight(facts, one))]
    return min(known, key=lambda each: abs(order.index(each[1].version) - here), default=None)


def _own_weight(facts: Facts, release: Release) -> float | None:
    """Return what one capability weighs in the official wheel, less what is linked statically."""
    linking = facts.linking
    cuda = release.cuda_pypi
    official = release.cuda_official.get(cuda or "")
    libraries = sum(
        size for name, size in release.sizes.items() if name.startswith(DEVICE_LIBRARIES)
    )
    if linking is None or cuda is None or official is None or not libraries:
        return None
    count = count_code_images(official.capabilities.get("x86_64", ""))
    dynamic = " ".join(official.requires)
    static = sum(
        _mean(one.size)
        for one in linking.static
        if is_within(one.cuda, cuda) and f"nvidia-{one.name.lower()}" not in dynamic
    )
    flags = [
        flag for flag, toolkits in linking.official_compression.items() if is_within(toolkits, cuda)
    ]
    factor = _mean(_compression(linking, " ".join(["-compress-all", *flags])))
    device = (libraries - static) / factor
    return device / count if count and device > 0 else None


def _library_bytes(
    linking: LinkFacts, release: Release, cuda: str, each: float, variables: Mapping[str, str]
) -> CostRange:
    """Return the bytes of the largest library of device code."""
    factor = _compression(linking, variables.get("TORCH_NVCC_FLAGS", ""))
    code = count_code_images(variables["TORCH_CUDA_ARCH_LIST"]) * each
    device = CostRange(
        code * (1 - linking.margin) * factor.low, code * (1 + linking.margin) * factor.high
    )
    linked = (
        one.size
        for one in linking.static
        if is_within(one.cuda, cuda) and variables.get(one.variable, "").upper() in SWITCHED_ON
    )
    static = sum(linked, CostRange(0, 0))
    if (
        is_within(linking.split, release.version)
        and variables.get("BUILD_SPLIT_CUDA", "").upper() in SWITCHED_ON
    ):
        return CostRange(max(device.low, static.low), max(device.high, static.high))
    return device + static


def _shorter_lists(facts: Facts, capabilities: str, gpus: Sequence[Capability]) -> Iterable[str]:
    """Yield ever shorter parts of a list, from which the oldest capability that no GPU of `gpus` needs is left out."""
    rest = _split_capabilities(capabilities)
    ways = {gpu.name: how_served(facts, parse_targets(facts, capabilities), gpu) for gpu in gpus}
    for entry in list(rest):
        fewer = [other for other in rest if other != entry]
        targets = parse_targets(facts, ";".join(fewer))
        if fewer and all(how_served(facts, targets, gpu) == ways[gpu.name] for gpu in gpus):
            rest = fewer
            yield ";".join(rest)


def _cures(  # noqa: PLR0917 - what a library's size follows from
    linking: LinkFacts,
    release: Release,
    cuda: str,
    each: float,
    variables: Mapping[str, str],
    shorter: str,
) -> Iterable[str]:
    """Yield what would make the library smaller; `shorter` is a list whose library fits for certain, or ""."""
    flags = variables.get("TORCH_NVCC_FLAGS", "")
    trials = {
        "BUILD_SPLIT_CUDA=ON": is_within(linking.split, release.version),
        "USE_STATIC_CUDNN=0": variables.get("USE_STATIC_CUDNN", "").upper() in SWITCHED_ON,
        'TORCH_NVCC_FLAGS="-Xfatbin -compress-all"': "-compress-all" not in flags
        and "-compress-mode" not in flags,
    }
    trials |= {
        f'TORCH_NVCC_FLAGS="-Xfatbin {flag}"': flag not in flags
        for flag, toolkits in linking.official_compression.items()
        if is_within(toolkits, cuda)
    }
    for setting, open_ in trials.items():
        name, _, value = setting.partition("=")
        if open_ and variables.get(name) != value:
            changed = _library_bytes(
                linking, release, cuda, each, {**variables, name: value.strip('"')}
            )
            yield f"{setting}: {changed.in_bytes}"
    if shorter:
        yield f"a shorter list, such as TORCH_CUDA_ARCH_LIST={shorter!r}"
    yield "a linker script that puts .nv_fatbin behind .bss, as `nvcc --host-linker-script=gen-lcs` writes it"


def _compression(linking: LinkFacts, flags: str) -> CostRange:
    """Return the factor of the strongest compression that the flags ask for."""
    asked = [one for one in linking.compression if one.flag and one.flag in flags]
    return min(
        asked or [one for one in linking.compression if not one.flag],
        key=lambda one: one.factor.high,
    ).factor


def _split_capabilities(capabilities: str) -> list[str]:
    return list(filter(None, SEPARATORS.split(capabilities)))


def _mean(bounds: CostRange) -> float:
    return (bounds.low + bounds.high) / 2
