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
from torchmill.config.model import (
    Capability,
    Facts,
    Gpu,
    Host,
    PublishedWheel,
    Release,
    Toolkit,
    Verdict,
)
from torchmill.config.official_wheels import wheel_places, wheel_pythons
from torchmill.plan import wheel_fit
from torchmill.plan.boards import board_driver_support, board_runs

OFFICIAL_ARCHES = ("x86_64", "aarch64")  # for which there are official builds with CUDA, on Linux
UNRECORDED = "not recorded"
READ_CODE = re.compile(r"code for [\d.]+")  # of official_ways: what is certain
PYPI_LARGEST, GITHUB_LARGEST = (
    100 * 2**20,
    2 * 2**30 - 1,
)  # bytes of a file; PyPI may grant a project more
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
    """Yield the wheels of a release for a machine: the one without CUDA, then by toolkit, oldest first.

    None of them is judged yet.
    """
    release = find_release(facts, release.package, release.tag)
    for toolkit in (None, *facts.toolkits):
        variant = toolkit.variant if toolkit else CPU
        place = min(
            wheel_places(facts, release, variant, arch),
            key=lambda one: not one.default,
            default=None,
        )
        if place is None:
            continue
        cuda = toolkit.version if toolkit else None
        label, index = (
            place.label.format(variant=variant),
            "" if place.default else place.url.format(variant=variant),
        )
        yield PublishedWheel(
            release.package,
            release.version + label,
            toolkit,
            index,
            wheel_pythons(facts, release, arch),
            arch,
            # other indexes than pip's usual one were not read
            wheel_fit.find_readings(facts, release.package, release.version, arch, cuda)
            if place.default
            else (),
            release.cuda_official[cuda].capabilities.get(arch, "") if cuda else "",
        )


def known_host(facts: Facts, host: Host, arch: str) -> Host:
    """Return what is known of the machine that a wheel is for: a host, or nothing where it is of another arch."""
    return (
        host
        if host.arch == arch
        else Host(arch, facts.arches[arch].system, host.cores, host.memory)
    )


def find_published(
    facts: Facts, cell: Cell, host: Host, listed: str | None
) -> PublishedWheel | None:
    """Return the published wheel that is nearest to what a cell makes, judged, with remarks; None if there is none.

    It is the one with the cell's toolkit, or one that fits and needs no newer driver; if none fits, one that was not
    read goes before it if upstream says that it has code for the GPUs of the host. Wheels are judged for these, or, if
    none are known, for those of `listed`.
    """
    build, release, own = cell.build, cell.release, facts.toolkit(cell.build.cuda)
    where = known_host(facts, host, build.arch)
    asked = where
    if not where.gpus:
        asked = with_gpus(
            where, [one.capability for one in arch_list.parse_targets(facts, listed or "")]
        )
    there = [
        one for one in published_wheels(facts, release, build.arch) if build.python in one.pythons
    ]
    judged = [
        replace(one, verdict=judge(facts, release, one, asked))
        for one in there
        if _stands_for(one, own, where)
    ]
    gpus = arch_list.known_capabilities(facts, where.gpus)
    ranks = {one.version: _rank(facts, one, gpus) for one in judged}
    able = [one for one in judged if one.toolkit is own or ranks[one.version] > 1]
    best = max(
        able,
        key=lambda one: (
            ranks[one.version],
            one.toolkit is own,
            _major(one.toolkit) == _major(own),
        ),
        default=None,
    )
    if best is None:
        return None
    refused = (
        one
        for one in able
        if one is not best and one.toolkit is own and one.verdict.fit == "does not fit"
    )
    passed_over = [f"{one.version} does not fit: {one.verdict.why}" for one in refused]
    return replace(best, remarks=(*_remarks(facts, release, best, asked), *passed_over))


def _rank(facts: Facts, wheel: PublishedWheel, gpus: Sequence[Capability]) -> int:
    """Return a number that is higher the more is known in favour of a wheel: 2 or more speaks for it."""
    if wheel.would_do or wheel.verdict.fit == "does not fit":
        return 3 if wheel.would_do else 0
    targets = arch_list.parse_targets(facts, wheel.code or wheel.said)
    has_code = bool(gpus) and all(
        arch_list.how_served(facts, targets, gpu) == "code" for gpu in gpus
    )
    return 2 if has_code else 1


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
    return bool(
        related
        and (wheel.readings or wheel.said)
        and theirs
        and ours
        and Version(theirs) <= Version(ours)
    )


def newest_published(
    facts: Facts, releases: Sequence[Release], where: Host
) -> PublishedWheel | None:
    """Return the newest of some releases' wheels that fits the GPUs of a place.

    If none is sure to fit, it is the newest that was read and against which nothing is known.
    """
    unsure: PublishedWheel | None = None
    for release in reversed(releases):
        for wheel in published_wheels(facts, release, where.arch):
            if wheel.toolkit is None or not wheel.readings:
                continue
            judged = replace(wheel, verdict=judge(facts, release, wheel, where))
            judged = replace(judged, remarks=tuple(_remarks(facts, release, judged, where)))
            if judged.would_do:
                return judged
            if judged.verdict.fit == "cannot tell":
                unsure = unsure or judged
    return unsure


def official_ways(facts: Facts, gpu: Capability, arch: str) -> dict[str, str]:
    """Return by what a release's official builds for a Linux machine run on GPUs of a capability, by version.

    READ_CODE begins what was read and has no gap: "code for 5.0". The others say what is uncertain; UNRECORDED stands
    for builds of which nothing is known.
    """
    found = {}
    for release in facts.releases[base_package(facts).name]:
        ways = [
            way for cuda in release.cuda_official for way in _ways(facts, release, cuda, gpu, arch)
        ]
        if ways:
            found[release.version] = min(ways)[1]
    return found


def _ways(
    facts: Facts, release: Release, cuda: str, gpu: Capability, arch: str
) -> Iterator[tuple[int, str]]:
    """Yield how an official build runs on GPUs of a capability, with a number that is lower the surer that is."""
    said = release.cuda_official[cuda].capabilities
    readings = wheel_fit.find_readings(facts, release.package, release.version, arch, cuda)
    for listed in [one.own for one in readings] or [said.get(arch, "")]:
        targets = arch_list.parse_targets(facts, listed) if listed else []
        served = arch_list.serving_target(facts, targets, gpu)
        if served is None:
            continue
        way, target = served
        text = f"{way} {'for' if way == 'code' else 'of'} {target.name}"
        if not readings:
            yield (1 if way == "code" else 3), f"{text}, as upstream says, not read"
        elif any(wheel_fit.code_gap(facts, one, gpu) for one in readings):
            yield 2, f"{text}, not in all of its libraries"
        else:
            yield 0, text
    toolkit = facts.toolkit(cuda)
    if not said and not readings and toolkit and arch == OFFICIAL_ARCHES[0]:
        plain = [
            ArchTarget(name) for name in toolkit.capabilities if arch_list.is_plain_target(name)
        ]
        if arch_list.how_served(facts, plain, gpu):
            yield 4, UNRECORDED


def judge(facts: Facts, release: Release, wheel: PublishedWheel, where: Host) -> Verdict:
    """Return whether a wheel would do on a machine: it fits only if it was read and nothing is left open."""
    verdicts = list(_verdicts(facts, release, wheel, where))
    against = [one for one in verdicts if one.fit == "does not fit"]
    unsure = [one for one in verdicts if one.fit == "cannot tell"]
    return next(iter([*against, *unsure]), wheel_fit.FITS)


def _verdicts(
    facts: Facts, release: Release, wheel: PublishedWheel, where: Host
) -> Iterator[Verdict]:
    described = find_release(facts, release.package, release.tag)
    if refusal := _system_refusal(described, where):
        yield Verdict("does not fit", refusal)
    if wheel.toolkit and not is_driven(wheel.toolkit, where):
        oldest = oldest_driver(wheel.toolkit, where.system)
        yield Verdict(
            "does not fit", f"it needs driver {oldest}, and this machine has {where.running_driver}"
        )
    if wheel.toolkit:
        yield from _gpu_verdicts(facts, wheel, wheel.toolkit, where)
    elif not wheel.readings:
        yield Verdict("cannot tell", wheel_fit.unread_because(wheel))
    yield wheel_fit.judge_processor(facts, described, where)
    if base := _base_wheel(facts, release, wheel):
        verdict = judge(facts, base[0], base[1], where)
        if verdict.fit != "fits":
            name = f"{base[1].package} {base[1].version}"
            yield Verdict(
                verdict.fit,
                f"it goes with the official {name}, of which {verdict.fit}: {verdict.why}",
            )


def _system_refusal(release: Release, where: Host) -> str:
    """Return why pip installs no wheel of a release on a system, or why it does not load there; "" if neither."""
    glibc = (release.glibc if where.arch == "x86_64" else None) or official_glibc(
        release.wheels, where.arch
    )
    macos = official_macos(release.wheels, where.arch)
    if where.system == "linux" and where.complete and where.glibc is None:
        return "there are no official wheels for C libraries other than glibc"
    if is_older(where.glibc, glibc):
        return f"it needs glibc {glibc}, and this machine has {where.glibc}"
    if is_older(where.versions.get("macos"), macos):
        return f"it needs macOS {macos}, and this machine has {where.versions['macos']}"
    return ""


def _gpu_verdicts(
    facts: Facts, wheel: PublishedWheel, toolkit: Toolkit, where: Host
) -> Iterator[Verdict]:
    known = {gpu.name: arch_list.gpu_capability(facts, gpu) for gpu in where.gpus if gpu.name}
    yield from (
        Verdict("cannot tell", f"the compute capability of {name} is not known")
        for name, capability in known.items()
        if capability is None
    )
    gpus = [one for gpu in where.gpus if (one := arch_list.gpu_capability(facts, gpu))]
    yield wheel_fit.judge_code(facts, wheel, toolkit, gpus)
    if not where.gpus:
        yield Verdict("cannot tell", "the GPU that it is for is not known")
    own = arch_list.parse_targets(facts, wheel.code) if wheel.code else []
    by_ptx = [one.name for one in gpus if arch_list.how_served(facts, own, one) == "PTX"]
    if by_ptx and not is_ptx_compiled(toolkit, where):
        yield Verdict(
            "does not fit",
            f"for {', '.join(by_ptx)} it has PTX, which needs driver {toolkit.driver_ptx}",
        )


def _base_wheel(
    facts: Facts, release: Release, wheel: PublishedWheel
) -> tuple[Release, PublishedWheel] | None:
    """Return the official wheel of torch that pip installs with an extension's, and its release."""
    if not release.torch:
        return None
    base = find_release(facts, base_package(facts).name, release.torch)
    there = [
        one
        for one in published_wheels(facts, base, wheel.arch)
        if bool(one.toolkit) == bool(wheel.toolkit)
    ]
    same = [one for one in there if one.index == wheel.index]
    return (base, same[-1]) if same else None


def is_driven(toolkit: Toolkit, where: Host) -> bool:
    """Tell whether the driver of a machine is not known to be too old for what a toolkit makes."""
    if board_driver_support(where, toolkit.version):
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
    if wheel.toolkit and (cudnn := release.cuda_official[wheel.toolkit.version].cudnn):
        capabilities = filter(None, (arch_list.gpu_capability(facts, gpu) for gpu in where.gpus))
        if without := arch_list.without_cudnn(cudnn, capabilities):
            named = ", ".join(without)
            yield f"its cuDNN {cudnn} has no code for {named}: set torch.backends.cudnn.enabled = False there"
    known = [one for gpu in where.gpus if (one := arch_list.gpu_capability(facts, gpu))]
    for gpu in known if wheel.would_do else ():
        if features := wheel_fit.missing_features(facts, wheel.readings, gpu):
            yield f"it has no code for {' and '.join(features)} on {gpu.name}"
    oldest = oldest_driver(wheel.toolkit, where.system) if wheel.toolkit else None
    if oldest and where.running_driver is None:
        yield f"it needs driver {oldest} or newer"


def why_unpublished(facts: Facts, cell: Cell) -> str:
    """Return why there is no published wheel for a possible cell, as far as that is recorded."""
    build, release = cell.build, cell.release
    pythons = wheel_pythons(facts, release, build.arch)
    official = (
        () if facts.packages[release.package].editions else release.cuda_official
    )  # of these, it is torch's
    if build.cuda and official and build.cuda not in official:
        return (
            f"upstream made wheels with CUDA {', '.join(official)} only: this one has to be built"
        )
    if pythons and build.python not in pythons:
        return f"upstream made wheels for Python {', '.join(pythons)} on {build.arch} only: this one has to be built"
    return "where to get upstream's wheel is not recorded"
