"""Judge a published wheel: whether what was read in it runs on a machine.

Only a reading can make a wheel fit. What nobody read cannot be told, whatever upstream's build scripts say; a bound
that is certain without a reading (driver, glibc, what a toolkit can make) can rule it out.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts_model import PackageCode, ProcessorNeed, WheelCode
from torchmill.config.matrix import is_within
from torchmill.config.model import (
    Capability,
    Facts,
    Host,
    PublishedWheel,
    Release,
    Toolkit,
    Verdict,
)

FITS = Verdict("fits")
NVIDIA = re.compile(
    r"/lib(cu|nccl|nv)\w*[-.]"
)  # its libraries, as their files are called: not libtorch_nvshmem.so


def judge_code(
    facts: Facts, wheel: PublishedWheel, toolkit: Toolkit, gpus: Iterable[Capability]
) -> Verdict:
    """Return whether the device code of a wheel, and of the libraries beside it, runs on GPUs."""
    unread: Verdict | None = None
    for gpu in gpus:
        for verdict in _code_verdicts(facts, wheel, toolkit, gpu):
            if verdict.fit == "does not fit":
                return verdict
            unread = unread or verdict
    return unread or FITS


def _code_verdicts(
    facts: Facts, wheel: PublishedWheel, toolkit: Toolkit, gpu: Capability
) -> Iterator[Verdict]:
    """Yield what keeps a wheel from being known to run on GPUs of a capability."""
    able = [
        ArchTarget(name, ptx=True)
        for name in toolkit.capabilities
        if arch_list.is_plain_target(name)
    ]
    if able and arch_list.how_served(facts, able, gpu) is None:
        yield Verdict(
            "does not fit", f"CUDA {toolkit.version} makes no code that runs on {gpu.name}"
        )
        return
    if not wheel.readings:
        yield Verdict("cannot tell", unread_because(wheel))
    for reading in wheel.readings:
        if gap := code_gap(facts, reading, gpu):
            yield Verdict("does not fit", gap)
    for name in unread_packages(facts, wheel.readings):
        yield Verdict("cannot tell", f"the code of {name}, which it requires, was not read")


def unread_because(wheel: PublishedWheel) -> str:
    """Return why nothing is known of what is in a wheel."""
    said = f"; upstream's build script says {wheel.said}" if wheel.said else ""
    place = "it is not on PyPI" if wheel.index else "no reading of it is recorded"
    return f"{'its device code' if wheel.toolkit else 'it'} was not read ({place}){said}"


def code_gap(facts: Facts, reading: WheelCode, gpu: Capability) -> str:
    """Return why the code that was read in a wheel does not serve GPUs of a capability; "" if it does."""
    way = (
        arch_list.how_served(facts, arch_list.parse_targets(facts, reading.own), gpu)
        if reading.own
        else None
    )
    if way is None:
        return f"it has no code for {gpu.name}: its own kernels are for {reading.own or 'no GPU'}"
    gaps = [
        *_library_gaps(facts, reading, gpu, whole=way == "PTX"),
        *_package_gaps(facts, reading, gpu),
    ]
    if not gaps:
        return ""
    kernels = f"its own kernels have {'code' if way == 'code' else 'PTX'} for {gpu.name}"
    return f"it may run, but not all of its libraries have code for {gpu.name}: {kernels}, {'; '.join(gaps)}"


def is_served(facts: Facts, reading: WheelCode, gpu: Capability) -> bool:
    """Tell whether a wheel's own kernels have code or PTX for GPUs of a capability, whatever its libraries have."""
    return bool(reading.own) and bool(
        arch_list.how_served(facts, arch_list.parse_targets(facts, reading.own), gpu)
    )


def _library_gaps(
    facts: Facts, reading: WheelCode, gpu: Capability, *, whole: bool
) -> Iterator[str]:
    """Yield the libraries in a wheel that have gaps.

    NVIDIA's libraries have kernels for single capabilities beside the general ones, also where they are linked
    statically. So if the own kernels have machine code for the GPU, any fatbin of a library of NVIDIA's must serve it,
    and most fatbins of the others. If the GPU is newer than that (`whole`), all of them must.
    """
    for library in reading.code.values():
        if features_of(facts, library.name):
            continue
        total = sum(library.fatbins.values())
        gap = sum(
            number for targets, number in library.fatbins.items() if not serves(facts, targets, gpu)
        )
        most = total - 1 if NVIDIA.search(library.name) else total // 2
        if gap and (whole or gap > most):
            yield f"{gap} of {total} fatbins of {library.name.rpartition('/')[2]} have none"


def _package_gaps(facts: Facts, reading: WheelCode, gpu: Capability) -> Iterator[str]:
    """Yield the packages beside a wheel of which no library has code for a GPU."""
    for name, code in beside_code(facts, reading).items():
        there = [targets for package in code for targets in package.code.values()]
        if (
            there
            and not features_of(facts, name)
            and not any(serves(facts, one, gpu) for one in there)
        ):
            yield f"{name} has none"


def beside_code(facts: Facts, reading: WheelCode) -> dict[str, list[PackageCode]]:
    """Return what was read of the packages that a wheel requires, by requirement; an empty list: nothing."""
    found = {}
    for text in reading.beside:
        name, _, version = text.partition("==")
        found[text] = [
            one
            for one in facts.package_code
            if (one.name, one.version, one.arch) == (name, version, reading.arch)
        ]
    return found


def unread_packages(facts: Facts, readings: Sequence[WheelCode]) -> list[str]:
    """Return the packages with device code that wheels require and nobody read."""
    missing = [
        name for one in readings for name, code in beside_code(facts, one).items() if not code
    ]
    return list(dict.fromkeys(missing))


def serves(facts: Facts, targets: str, gpu: Capability) -> bool:
    """Tell whether a fatbin for some targets, "8.6;9.0;9.0 PTX", serves GPUs of a capability."""
    return any(
        _piece_serves(facts, *piece.partition(" ")[::2], gpu) for piece in targets.split(";")
    )


def _piece_serves(facts: Facts, name: str, kind: str, gpu: Capability) -> bool:
    target = ArchTarget(name.rstrip("af"), name.lstrip("0123456789."), ptx=kind == "PTX")
    if kind == "PTX":
        return arch_list.ptx_runs(facts, target, gpu)
    return not kind and arch_list.code_runs(facts, target, gpu)


def features_of(facts: Facts, name: str) -> list[str]:
    """Return the features that a library, or a package, is for alone."""
    return [one.feature for one in facts.feature_libraries if fnmatch(name, one.pattern)]


def missing_features(facts: Facts, readings: Iterable[WheelCode], gpu: Capability) -> list[str]:
    """Return the features for which wheels, or packages beside them, have no code for GPUs of a capability."""
    missing = []
    for reading in readings:
        united = {library.name: list(library.fatbins) for library in reading.code.values()}
        for name, packages in beside_code(facts, reading).items():
            united[name] = [targets for package in packages for targets in package.code.values()]
        for name, targets in united.items():
            if targets and not any(serves(facts, one, gpu) for one in targets):
                missing += features_of(facts, name)
    return list(dict.fromkeys(missing))


def judge_processor(facts: Facts, release: Release, where: Host) -> Verdict:
    """Return whether the CPU code of a release's official wheels runs on the processor of a machine."""
    facts_of_it = processor_needs(facts, release, where.arch)
    needs = dict.fromkeys(flag for one in facts_of_it for flag in one.needs)
    lacking = [flag for flag in needs if flag not in where.processor]
    if lacking and where.processor:
        why = next(
            (one.why for one in facts_of_it if one.why and set(one.needs) & set(lacking)), ""
        )
        return Verdict(
            "does not fit",
            f"this processor has no {', '.join(lacking)}" + (f": {why}" if why else ""),
        )
    if lacking:
        return Verdict(
            "cannot tell",
            f"it needs a processor with {', '.join(lacking)}; this one is not described",
        )
    tried = [one.enough for one in facts_of_it if one.tried]
    if not tried:
        return Verdict("cannot tell", "what it needs of the processor is not known")
    if any(set(enough) <= set(where.processor) for enough in tried):
        return FITS
    listed = ", ".join(tried[0])
    if where.processor:
        return Verdict(
            "cannot tell",
            f"it is known to run on processors with {listed}; this one lacks some of these",
        )
    return Verdict(
        "cannot tell", f"it is known to run on processors with {listed}; this one is not described"
    )


def processor_needs(facts: Facts, release: Release, arch: str) -> list[ProcessorNeed]:
    """Return what is known of the processors that run a release's official wheels for a machine."""
    return [
        one
        for one in facts.processor_needs
        if arch in one.arches and is_within(one.release, release.torch_version)
    ]


def find_readings(
    facts: Facts, package: str, version: str, arch: str, cuda: str | None
) -> tuple[WheelCode, ...]:
    """Return what was read in the wheels of a release for a machine and a toolkit; () where nothing was."""
    there = [
        one
        for one in facts.wheel_code
        if (one.package, one.release, one.arch) == (package, version, arch)
    ]
    # what torchvision and torchaudio were compiled with, their wheels do not say: it is torch's toolkit
    return tuple(
        one for one in there if one.cuda == cuda or (not one.cuda and bool(one.own) == bool(cuda))
    )
