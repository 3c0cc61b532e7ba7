"""Which official builds of torch run on GPUs of a compute capability, release by release.

All is as the facts recorded it. Device code that was read in the wheels is certain. For wheels that
nobody read, there is the list of capabilities in upstream's build scripts.
"""

import re
from collections.abc import Iterator

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package
from torchmill.config.served_gpus import serving_kind, serving_target
from torchmill.plan import wheel_fit

OFFICIAL_ARCHES = ("x86_64", "aarch64")  # of official builds with CUDA on Linux
UNRECORDED = "not recorded"  # the text for builds of which nothing is recorded
READ_CODE = re.compile(r"code for [\d.]+")  # the texts that are certain
# How an official build runs on GPUs, the surest kind first. The order in between is a judgement:
# code that upstream announces goes before a library that is known to lack code.
_CODE_READ = 0
_PTX_READ = 1
_CODE_ANNOUNCED = 2
_READ_WITH_GAPS = 3
_PTX_ANNOUNCED = 4
_NOT_RECORDED = 5


def support_by_release(facts: Facts, gpu: Capability, arch: str) -> dict[str, str]:
    """Return how the official builds for Linux run on GPUs of a capability, by torch's version.

    Of the builds of a release, the surest counts. A release whose builds do not run on such GPUs is
    left out. Texts that match READ_CODE are certain: "code for 5.0" was read in the wheels, and all
    of their libraries have code. Other texts name their doubt, or are UNRECORDED.
    """
    support: dict[str, str] = {}
    for release in facts.releases[base_package(facts).name]:
        ranked_texts: list[tuple[int, str]] = []
        for cuda in release.cuda.official:
            ranked_texts.extend(_support_of_build(facts, release, cuda, gpu, arch))
        if ranked_texts:
            _, support[release.version] = min(ranked_texts)
    return support


def _support_of_build(
    facts: Facts, release: Release, cuda: str, gpu: Capability, arch: str
) -> Iterator[tuple[int, str]]:
    """Yield the ways in which an official build runs on GPUs of a capability, as rank and text.

    A build has several if its wheels for several Pythons have different code.
    """
    announced = release.cuda.official[cuda].capabilities
    readings = wheel_fit.find_readings(facts, release.package, release.version, arch, cuda)
    lists = [reading.kernel_targets for reading in readings] or [announced.get(arch, "")]
    has_gaps = any(wheel_fit.code_gap(facts, reading, gpu) for reading in readings)
    for listed in lists:
        targets = arch_list.parse_checked_arch_list(facts, listed) if listed else []
        served = serving_target(facts, targets, gpu)
        if served is None:
            continue
        kind, target = served
        is_code = kind == "code"
        text = f"code for {target.name}" if is_code else f"PTX of {target.name}"
        if has_gaps:
            yield _READ_WITH_GAPS, f"{text}, not in all of its libraries"
        elif readings:
            yield (_CODE_READ if is_code else _PTX_READ), text
        else:
            rank = _CODE_ANNOUNCED if is_code else _PTX_ANNOUNCED
            yield rank, f"{text}, as upstream says, not read"
    if not announced and not readings and _can_make_code(facts, cuda, gpu, arch):
        yield _NOT_RECORDED, UNRECORDED


def _can_make_code(facts: Facts, cuda: str, gpu: Capability, arch: str) -> bool:
    """Tell whether a build with a toolkit may have code for GPUs of a capability.

    Only builds for x86_64 may: the old releases of which nothing is recorded were published for no
    other arch.
    """
    toolkit = facts.toolkit(cuda)
    if toolkit is None or arch != OFFICIAL_ARCHES[0]:
        return False
    targets = [ArchTarget(name) for name in toolkit.capabilities if arch_list.is_plain_target(name)]
    return serving_kind(facts, targets, gpu) is not None
