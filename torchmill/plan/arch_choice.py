"""Choose the compute capabilities of a build: check a list, or take that of the official build."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.config.arch_list import (
    ArchTarget,
    capability_key,
    format_arch_list,
    is_plain_target,
    parse_arch_list,
)
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, Gpu
from torchmill.config.release import Release
from torchmill.config.release_lookup import newest_release
from torchmill.config.served_gpus import code_runs, is_chip, ptx_runs, serving_kind
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import format_bounds, is_within
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.host.host import Host
from torchmill.plan.arch_toolkits import first_makers, format_toolkit_range, toolkits_with_target
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import can_build_with

OFFICIAL = "official"  # in place of a list: that of the official build, for all its GPUs
_TWO_DIGITS = 10  # the first major version of capabilities that has two: "10.0"


def resolve_arch_list(facts: Facts, cell: Cell, host: Host, text: str | None) -> str | None:
    """Return the value of TORCH_CUDA_ARCH_LIST for a cell, None for a build without CUDA.

    Without a list, or with the word "official", it is that of the official build. Raises
    ConfigError for a list that cannot be read, ImpossibleBuildError for one that the toolkit or the
    release does not take.
    """
    if text is None or text.strip().lower() == OFFICIAL:
        return official_arch_list(facts, cell)
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None:
        raise ConfigError(
            f"--arch-list '{text}': {cell.build.identifier(host.arch)} is built without CUDA; "
            "leave the option out, or take a CUDA build (`nox -l` lists them)",
            code="arch-list-without-cuda",
        )
    targets = check_arch_list(facts, text, toolkit, cell.release, host.gpus.devices)
    return _format_for_package(facts, cell, targets)


def check_arch_list(
    facts: Facts, text: str, toolkit: Toolkit | None, release: Release | None, gpus: Iterable[Gpu]
) -> list[ArchTarget]:
    """Return the targets of a list; without a toolkit, or a release, it need only fit some.

    Raises ConfigError and ImpossibleBuildError as `resolve_arch_list` does, with all problems of
    the list.
    """
    torch = (release or newest_release(facts)).torch_version
    targets, unreadable = parse_arch_list(facts, text, torch, gpus)
    problems = [*unreadable, *find_arch_problems(facts, targets, toolkit, release)]
    if not problems:
        return targets
    lines = [f"arch list '{text}' cannot be used"]
    if release:
        lines[0] += f" for {release}"
    if toolkit:
        lines[0] += f" with CUDA {toolkit.version}"
    lines[0] += ":"
    lines.extend(f"  {problem}" for problem in dict.fromkeys(problems))
    message = "\n".join(lines)
    if unreadable:
        raise ConfigError(message, code="arch-list-invalid")
    raise ImpossibleBuildError(message, code="arch-list-impossible")


def official_arch_list(facts: Facts, cell: Cell) -> str | None:
    """Return the list of the official build with the nearest toolkit, without what a cell's lacks.

    The nearest is the newest that is not newer; if all are newer, the oldest. PTX of a capability
    that is left out goes to the next one, so that GPUs which the list does not name are still
    served. A toolkit for Jetson boards makes code for these: no official build serves them.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    listed = _nearest_official_list(cell, toolkit) if toolkit else None
    if toolkit is None or listed is None:
        return None
    targets, _ = parse_arch_list(facts, listed, cell.release.torch_version)
    with_kernels = facts.packages[cell.release.package].capabilities
    taken: list[ArchTarget] = []
    lost_ptx: list[tuple[int, int]] = []
    for target in targets:
        if target.name in toolkit.capabilities and is_within(with_kernels, target.capability):
            taken.append(target)
        elif target.ptx:
            lost_ptx.append(capability_key(target.capability))
    if taken and lost_ptx:
        later = [target for target in taken if capability_key(target.capability) > lost_ptx[-1]]
        heir = later[0] if later else taken[-1]
        taken.append(ArchTarget(heir.capability, heir.suffix, ptx=True))
    return _format_for_package(facts, cell, taken) or None


def _nearest_official_list(cell: Cell, toolkit: Toolkit) -> str | None:
    """Return the list of the official build with a toolkit, or with the nearest to it."""
    if toolkit.jetson and cell.build.arch == "aarch64":
        return ";".join(toolkit.jetson)
    lists: dict[Version, str] = {}
    for version, cuda in cell.release.cuda_official.items():
        # A machine without a list of its own has that of x86_64.
        listed = cuda.capabilities.get(cell.build.arch, cuda.capabilities.get("x86_64", ""))
        if listed:
            lists[Version(version)] = listed
    if not lists:
        return None
    not_newer = [version for version in lists if version <= Version(toolkit.version)]
    return lists[max(not_newer) if not_newer else min(lists)]


def _format_for_package(facts: Facts, cell: Cell, targets: Iterable[ArchTarget]) -> str:
    """Return a list as PyTorch writes it, "9.0" as "9.0a" if the package's kernels need that."""
    chip_code = facts.packages[cell.release.package].chip_code
    written: list[ArchTarget] = []
    for target in targets:
        if not target.suffix and target.capability in chip_code:
            written.append(replace(target, suffix="a"))
        else:
            written.append(target)
    return format_arch_list(written)


def shortest_arch_list(facts: Facts, gpus: Iterable[Capability]) -> tuple[ArchTarget, ...]:
    """Return the shortest list whose code, without PTX, runs on GPUs of each capability."""
    targets: list[ArchTarget] = []
    # From the oldest, because code runs on later minor versions and not on earlier ones.
    for gpu in sorted(gpus, key=lambda capability: capability_key(capability.name)):
        if serving_kind(facts, targets, gpu) is None:
            targets.append(ArchTarget(gpu.name))
    return tuple(targets)


def find_arch_problems(
    facts: Facts, targets: Iterable[ArchTarget], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield the first problem of each target, with the remedy.

    Without a toolkit, or a release, a target need only fit some.
    """
    for target in targets:
        # One problem of a target is enough: the others follow from it.
        if not toolkits_with_target(facts, target.name):
            yield _unknown_target(facts, target)
            continue
        if toolkit and target.name not in toolkit.capabilities:
            yield _toolkit_reason(facts, target, toolkit, release)
            continue
        if release is None:
            continue
        reason = _release_reason(facts, target, release)
        if reason:
            yield reason + _substitute(facts, target, toolkit, release)
        elif toolkit is None and not _has_toolkit(facts, target, release):
            able = format_toolkit_range(toolkits_with_target(facts, target.name))
            yield (
                f"{target.name}: {release} builds with none of the toolkits that make code for "
                f"it, CUDA {able}"
            )


def _has_toolkit(facts: Facts, target: ArchTarget, release: Release) -> bool:
    """Tell whether a release builds with a toolkit that makes code for a target."""
    toolkits = toolkits_with_target(facts, target.name)
    return any(can_build_with(facts, release, toolkit) for toolkit in toolkits)


def _unknown_target(facts: Facts, target: ArchTarget) -> str:
    """Return that no toolkit makes code for a target, and targets of the same major version."""
    major, _ = capability_key(target.capability)
    similar: set[str] = set()
    for toolkit in facts.toolkits:
        for name in toolkit.capabilities:
            if is_plain_target(name) and capability_key(name)[0] == major:
                similar.add(name)
    text = f"{target.name}: no toolkit makes code for it"
    if similar:
        text += f"; there is {', '.join(sorted(similar, key=capability_key))}"
    return text


def _toolkit_reason(
    facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release | None
) -> str:
    """Return that a toolkit makes no code for a target, which ones do, and what serves instead."""
    able = toolkits_with_target(facts, target.name)
    text = (
        f"{target.name}: CUDA {toolkit.version} makes no code for it, "
        f"CUDA {format_toolkit_range(able)} does"
    )
    if release is not None:
        fitting = [other for other in able if can_build_with(facts, release, other)]
        if fitting:
            text += f"; {release} builds with CUDA {format_toolkit_range(fitting)}"
        else:
            text += f"; {release} builds with none of them"
            text += _first_makers_clause(facts, target, toolkit, release)
    return text + _substitute(facts, target, toolkit, release)


def _first_makers_clause(
    facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release
) -> str:
    """Return the first builds of torch with code for a target; "" for dependent packages."""
    gpu = facts.capability(target.capability) if release.torch is None else None
    first = first_makers(facts, gpu, toolkit) if gpu else ""
    return f"; the first with code for {target.capability} are {first}" if first else ""


def _release_reason(facts: Facts, target: ArchTarget, release: Release) -> str | None:
    """Return why a release does not take a target, or None."""
    torch = release.torch_version
    with_kernels = facts.packages[release.package].capabilities
    if not is_within(with_kernels, target.capability):
        bounds = format_bounds(with_kernels or SpecifierSet())
        return f"{target.name}: {release.package} has kernels only for {bounds}"
    if release.torch is None:
        return _cmake_reason(facts, target, torch)
    gpu = facts.capability(target.capability)
    if gpu is None:
        return None
    takers = gpu.extensions.get(target.name)
    if takers is None:
        known = "that of no release does"
    elif is_within(takers, torch):
        return None
    else:
        known = f"that of torch {format_bounds(takers)} does"
    return (
        f"{target.name}: {release.package} is built by torch {torch}'s cpp_extension, "
        f"which does not take it ({known})"
    )


def _cmake_reason(facts: Facts, target: ArchTarget, torch: str) -> str | None:
    """Return why the CMake of a release of torch cannot read a target, or None."""
    spellings = list(target.suffix)
    major, _ = capability_key(target.capability)
    if major >= _TWO_DIGITS:
        spellings.insert(0, "two_digits")
    for spelling in spellings:
        readers = facts.arch_spelling.get(spelling)
        if readers is not None and not is_within(readers, torch):
            return (
                f"{target.name}: the CMake of torch {torch} cannot read it "
                f"(that of torch {format_bounds(readers)} can)"
            )
    return None


def _substitute(
    facts: Facts, target: ArchTarget, toolkit: Toolkit | None, release: Release | None
) -> str:
    """Return another target for the GPUs that one was meant for, as a clause, or ""."""
    gpu = facts.capability(target.capability)
    if gpu is None:
        return ""
    fitting = _usable_targets(facts, toolkit, release)
    for other in fitting:
        if other.capability == gpu.name:
            return f"; {other.name} can stand in for it"
        if code_runs(facts, other, gpu):
            return f"; {other.name} can stand in for it: its code runs on {gpu.name} too"
    for other in fitting:
        if ptx_runs(facts, other, gpu) and not is_chip(facts, other.capability):
            text = f"; {other} can stand in for it: drivers compile its PTX for {gpu.name}"
            gap = library_gap(toolkit, gpu)
            return f"{text}, but {gap}" if gap else text
    return ""


def _usable_targets(
    facts: Facts, toolkit: Toolkit | None, release: Release | None
) -> list[ArchTarget]:
    """Return the capabilities that a toolkit and a release take, with PTX, the newest first."""
    names: set[str] = set()
    for usable_toolkit in [toolkit] if toolkit else facts.toolkits:
        names.update(name for name in usable_toolkit.capabilities if is_plain_target(name))
    newest_first = sorted(names, key=capability_key, reverse=True)
    return [
        ArchTarget(name, ptx=True)
        for name in newest_first
        if release is None or _release_reason(facts, ArchTarget(name), release) is None
    ]


def library_gap(toolkit: Toolkit | None, gpu: Capability) -> str:
    """Return that a toolkit's own libraries may have no code for a GPU; "" if they have.

    PTX of a build does not make up for it: NVIDIA compiles these libraries, and a toolkit that
    makes no code for a GPU is older or newer than it.
    """
    if toolkit is None or gpu.name in toolkit.capabilities:
        return ""
    return f"cuBLAS, cuDNN and cuFFT of CUDA {toolkit.version} may have no code for it"
