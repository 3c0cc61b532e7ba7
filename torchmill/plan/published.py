"""Published wheels: which a release has, where to get them, and which of them fit a machine.

All is as the facts recorded it: no index is asked. A wheel was "read" if the device code in its
files is recorded. Only a wheel that was read can be certain to fit.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from torchmill.config import arch_list
from torchmill.config.build import CPU, Build
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.gpu_names import gpu_capability, known_capabilities
from torchmill.config.official_wheels import wheel_places, wheel_pythons
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, find_release
from torchmill.config.served_gpus import serving_kind, unserved_by_cudnn
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_within
from torchmill.config.wheel_code import WheelCode
from torchmill.host.host import Host, HostResources
from torchmill.plan import wheel_fit
from torchmill.plan.boards import board_driver_support
from torchmill.plan.cell import Cell
from torchmill.plan.drivers import (
    driver_compiles_ptx,
    driver_range,
    driver_runs,
    find_bridge,
    is_known_older,
    no_driver_clause,
    oldest_driver,
    unserved_by_driver,
)
from torchmill.plan.published_wheel import PublishedWheel, WheelVerdict
from torchmill.plan.recorded_wheels import (
    RecordedWheel,
    best_wheel,
    can_compare_abi,
    wheels_for_torch,
)
from torchmill.plan.wheel_name import promised_glibc

# The largest file that can be published, in bytes. PyPI may grant a project more.
PYPI_LARGEST = 100 * 2**20
GITHUB_LARGEST = 2 * 2**30 - 1
_OLDEST_GLIBC = "2.17"  # no official wheel runs with an older one, whatever its tag promises
# The ranks of candidates in `find_published`, the best last.
_REFUSED = 0  # the wheel does not fit
_UNKNOWN = 1
_FAVOURED = 2  # the wheel has code for each GPU, as read in its own kernels or as announced
_FITTING = 3


def official_glibc(wheels: Collection[str], arch: str) -> str | None:
    """Return the oldest glibc that the official wheels for a machine promise to run with.

    `wheels` are their platform tags. It is never older than _OLDEST_GLIBC; None if no tag names a
    glibc.
    """
    promised: list[str] = []
    for tag in wheels:
        glibc = promised_glibc(tag, arch)
        if glibc is not None:
            promised.append(glibc)
    if not promised:
        return None
    return max(min(promised, key=Version), _OLDEST_GLIBC, key=Version)


def official_macos(wheels: Collection[str], arch: str) -> str | None:
    """Return the oldest macOS on which pip installs the official wheels for a machine.

    `wheels` are their platform tags. None if no tag is one of macOS.
    """
    versions: list[str] = []
    for tag in wheels:
        match = re.fullmatch(rf"macosx_(\d+)_(\d+)_{arch}", tag)
        if match:
            versions.append(f"{match[1]}.{match[2]}")
    return min(versions, key=Version, default=None)


def _as_released(facts: Facts, release: Release) -> Release:
    """Return the entry of a release that goes with the torch for which upstream released it.

    The facts may pair one release of an extension with later torch versions too. Upstream's wheels
    of it are for the first of these alone, which `find_release` returns.
    """
    return find_release(facts, release.package, release.tag)


def published_wheels(facts: Facts, release: Release, arch: str) -> Iterator[PublishedWheel]:
    """Yield the wheels of a release for an arch, not yet judged.

    First comes the wheel without CUDA, then one for each toolkit, the oldest first.
    """
    release = _as_released(facts, release)
    for toolkit in (None, *facts.toolkits):
        variant = toolkit.variant if toolkit else CPU
        places = list(wheel_places(facts, release, variant, arch))
        if not places:
            continue
        # PyPI goes first: there pip finds the wheel without an option.
        place = next((place for place in places if place.default), places[0])
        readings: tuple[WheelCode, ...] = ()
        announced = ""
        cuda = toolkit.version if toolkit else None
        if place.default:  # wheels of other indexes are never read
            readings = wheel_fit.find_readings(facts, release.package, release.version, arch, cuda)
        if cuda:
            announced = release.cuda.official[cuda].capabilities.get(arch, "")
        yield PublishedWheel(
            package=release.package,
            version=release.version + place.label.format(variant=variant),
            toolkit=toolkit,
            index="" if place.default else place.url.format(variant=variant),
            pythons=wheel_pythons(facts, release, arch),
            arch=arch,
            readings=readings,
            announced=announced,
        )


def target_host(facts: Facts, host: Host, arch: str) -> Host:
    """Return the machine on which wheels for an arch will run, as far as it is known.

    That is the host. For another arch than the host's, it is a machine of which its arch and system
    are known, and nothing else, with the cores and memory of the host.
    """
    if host.arch == arch:
        return host
    # Cores and memory stay: a build for another arch runs in a container on this machine.
    return Host(
        arch, facts.arches[arch].system, HostResources(host.resources.cores, host.resources.memory)
    )


def find_published(
    facts: Facts, cell: Cell, host: Host, listed: str | None
) -> PublishedWheel | None:
    """Return the published wheel that can best replace a cell's wheel, judged and with remarks.

    Candidates are the wheel with the cell's toolkit, the best recorded wheel of an extension, and
    wheels with other toolkits that need no newer driver and have code for the host's GPUs, as read
    or announced. Among them, a wheel that fits goes first, then a wheel that is not certain to fit
    but is known or announced to have that code. None if there is no candidate.

    Wheels are judged for the GPUs of the host. If the host has none, they are judged for the
    capabilities in `listed`, the arch list of the cell.
    """
    build = cell.build
    toolkit = facts.toolkit(build.cuda)
    machine = target_host(facts, host, build.arch)
    judged_for = machine
    if not machine.gpus.devices:
        targets = arch_list.parse_checked_arch_list(facts, listed or "")
        judged_for = with_gpus(machine, [target.capability for target in targets])
    gpus = known_capabilities(facts, machine.gpus.devices)
    candidates: list[PublishedWheel] = []
    for wheel in published_wheels(facts, cell.release, build.arch):
        if build.python not in wheel.pythons or not _can_replace(wheel, toolkit, machine):
            continue
        verdict = judge(facts, cell.release, wheel, judged_for, pythons=(build.python,))
        judged = replace(wheel, verdict=verdict)
        if judged.toolkit is toolkit or _rank(facts, judged, gpus) >= _FAVOURED:
            candidates.append(judged)
    recorded = recorded_wheel(facts, build, cell.release.torch_version, cell.release.version)
    if recorded is not None:
        verdict = judge(facts, cell.release, recorded, judged_for)
        candidates.append(replace(recorded, verdict=verdict))

    def preference(wheel: PublishedWheel) -> tuple[int, bool, bool]:
        has_same_major = _major(wheel.toolkit) == _major(toolkit)
        return _rank(facts, wheel, gpus), wheel.toolkit is toolkit, has_same_major

    best = max(candidates, key=preference, default=None)
    if best is None:
        return None
    remarks = list(_remarks(facts, cell.release, best, judged_for))
    for wheel in candidates:
        # Say why the best wheel is one with another toolkit than the build's.
        was_passed_over = wheel is not best and wheel.toolkit is toolkit
        if was_passed_over and wheel.verdict.is_ruled_out:
            remarks.append(f"{wheel.version} does not fit: {wheel.verdict.reason}")
    return replace(best, remarks=tuple(remarks))


def recorded_wheel(
    facts: Facts, build: Build, torch: str, version: str = ""
) -> PublishedWheel | None:
    """Return the best recorded wheel of an extension for a torch and a build, not yet judged.

    Of several, one of `version` is preferred. None if there is none.
    """
    toolkit = facts.toolkit(build.cuda)
    wheels = wheels_for_torch(facts, build.package, torch, build.arch)
    recorded = best_wheel(wheels, build.python, toolkit, version)
    if recorded is None:
        return None
    wheel = PublishedWheel(
        package=build.package,
        version=str(recorded.version),
        toolkit=toolkit,
        index="",
        pythons=(build.python,),
        arch=build.arch,
        recorded=recorded,
        torch=torch,
    )
    is_doubtful = not recorded.is_pure and (toolkit or not recorded.is_listed)
    reason = wheel_fit.unread_reason(wheel) if is_doubtful else ""
    return replace(wheel, verdict=WheelVerdict("cannot tell", reason))


def for_installed_torch(wheel: PublishedWheel, folder: Path) -> PublishedWheel | None:
    """Return a wheel with a remark on the torch that is installed in a folder.

    None for a wheel that is no recorded wheel of an extension.
    """
    if wheel.recorded is None:
        return None
    if wheel.recorded.is_pure or wheel.verdict.is_ruled_out:
        return wheel
    remark = f"it is for the official torch: that in {folder} must be such a wheel"
    return replace(wheel, remarks=(*wheel.remarks, remark))


def _rank(facts: Facts, wheel: PublishedWheel, gpus: Sequence[Capability]) -> int:
    """Return the rank of a judged wheel, from _REFUSED to _FITTING; `gpus` are the host's."""
    if wheel.is_known_to_fit:
        return _FITTING
    if wheel.verdict.is_ruled_out:
        return _REFUSED
    targets = arch_list.parse_checked_arch_list(facts, wheel.code or wheel.announced)
    if gpus and all(serving_kind(facts, targets, gpu) == "code" for gpu in gpus):
        return _FAVOURED
    return _UNKNOWN


def with_gpus(host: Host, capabilities: Sequence[str]) -> Host:
    """Return a host with GPUs of these compute capabilities, whose names are not known."""
    return replace(
        host,
        gpus=replace(host.gpus, devices=tuple(Gpu("", capability) for capability in capabilities)),
    )


def _major(toolkit: Toolkit | None) -> str:
    """Return the major version of a toolkit; "" if there is no toolkit."""
    return toolkit.version.partition(".")[0] if toolkit else ""


def _can_replace(wheel: PublishedWheel, toolkit: Toolkit | None, host: Host) -> bool:
    """Tell whether a wheel can replace a build with a toolkit: it needs no newer driver.

    A wheel with a toolkit of another major version can do so only if the host's GPUs are known. A
    build without CUDA (None) is replaced by a wheel without CUDA alone.
    """
    if wheel.toolkit is toolkit:
        return True
    if wheel.toolkit is None or toolkit is None:
        return False
    if not host.gpus.devices and _major(wheel.toolkit) != _major(toolkit):
        return False
    # Of a wheel that neither was read nor has a list, nothing is known that speaks for it.
    if not wheel.readings and not wheel.announced:
        return False
    wheel_driver = oldest_driver(wheel.toolkit, host.system)
    build_driver = oldest_driver(toolkit, host.system)
    if not wheel_driver or not build_driver:
        return False
    return Version(wheel_driver) <= Version(build_driver)


def newest_published(
    facts: Facts, releases: Sequence[Release], host: Host, *, pythons: Collection[str] = ()
) -> PublishedWheel | None:
    """Return the newest wheel with CUDA that fits a host, judged and with remarks.

    `releases` are the oldest first. `pythons` are those that it must be for; (): any will do. Of
    one release, a wheel with an older toolkit goes first. If no wheel is certain to fit, it is the
    newest wheel that was read and against which nothing is known; None if there is no such wheel
    either.
    """
    unsure: PublishedWheel | None = None
    for release in reversed(releases):
        for wheel in published_wheels(facts, release, host.arch):
            if wheel.toolkit is None or not wheel.readings:
                continue
            if not set(pythons) <= set(wheel.pythons):
                continue
            verdict = judge(facts, release, wheel, host, pythons=pythons)
            judged = replace(wheel, verdict=verdict)
            # The remarks depend on the verdict.
            judged = replace(judged, remarks=tuple(_remarks(facts, release, judged, host)))
            if judged.is_known_to_fit:
                return judged
            if judged.verdict.fit == "cannot tell":
                unsure = unsure or judged
    return unsure


def newest_for_gpus(facts: Facts, releases: Sequence[Release], host: Host) -> PublishedWheel | None:
    """Return the newest wheel for a host of which only the GPUs are known.

    It is chosen as by `newest_published`, but the processor is taken to have every feature that a
    wheel needs. The features that the wheel in fact needs become its first remark. None if no wheel
    may fit.
    """
    flags: dict[str, None] = {}  # an ordered set
    for need in facts.official.processor_needs:
        if host.arch in need.arches:
            flags |= dict.fromkeys((*need.needs, *need.sufficient_features))
    platform = replace(host.platform, processor_features=tuple(flags))
    wheel = newest_published(facts, releases, replace(host, platform=platform))
    if wheel is None:
        return None
    release = find_release(facts, wheel.package, wheel.version.partition("+")[0])
    clause = wheel_fit.processor_clause(facts, release, host.arch)
    if not clause:
        return wheel
    return replace(wheel, remarks=(clause, *wheel.remarks))


def judge(
    facts: Facts,
    release: Release,
    wheel: PublishedWheel,
    host: Host,
    *,
    pythons: Collection[str] = (),
) -> WheelVerdict:
    """Return the verdict on a wheel for a machine: it fits only if it was read and nobody doubts it.

    The first "does not fit" counts, else the first "cannot tell". A recorded wheel without compiled
    code fits every machine. `release` is the cell's, whose torch may be later than the one for
    which the wheel was published. `pythons` are those that the wheel is for: a release may have
    wheels for newer systems only for some Pythons.
    """
    doubt: WheelVerdict | None = None
    for verdict in _verdicts(facts, release, wheel, host, pythons):
        if verdict.is_ruled_out:
            return verdict
        if verdict.fit == "cannot tell":
            doubt = doubt or verdict
    return doubt or wheel_fit.FITS


def _verdicts(
    facts: Facts,
    release: Release,
    wheel: PublishedWheel,
    host: Host,
    pythons: Collection[str],
) -> Iterator[WheelVerdict]:
    """Yield the verdicts on the system, the driver, the GPUs, the processor, and the base wheel."""
    published_release = _as_released(facts, release)
    if wheel.recorded is not None:
        yield from _recorded_verdicts(facts, release, wheel, wheel.recorded, host)
        return
    # The glibc that the facts give a release was read in its wheels for x86_64.
    glibc = published_release.upstream.glibc if host.arch == "x86_64" else None
    for platforms in _platforms_of_pythons(published_release, pythons):
        refusal = _system_refusal(platforms, glibc, host)
        if refusal:
            yield WheelVerdict("does not fit", refusal)
    if wheel.toolkit:
        yield from _driver_verdicts(facts, wheel.toolkit, host)
    if wheel.toolkit:
        yield from _gpu_verdicts(facts, wheel, wheel.toolkit, host)
        yield from _driver_doubt(wheel.toolkit, host)
    elif not wheel.readings:
        yield WheelVerdict("cannot tell", wheel_fit.unread_reason(wheel))
    yield wheel_fit.judge_processor(facts, published_release, host)
    # The torch of the same index; with CUDA if the extension's wheel is.
    bases = [base for base in _base_wheels(facts, release, wheel.arch) if base.index == wheel.index]
    bases = [base for base in bases if bool(base.toolkit) == bool(wheel.toolkit)]
    yield from _base_verdicts(facts, release, bases, host)


def _recorded_verdicts(
    facts: Facts, release: Release, wheel: PublishedWheel, recorded: RecordedWheel, host: Host
) -> Iterator[WheelVerdict]:
    """Yield the verdicts on a recorded wheel of an extension, as `_verdicts` does.

    Nothing is doubted that its torch must meet as well: that is there, or judged by itself.
    """
    if recorded.is_pure:
        return
    refusal = _system_refusal([tag.platform for tag in recorded.tags], None, host)
    if refusal:
        yield WheelVerdict("does not fit", refusal)
    toolkit = wheel.toolkit
    bases = [base for base in _base_wheels(facts, release, wheel.arch) if base.toolkit is toolkit]
    for verdict in _base_verdicts(facts, release, bases, host):
        if verdict.is_ruled_out:
            yield verdict
    if toolkit is None and not recorded.is_listed:
        yield WheelVerdict("cannot tell", wheel_fit.unread_reason(wheel))
    if toolkit is None:
        return
    yield from _driver_verdicts(facts, toolkit, host)
    kernels = facts.packages[wheel.package].kernels.capabilities
    gpus = known_capabilities(facts, host.gpus.devices)
    for gpu in gpus:
        if not is_within(kernels, gpu.name):
            yield WheelVerdict("does not fit", f"{wheel.package} has no kernels for {gpu.name}")
    yield wheel_fit.judge_code(facts, wheel, toolkit, gpus)
    yield WheelVerdict("cannot tell", wheel_fit.unread_reason(wheel))


def _platforms_of_pythons(release: Release, pythons: Collection[str]) -> Iterator[list[str]]:
    """Yield the platform tags of a release's wheels for each of some Pythons; (): for any."""
    wheels = release.upstream.wheels
    if not pythons:
        yield list(wheels)
    for python in pythons:
        yield [tag for tag, tag_pythons in wheels.items() if python in tag_pythons]


def _driver_verdicts(facts: Facts, toolkit: Toolkit, host: Host) -> Iterator[WheelVerdict]:
    """Yield the verdicts against a host's driver for a toolkit's code and for the host's GPUs."""
    for gpu in unserved_by_driver(facts, host):
        yield WheelVerdict("does not fit", no_driver_clause(gpu, host))
    if driver_runs(toolkit, host):
        return
    bridge = find_bridge(toolkit, host)
    if bridge.makes_up == "no":
        yield WheelVerdict("does not fit", _driver_refusal(toolkit, host))
    else:
        yield WheelVerdict(
            "cannot tell",
            f"{_driver_refusal(toolkit, host)}; whether {bridge.folder} makes up for it was not "
            "tried",
        )


def _driver_refusal(toolkit: Toolkit, host: Host) -> str:
    """Return why a host's driver, which is known to be too old, does not run a toolkit's code."""
    if board_driver_support(host, toolkit.version):
        # The driver of a board may have no version: it is a part of Jetson Linux.
        board = host.platform.distribution
        return f"the driver of {board} does not run what CUDA {toolkit.version} makes by itself"
    oldest = oldest_driver(toolkit, host.system)
    return f"it needs driver {oldest}, and this machine has {host.gpus.running_driver}"


def _system_refusal(platforms: Collection[str], glibc: str | None, host: Host) -> str:
    """Return why pip does not install wheels on a host, or why they do not load.

    `platforms` are their platform tags, and `glibc` is the version that they need, if it is known
    to be another than the tags promise. "" if nothing is known against it.
    """
    glibc = glibc or official_glibc(platforms, host.arch)
    macos = official_macos(platforms, host.arch)
    if host.system == "linux" and host.complete and host.platform.glibc is None:
        return "there are no official wheels for C libraries other than glibc"
    if is_known_older(host.platform.glibc, bound=glibc):
        return f"it needs glibc {glibc}, and this machine has {host.platform.glibc}"
    if is_known_older(host.programs.versions.get("macos"), bound=macos):
        return f"it needs macOS {macos}, and this machine has {host.programs.versions['macos']}"
    return ""


def _gpu_verdicts(
    facts: Facts, wheel: PublishedWheel, toolkit: Toolkit, host: Host
) -> Iterator[WheelVerdict]:
    """Yield the verdicts on the GPUs of a host, and on the driver if it has to compile PTX."""
    unknown: dict[str, None] = {}  # an ordered set: several GPUs of a host often have one name
    for gpu in host.gpus.devices:
        if gpu.name and gpu_capability(facts, gpu) is None:
            unknown[gpu.name] = None
    for name in unknown:
        yield WheelVerdict("cannot tell", f"the compute capability of {name} is not known")
    gpus = known_capabilities(facts, host.gpus.devices)
    yield wheel_fit.judge_code(facts, wheel, toolkit, gpus)
    if not host.gpus.devices:
        yield WheelVerdict("cannot tell", "the GPU that it is for is not known")
    targets = arch_list.parse_checked_arch_list(facts, wheel.code) if wheel.code else []
    with_ptx = [
        capability.name for capability in gpus if serving_kind(facts, targets, capability) == "PTX"
    ]
    if with_ptx and not driver_compiles_ptx(toolkit, host):
        yield WheelVerdict(
            "does not fit",
            f"for {', '.join(with_ptx)} it has PTX, which needs driver {toolkit.driver_ptx}",
        )


def _driver_doubt(toolkit: Toolkit, host: Host) -> Iterator[WheelVerdict]:
    """Yield a doubt if nvidia-smi was run on a host and did not tell its driver.

    If it was not run, as on a machine that only the user describes, there is no doubt: then the
    needed driver is a remark.
    """
    silence = host.programs.unanswered.get("nvidia-smi")
    is_judged = host.gpus.running_driver or board_driver_support(host, toolkit.version)
    if silence and not is_judged:
        yield WheelVerdict("cannot tell", f"the driver could not be read: nvidia-smi {silence}")


def _base_wheels(facts: Facts, release: Release, arch: str) -> Iterator[PublishedWheel]:
    """Yield the official wheels of the torch that goes with an extension's release; none for torch."""
    if release.torch:
        base_release = find_release(facts, base_package(facts).name, release.torch)
        yield from published_wheels(facts, base_release, arch)


def _base_verdicts(
    facts: Facts, release: Release, bases: Sequence[PublishedWheel], host: Host
) -> Iterator[WheelVerdict]:
    """Yield the verdict against the official torch that goes with an extension's wheel, if any.

    `bases` are wheels of that torch that fit the extension's wheel; the last one counts.
    """
    if not bases or not release.torch:
        return
    base = bases[-1]
    base_release = find_release(facts, base_package(facts).name, release.torch)
    verdict = judge(facts, base_release, base, host)
    if verdict.fit == "fits":
        return
    clause = "which does not fit"
    if verdict.fit == "cannot tell":
        clause = "and whether that fits is not known"
    yield WheelVerdict(
        verdict.fit,
        f"it goes with the official {base.package} {base.version}, {clause}: {verdict.reason}",
    )


def _remarks(facts: Facts, release: Release, wheel: PublishedWheel, host: Host) -> Iterator[str]:
    """Yield clauses that a user should read before installing a judged wheel."""
    if wheel.verdict.is_ruled_out:
        return
    if wheel.recorded is None:
        yield from _official_remarks(facts, release, wheel, host)
    else:
        yield from _recorded_remarks(facts, wheel, wheel.recorded)
        if wheel.recorded.is_pure:
            return
    if wheel.toolkit and host.gpus.running_driver is None:
        yield from _driver_remark(facts, wheel.toolkit, host)


def _driver_remark(facts: Facts, toolkit: Toolkit, host: Host) -> Iterator[str]:
    """Yield a clause on the driver that a host of which it is not known has to have."""
    if board_driver_support(host, toolkit.version):
        return  # the verdict has judged it
    if any(gpu.tegra for gpu in known_capabilities(facts, host.gpus.devices)):
        # The driver of a board is a part of its JetPack, and has other versions than those of cards.
        yield f"it needs a JetPack whose driver runs CUDA {toolkit.version}"
        return
    oldest = oldest_driver(toolkit, host.system)
    if oldest:
        yield f"it needs driver {driver_range(facts, oldest, host)}"


def _official_remarks(
    facts: Facts, release: Release, wheel: PublishedWheel, host: Host
) -> Iterator[str]:
    """Yield clauses on a wheel of a release's own index: its torch, its cuDNN, its kernels."""
    published_release = _as_released(facts, release)
    gpus = known_capabilities(facts, host.gpus.devices)
    if published_release.torch:
        yield f"it goes with the official {facts.packages[release.package].after}"
    if wheel.toolkit:
        yield from _cudnn_remark(published_release, wheel.toolkit, gpus)
    if wheel.is_known_to_fit:
        for gpu in {gpu.name: gpu for gpu in gpus}.values():
            features = wheel_fit.missing_features(facts, wheel.readings, gpu)
            if features:
                yield f"it has no code for {' and '.join(features)} on {gpu.name}"


def _recorded_remarks(
    facts: Facts, wheel: PublishedWheel, recorded: RecordedWheel
) -> Iterator[str]:
    """Yield a clause if a recorded wheel of an extension may be for another ABI than its torch's."""
    if not can_compare_abi(facts, recorded, wheel.torch, wheel.arch):
        yield (
            f"`torch.compiled_with_cxx11_abi()` must be {recorded.has_new_abi} there, which "
            "the facts do not tell of every official wheel of that torch"
        )


def _cudnn_remark(release: Release, toolkit: Toolkit, gpus: Sequence[Capability]) -> Iterator[str]:
    """Yield a clause if the cuDNN of an official build has no code for some GPUs."""
    cudnn = release.cuda.official[toolkit.version].cudnn
    unserved = unserved_by_cudnn(cudnn, gpus) if cudnn else []
    if unserved:
        yield (
            f"its cuDNN {cudnn} has no code for {', '.join(unserved)}: "
            "set torch.backends.cudnn.enabled = False there"
        )


def unpublished_reason(facts: Facts, cell: Cell) -> str:
    """Return why there is no published wheel for a possible cell, as far as that is recorded."""
    build = cell.build
    release = cell.release
    pythons = wheel_pythons(facts, release, build.arch)
    # A package with editions takes its official toolkits from torch: they are not upstream's own.
    has_editions = bool(facts.packages[release.package].editions)
    places = facts.package_wheels.get(release.package, ())
    if places:
        cuda = f"with CUDA {build.cuda}" if build.cuda else "without CUDA"
        dates = {place.date for place in places if place.date}
        names = " or ".join(place.name for place in places)
        return (
            f"no wheel of {release.package} for torch {release.torch_version} {cuda} and Python "
            f"{build.python} on {build.arch} is recorded of {names} (read {max(dates, default='once')})"
        )
    toolkits = () if has_editions else tuple(release.cuda.official)
    # What is recorded need not be all: download.pytorch.org, which has more than PyPI, was not read.
    if build.cuda and toolkits and build.cuda not in toolkits:
        listed = ", ".join(toolkits)
        return (
            f"no wheel of upstream with CUDA {build.cuda} is recorded, but with CUDA {listed} "
            "(download.pytorch.org was not read)"
        )
    if pythons and build.python not in pythons:
        listed = ", ".join(pythons)
        return (
            f"PyPI has no wheel for Python {build.python} on {build.arch}, but for {listed} "
            "(download.pytorch.org was not read)"
        )
    return "where to get upstream's wheel is not recorded"
