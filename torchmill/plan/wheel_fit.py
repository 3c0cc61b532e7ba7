"""Judge a published wheel: whether the code that was read in it runs on a machine.

Only a reading can make a wheel fit: if nobody read its files, the answer is "cannot tell", whatever
upstream's build scripts say. A bound that is certain without a reading (the driver, glibc, the
capabilities that a toolkit can make code for) can rule a wheel out.

A library has its device code in fatbins. A fatbin has code for some targets: "9.0" is code for that
capability, "9.0 PTX" is PTX that a driver compiles for it and all later ones.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.release import Release
from torchmill.config.served_gpus import code_runs, ptx_runs, serving_kind
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_within
from torchmill.config.wheel_code import LibraryReading, PackageCode, ProcessorNeed, WheelCode
from torchmill.host.host import Host
from torchmill.plan.published_wheel import PublishedWheel, WheelVerdict

FITS = WheelVerdict("fits")
# The files of NVIDIA's libraries, with the digest that auditwheel adds or without it. The hyphen or
# the full stop keeps libtorch_nvshmem.so out, which is torch's.
NVIDIA_LIBRARY = re.compile(r"/lib(cu|nccl|nv)\w*[-.]")


def judge_code(
    facts: Facts, wheel: PublishedWheel, toolkit: Toolkit, gpus: Iterable[Capability]
) -> WheelVerdict:
    """Return whether the device code of a wheel, and of the packages it requires, runs on GPUs.

    `toolkit` is the wheel's. The first "does not fit" counts, else the first "cannot tell". Without
    GPUs nothing is in doubt, also of a wheel that nobody read: the answer is "fits".
    """
    unsure: WheelVerdict | None = None
    for gpu in gpus:
        for verdict in _doubts_about_code(facts, wheel, toolkit, gpu):
            if verdict.is_ruled_out:
                return verdict
            unsure = unsure or verdict
    return unsure or FITS


def _doubts_about_code(
    facts: Facts, wheel: PublishedWheel, toolkit: Toolkit, gpu: Capability
) -> Iterator[WheelVerdict]:
    """Yield the verdicts against a wheel for GPUs of a capability; no verdict if its code runs."""
    makeable = [
        ArchTarget(name, ptx=True)
        for name in toolkit.capabilities
        if arch_list.is_plain_target(name)
    ]
    # A toolkit of which no capabilities are recorded rules nothing out.
    if makeable and serving_kind(facts, makeable, gpu) is None:
        yield WheelVerdict(
            "does not fit", f"CUDA {toolkit.version} makes no code that runs on {gpu.name}"
        )
        return
    if not wheel.readings:
        yield WheelVerdict("cannot tell", unread_reason(wheel))
    for reading in wheel.readings:
        gap = code_gap(facts, reading, gpu)
        if gap:
            yield WheelVerdict("does not fit", gap)
    for requirement in _unread_packages(facts, wheel.readings):
        yield WheelVerdict(
            "cannot tell", f"the code of {requirement}, which it requires, was not read"
        )


def unread_reason(wheel: PublishedWheel) -> str:
    """Return a clause that says why the content of a wheel is not known."""
    if wheel.recorded is not None:
        if not wheel.recorded.is_listed:
            code = ", nor which GPUs it has code for" if wheel.toolkit else ""
            return f"nobody read whether it is there{code}"
        listed = wheel.recorded.group.capabilities
        claim = f" (it says that it was built for {listed})" if listed else ""
        return f"which GPUs it has code for was not read{claim}"
    subject = "its device code" if wheel.toolkit else "it"
    # Only wheels on PyPI are ever read.
    reason = "it is not on PyPI" if wheel.index else "no reading of it is recorded"
    script = f"; upstream's build script lists {wheel.announced}" if wheel.announced else ""
    return f"{subject} was not read ({reason}){script}"


def code_gap(facts: Facts, reading: WheelCode, gpu: Capability) -> str:
    """Return a clause on the code for GPUs of a capability that a wheel lacks; "" if it has all."""
    kind = _kind_of_own_code(facts, reading, gpu)
    if kind is None:
        targets = reading.kernel_targets or "no GPU"
        return f"it has no code for {gpu.name}: its own kernels are for {targets}"
    gaps = [
        *_library_gaps(facts, reading, gpu, in_all=kind == "PTX"),
        *_package_gaps(facts, reading, gpu),
    ]
    if not gaps:
        return ""
    return (
        f"it may run, but not all of its libraries have code for {gpu.name}: "
        f"its own kernels have {kind} for {gpu.name}, {'; '.join(gaps)}"
    )


def has_own_code(facts: Facts, reading: WheelCode, gpu: Capability) -> bool:
    """Tell whether a wheel's own kernels, as opposed to its libraries, run on a capability."""
    return _kind_of_own_code(facts, reading, gpu) is not None


def _kind_of_own_code(facts: Facts, reading: WheelCode, gpu: Capability) -> str | None:
    """Return "code" or "PTX": how a wheel's own kernels run on a capability; None: not at all."""
    if not reading.kernel_targets:
        return None
    return serving_kind(
        facts, arch_list.parse_checked_arch_list(facts, reading.kernel_targets), gpu
    )


def _library_gaps(
    facts: Facts, reading: WheelCode, gpu: Capability, *, in_all: bool
) -> Iterator[str]:
    """Yield a clause about each library of a wheel that lacks code for GPUs of a capability.

    A library need not serve a GPU with each of its fatbins: NVIDIA's libraries have kernels for
    single capabilities beside the general ones, also if they are linked statically into others. So
    one fatbin that serves the GPU is enough in a library of NVIDIA's, and half of them in any
    other. `in_all` is true if the wheel's own kernels run as PTX only: then the GPU is newer than
    the wheel, and all fatbins must serve it.
    """
    for library in reading.code.values():
        if _features_of(facts, library.name):
            continue
        total = sum(library.fatbins.values())
        unserving = _fatbins_without(facts, library, gpu)
        tolerated = total // 2
        if NVIDIA_LIBRARY.search(library.name):
            tolerated = total - 1
        if unserving and (in_all or unserving > tolerated):
            file = library.name.rpartition("/")[2]
            yield f"{unserving} of {total} fatbins of {file} have none"


def _fatbins_without(facts: Facts, library: LibraryReading, gpu: Capability) -> int:
    """Return the number of a library's fatbins that do not serve GPUs of a capability."""
    count = 0
    for targets, number in library.fatbins.items():
        if not _fatbin_serves(facts, targets, gpu):
            count += number
    return count


def _package_gaps(facts: Facts, reading: WheelCode, gpu: Capability) -> Iterator[str]:
    """Yield a clause about each required package without any code for a capability.

    Packages that nobody read are left out: they are a doubt of another kind.
    """
    for requirement, packages in _required_code(facts, reading).items():
        library_targets = _package_targets(packages)
        if not library_targets or _features_of(facts, requirement):
            continue
        if not any(_fatbin_serves(facts, targets, gpu) for targets in library_targets):
            yield f"{requirement} has none"


def _required_code(facts: Facts, reading: WheelCode) -> dict[str, list[PackageCode]]:
    """Return the readings of the packages that a wheel requires, by requirement.

    The list of a requirement is empty if nobody read that package.
    """
    packages: dict[str, list[PackageCode]] = {}
    for requirement in reading.required_packages:
        name, _, version = requirement.partition("==")
        key = (name, version, reading.arch)
        packages[requirement] = [
            package
            for package in facts.official.package_code
            if (package.name, package.version, package.arch) == key
        ]
    return packages


def _package_targets(packages: Iterable[PackageCode]) -> list[str]:
    """Return the targets of each library of some packages, as one text: "8.6;9.0;9.0 PTX"."""
    targets: list[str] = []
    for package in packages:
        targets.extend(package.code.values())
    return targets


def _unread_packages(facts: Facts, readings: Sequence[WheelCode]) -> list[str]:
    """Return the requirements of read wheels on packages whose device code nobody read."""
    unread: dict[str, None] = {}  # an ordered set
    for reading in readings:
        for requirement, packages in _required_code(facts, reading).items():
            if not packages:
                unread[requirement] = None
    return list(unread)


def _fatbin_serves(facts: Facts, targets: str, gpu: Capability) -> bool:
    """Tell whether a fatbin for some targets, "8.6;9.0;9.0 PTX", serves GPUs of a capability."""
    return any(_target_serves(facts, target, gpu) for target in targets.split(";"))


def _target_serves(facts: Facts, text: str, gpu: Capability) -> bool:
    """Tell whether one target of a fatbin, "9.0a" or "9.0 PTX", serves GPUs of a capability."""
    name, _, kind = text.partition(" ")
    capability = name.rstrip("af")
    suffix = name.lstrip("0123456789.")
    if kind == "PTX":
        return ptx_runs(facts, ArchTarget(capability, suffix, ptx=True), gpu)
    if kind:
        return False  # another kind of code, which no driver is known to run
    return code_runs(facts, ArchTarget(capability, suffix), gpu)


def _features_of(facts: Facts, name: str) -> list[str]:
    """Return the features for which alone a library or package is needed; [] for any other.

    Without its code, everything but those features runs.
    """
    return [
        library.feature
        for library in facts.official.feature_libraries
        if fnmatch(name, library.pattern)
    ]


def missing_features(facts: Facts, readings: Iterable[WheelCode], gpu: Capability) -> list[str]:
    """Return the features that do not run on a capability, for lack of code in their libraries."""
    missing: dict[str, None] = {}  # an ordered set
    for reading in readings:
        # Library of the wheel, or requirement -> the targets of its fatbins or libraries.
        all_targets = {library.name: list(library.fatbins) for library in reading.code.values()}
        for requirement, packages in _required_code(facts, reading).items():
            all_targets[requirement] = _package_targets(packages)
        for name, listed_targets in all_targets.items():
            if not listed_targets:
                continue
            if not any(_fatbin_serves(facts, targets, gpu) for targets in listed_targets):
                missing |= dict.fromkeys(_features_of(facts, name))
    return list(missing)


def judge_processor(facts: Facts, release: Release, host: Host) -> WheelVerdict:
    """Return whether the CPU code of a release's official wheels runs on a machine's processor."""
    needs = processor_needs(facts, release, host.arch)
    features = set(host.platform.processor_features)  # none: the processor is not described
    missing = _missing_flags(needs, host)
    flags = ", ".join(missing)
    if missing and not features:
        return WheelVerdict(
            "cannot tell", f"it needs a processor with {flags}; this one is not described"
        )
    if missing:
        reason = f"this processor has no {flags}"
        for need in needs:
            if need.failure and not missing.keys().isdisjoint(need.needs):
                reason += f": {need.failure}"
                break
        return WheelVerdict("does not fit", reason)
    tried = [need.sufficient_features for need in needs if need.tried]
    if not tried:
        return WheelVerdict("cannot tell", "what it needs of the processor is not known")
    if any(features.issuperset(sufficient) for sufficient in tried):
        return FITS
    doubt = "this one lacks some of these" if features else "this one is not described"
    return WheelVerdict(
        "cannot tell", f"it is known to run on processors with {', '.join(tried[0])}; {doubt}"
    )


def processor_clause(facts: Facts, release: Release, arch: str) -> str:
    """Return a clause on what a release's official wheels ask of a processor; "" if unknown."""
    needs = processor_needs(facts, release, arch)
    required: dict[str, None] = {}  # an ordered set
    for need in needs:
        required |= dict.fromkeys(need.needs)
    if required:
        return f"it needs a processor with {', '.join(required)}"
    tried = [need.sufficient_features for need in needs if need.tried and need.sufficient_features]
    if tried:
        return f"it is known to run on processors with {', '.join(tried[0])}"
    return ""


def _missing_flags(needs: Iterable[ProcessorNeed], host: Host) -> dict[str, None]:
    """Return the needed flags that a host's processor is not known to have, as an ordered set."""
    missing: dict[str, None] = {}  # an ordered set
    for need in needs:
        missing |= dict.fromkeys(
            flag for flag in need.needs if flag not in host.platform.processor_features
        )
    return missing


def processor_needs(facts: Facts, release: Release, arch: str) -> list[ProcessorNeed]:
    """Return the records of what a release's official wheels need from processors of an arch."""
    return [
        need
        for need in facts.official.processor_needs
        if arch in need.arches and is_within(need.release, release.torch_version)
    ]


def find_readings(
    facts: Facts, package: str, version: str, arch: str, cuda: str | None
) -> tuple[WheelCode, ...]:
    """Return the readings of the wheels of a release for a machine and a toolkit.

    `cuda` is None for the wheels without CUDA.
    """
    readings: list[WheelCode] = []
    for reading in facts.official.wheel_code:
        if (reading.package, reading.release, reading.arch) != (package, version, arch):
            continue
        is_match = reading.cuda == cuda
        if not reading.cuda:
            # The wheels of torchvision and torchaudio do not name their toolkit, which is torch's.
            # All that they show is whether they have device code.
            is_match = bool(reading.kernel_targets) == bool(cuda)
        if is_match:
            readings.append(reading)
    return tuple(readings)
