"""Published wheels: which a release has, where they are, and on which Pythons, systems, drivers and GPUs they run.

Everything is as the facts recorded it: no index is asked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.version import Version

from torchmill.config import arch_list
from torchmill.config.arch_list import ArchTarget
from torchmill.config.matrix import CPU, Cell, base_package, find_release
from torchmill.config.model import Capability, Facts, Gpu, Host, PublishedWheel, Release, Toolkit
from torchmill.config.official_wheels import wheel_places, wheel_pythons
from torchmill.plan.boards import board_drive, board_runs

OFFICIAL_ARCHES = ("x86_64", "aarch64")  # for which there are official builds with CUDA, on Linux
UNRECORDED = "not recorded"
PYPI_LARGEST, GITHUB_LARGEST = 100 * 2**20, 2 * 2**30 - 1  # bytes of a file; PyPI may grant a project more
_OLDEST_GLIBC = "2.17"  # of those that any official wheel runs with, whatever its tag says


def official_glibc(wheels: Mapping[str, object], arch: str) -> str | None:
    """Return the oldest glibc that the official wheels for a machine promise to run with."""
    from torchmill.plan.wheel_name import promised_glibc

    found = [version for tag in wheels if (version := promised_glibc(tag, arch)) is not None]
    return max(min(found, key=Version), _OLDEST_GLIBC, key=Version) if found else None


def official_macos(wheels: Mapping[str, object], arch: str) -> str | None:
    """Return the oldest macOS that pip installs the official wheels for a machine on."""
    found = (re.fullmatch(rf"macosx_(\d+)_(\d+)_{arch}", tag) for tag in wheels)
    return min((f"{one[1]}.{one[2]}" for one in found if one), key=Version, default=None)


def published_wheels(facts: Facts, release: Release, arch: str) -> Iterator[PublishedWheel]:
    """Yield the wheels of a release for a machine: the one without CUDA, then by toolkit, oldest first."""
    release = find_release(facts, release.package, release.tag)
    for toolkit in (None, *facts.toolkits):
        variant = toolkit.variant if toolkit else CPU
        place = min(wheel_places(facts, release, variant, arch), key=lambda one: not one.default, default=None)
        if place is None:
            continue
        said = release.cuda_official[toolkit.version].capabilities if toolkit else {arch: ""}
        code = said.get(arch)  # what the builds for Windows have code for is not recorded
        label, index = place.label.format(variant=variant), "" if place.default else place.url.format(variant=variant)
        pythons = wheel_pythons(facts, release, arch)
        yield PublishedWheel(release.package, release.version + label, toolkit, index, pythons, code)


def known_host(facts: Facts, host: Host, arch: str) -> Host:
    """Return what is known of the machine that a wheel is for: a host, or nothing where it is of another arch."""
    return host if host.arch == arch else Host(arch, facts.arches[arch].system, host.cores, host.memory)


def find_published(facts: Facts, cell: Cell, host: Host, listed: str | None) -> PublishedWheel | None:
    """Return the published wheel that does what a cell's would, with remarks; None where none is recorded.

    It needs no newer driver, and has code for the GPUs of the host, or where it has none, for those of `listed`.
    """
    build, release, own = cell.build, cell.release, facts.toolkit(cell.build.cuda)
    where = known_host(facts, host, build.arch)
    there = [one for one in published_wheels(facts, release, build.arch) if build.python in one.pythons]
    able = [one for one in there if _stands_for(one, own, where)]
    asked = where
    if not where.gpus:
        asked = with_gpus(where, [one.capability for one in arch_list.parse_targets(facts, listed or "")])
    fitting = [one for one in able if runs_at(facts, release, one, asked)]
    best = max(fitting, key=lambda one: (one.toolkit is own, _major(one.toolkit) == _major(own)), default=None)
    return replace(best, remarks=tuple(_remarks(facts, release, best, where))) if best else None


def with_gpus(host: Host, capabilities: Sequence[str]) -> Host:
    """Return a host that has GPUs of some capabilities."""
    return replace(host, gpus=tuple(Gpu("", one) for one in capabilities))


def _major(toolkit: Toolkit | None) -> str:
    return toolkit.version.partition(".")[0] if toolkit else ""


def _stands_for(wheel: PublishedWheel, own: Toolkit | None, where: Host) -> bool:
    """Tell whether a wheel's toolkit is that of a build, or one that asks for no newer driver.

    One of another major version counts only where the GPUs are known that it is to run on.
    """
    if wheel.toolkit is None or own is None or wheel.toolkit is own:
        return wheel.toolkit is own
    related = bool(where.gpus) or _major(wheel.toolkit) == _major(own)
    theirs, ours = (oldest_driver(one, where.system) for one in (wheel.toolkit, own))
    return bool(related and wheel.code and theirs and ours and Version(theirs) <= Version(ours))


def newest_published(facts: Facts, releases: Sequence[Release], where: Host) -> PublishedWheel | None:
    """Return the newest of some releases' wheels that is known to run on the GPUs of a place."""
    for release in reversed(releases):
        with_cuda = [one for one in published_wheels(facts, release, where.arch) if one.toolkit and one.code]
        fitting = [one for one in with_cuda if runs_at(facts, release, one, where)]
        if fitting:
            best = next((one for one in fitting if not one.index), fitting[-1])
            return replace(best, remarks=tuple(_remarks(facts, release, best, where)))
    return None


def official_ways(facts: Facts, gpu: Capability, arch: str) -> dict[str, str]:
    """Return by what a release's official builds for a Linux machine run on GPUs of a capability, by version.

    That is "code for 5.0" or "PTX of 5.0"; UNRECORDED where they may, and what they have is not known.
    """
    found = {}
    for release in facts.releases[base_package(facts).name]:
        lists = [said.capabilities.get(arch, "") for said in release.cuda_official.values()]
        blank = [facts.toolkit(cuda) for cuda, said in release.cuda_official.items() if not said.capabilities]
        able = [ArchTarget(name) for kit in blank if kit and arch == OFFICIAL_ARCHES[0] for name in kit.capabilities]
        if served := arch_list.serving_target(facts, arch_list.parse_targets(facts, ";".join(lists)), gpu):
            way, target = served
            found[release.version] = f"{way} {'for' if way == 'code' else 'of'} {target.name}"
        elif arch_list.how_served(facts, [one for one in able if arch_list.is_plain_target(one.capability)], gpu):
            found[release.version] = UNRECORDED
    return found


def runs_at(facts: Facts, release: Release, wheel: PublishedWheel, where: Host) -> bool:
    """Tell whether nothing that is known of a machine keeps a wheel from running there."""
    glibc = (release.glibc if where.arch == "x86_64" else None) or official_glibc(release.wheels, where.arch)
    musl = where.system == "linux" and where.complete and where.glibc is None  # for which there are no wheels
    macos = official_macos(release.wheels, where.arch)
    if musl or is_older(where.glibc, glibc) or is_older(where.versions.get("macos"), macos):
        return False
    if wheel.toolkit is None:
        return True
    targets = arch_list.parse_targets(facts, wheel.code or "")
    gpus = [arch_list.gpu_capability(facts, gpu) for gpu in where.gpus] if targets else []
    ways = {arch_list.how_served(facts, targets, gpu) if gpu else None for gpu in gpus}
    stale = "PTX" in ways and not is_ptx_compiled(wheel.toolkit, where)
    return None not in ways and not stale and is_driven(wheel.toolkit, where)


def is_driven(toolkit: Toolkit, where: Host) -> bool:
    """Tell whether the driver of a machine is not known to be too old for what a toolkit makes."""
    if board_drive(where, toolkit.version):
        return board_runs(where, toolkit.version)
    return not is_older(where.running_driver, oldest_driver(toolkit, where.system))


def is_ptx_compiled(toolkit: Toolkit, where: Host) -> bool:
    """Tell whether a machine's driver is not known to be too old for a toolkit's PTX: on Windows it never is."""
    return where.system == "windows" or not is_older(where.running_driver, toolkit.driver_ptx)


def oldest_driver(toolkit: Toolkit, system: str) -> str | None:
    """Return the oldest driver that runs what a toolkit makes on a system."""
    return toolkit.driver_windows if system == "windows" else toolkit.driver


def is_older(version: str | None, other: str | None) -> bool:
    """Tell whether a version is known to be older than another."""
    return bool(version and other) and Version(str(version)) < Version(str(other))


def _remarks(facts: Facts, release: Release, wheel: PublishedWheel, where: Host) -> Iterator[str]:
    """Yield what is to be known beside the command that installs a wheel."""
    release = find_release(facts, release.package, release.tag)
    if release.torch:
        yield f"it goes with the official {facts.packages[release.package].after}"
    if wheel.code is None:
        yield "for which GPUs it has code is not recorded"
    if wheel.toolkit and (cudnn := release.cuda_official[wheel.toolkit.version].cudnn):
        known = filter(None, (arch_list.gpu_capability(facts, gpu) for gpu in where.gpus))
        if left := arch_list.without_cudnn(cudnn, known):
            yield f"its cuDNN {cudnn} has no code for {', '.join(left)}: set torch.backends.cudnn.enabled = False there"
    oldest = oldest_driver(wheel.toolkit, where.system) if wheel.toolkit else None
    if oldest and where.running_driver is None:
        yield f"it needs driver {oldest} or newer"


def why_unpublished(facts: Facts, cell: Cell) -> str:
    """Return why no published wheel does what a possible cell's would, as far as that is recorded."""
    build, release = cell.build, cell.release
    for one in published_wheels(facts, release, build.arch):
        if (one.toolkit and one.toolkit.version) == build.cuda and build.python in one.pythons:
            return f"upstream's own wheel, `{one.command}`, is not known to run here"
    pythons = wheel_pythons(facts, release, build.arch)
    official = () if facts.packages[release.package].editions else release.cuda_official  # of these, it is torch's
    if build.cuda and official and build.cuda not in official:
        return f"upstream made wheels with CUDA {', '.join(official)} only: this one has to be built"
    if pythons and build.python not in pythons:
        return f"upstream made wheels for Python {', '.join(pythons)} on {build.arch} only: this one has to be built"
    return "where to get upstream's wheel is not recorded"
