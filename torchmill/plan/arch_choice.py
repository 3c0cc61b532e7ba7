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
from torchmill.config.served_gpus import code_runs, how_served, is_chip, ptx_runs
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import format_bounds, is_within
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.host.host import Host
from torchmill.plan.arch_toolkits import first_makers, format_toolkit_range, toolkits_with_target
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import can_build_with

OFFICIAL = "official"  # in place of a list: that of the official build, for all its GPUs


def shortest_arch_list(facts: Facts, gpus: Iterable[Capability]) -> tuple[ArchTarget, ...]:
    """Return the shortest list whose code, without PTX, runs on GPUs of each capability."""
    found: list[ArchTarget] = []
    for gpu in sorted(gpus, key=lambda one: capability_key(one.name)):
        if how_served(facts, found, gpu) is None:
            found.append(ArchTarget(gpu.name))
    return tuple(found)


def find_arch_problems(
    facts: Facts, targets: Iterable[ArchTarget], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield what stands against a list, each with the remedy; without a toolkit any is meant, and so on."""
    for target in targets:
        if not toolkits_with_target(facts, target.name):
            yield _nobody(facts, target)
        elif toolkit and target.name not in toolkit.capabilities:
            yield _toolkit_reason(facts, target, toolkit, release)
        elif release and (reason := _release_reason(facts, target, release)):
            yield reason + _instead(facts, target, toolkit, release)
        elif release and not toolkit and (reason := _out_of_reach(facts, target, release)):
            yield reason


def _nobody(facts: Facts, target: ArchTarget) -> str:
    major, _ = capability_key(target.capability)
    names = {name for one in facts.toolkits for name in one.capabilities if is_plain_target(name)}
    near = [name for name in sorted(names, key=capability_key) if capability_key(name)[0] == major]
    return f"{target.name}: no toolkit makes code for it" + (
        f"; there is {', '.join(near)}" if near else ""
    )


def _toolkit_reason(
    facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release | None
) -> str:
    able = toolkits_with_target(facts, target.name)
    text = f"{target.name}: CUDA {toolkit.version} makes no code for it, CUDA {format_toolkit_range(able)} does"
    if release is not None:
        fitting = [one for one in able if can_build_with(facts, release, one)]
        text += f"; {release} builds with " + (
            f"CUDA {format_toolkit_range(fitting)}" if fitting else "none of them"
        )
        text += "" if fitting else _first_makers_clause(facts, target, toolkit, release)
    return text + _instead(facts, target, toolkit, release)


def _first_makers_clause(
    facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release
) -> str:
    gpu = facts.capability(target.capability) if release.torch is None else None
    first = first_makers(facts, gpu, toolkit) if gpu else ""
    return f"; the first with code for {target.capability} are {first}" if first else ""


def _out_of_reach(facts: Facts, target: ArchTarget, release: Release) -> str | None:
    """Return why no build of a release has code for a target: its toolkits are others."""
    able = toolkits_with_target(facts, target.name)
    if any(can_build_with(facts, release, one) for one in able):
        return None
    toolkits = f"the toolkits that make code for it, CUDA {format_toolkit_range(able)}"
    return f"{target.name}: {release} builds with none of {toolkits}"


def _release_reason(facts: Facts, target: ArchTarget, release: Release) -> str | None:
    torch, own = release.torch_version, facts.packages[release.package].capabilities
    if not is_within(own, target.capability):
        return f"{target.name}: {release.package} has kernels only for {format_bounds(own or SpecifierSet())}"
    if release.torch is None:
        return _unread(facts, target, torch)
    gpu = facts.capability(target.capability)
    takers = gpu.extensions.get(target.name) if gpu else None
    if gpu is None or (takers is not None and is_within(takers, torch)):
        return None
    others = f"that of torch {format_bounds(takers)} does" if takers else "that of no release does"
    return (
        f"{target.name}: {release.package} is built by torch {torch}'s cpp_extension, "
        f"which does not take it ({others})"
    )


def _unread(facts: Facts, target: ArchTarget, torch: str) -> str | None:
    """Return why the CMake of a release of torch stops at a target."""
    wanted = ["two_digits"] if capability_key(target.capability)[0] >= 10 else []  # noqa: PLR2004 - two digits
    for key in (*wanted, *target.suffix):
        able = facts.arch_spelling.get(key)
        if able is not None and not is_within(able, torch):
            return f"{target.name}: the CMake of torch {torch} cannot read it (that of torch {format_bounds(able)} can)"
    return None


def _instead(
    facts: Facts, target: ArchTarget, toolkit: Toolkit | None, release: Release | None
) -> str:
    """Return what else serves the GPUs that a target was meant for, or nothing."""
    gpu = facts.capability(target.capability)
    able = {name for one in ([toolkit] if toolkit else facts.toolkits) for name in one.capabilities}
    names = sorted(filter(is_plain_target, able), key=capability_key, reverse=True)
    fitting = [
        ArchTarget(name, ptx=True)
        for name in names
        if release is None or _release_reason(facts, ArchTarget(name), release) is None
    ]
    if gpu is None:
        return ""
    for one in fitting:
        if one.capability == gpu.name:
            return f"; {one.name} can stand in for it"
        if code_runs(facts, one, gpu):
            return f"; {one.name} can stand in for it: its code runs on {gpu.name} too"
    for one in fitting:
        if ptx_runs(facts, one, gpu) and not is_chip(facts, one.capability):
            gap = library_gap(toolkit, gpu)
            return f"; {one} can stand in for it: drivers compile its PTX for {gpu.name}{f', but {gap}' if gap else ''}"
    return ""


def library_gap(toolkit: Toolkit | None, gpu: Capability) -> str:
    """Return what PTX does not make up for: that a toolkit's own libraries may have no code for a GPU; "" if they have.

    NVIDIA compiles them, and a toolkit that makes no code for a GPU is older or newer than it.
    """
    if toolkit is None or gpu.name in toolkit.capabilities:
        return ""
    return f"cuBLAS, cuDNN and cuFFT of CUDA {toolkit.version} may have no code for it"


def resolve_arch_list(facts: Facts, cell: Cell, host: Host, asked: str | None) -> str | None:
    """Return the value of TORCH_CUDA_ARCH_LIST for a cell, None for a build without CUDA.

    Without a list, or with the word "official", it is that of the official build, if there is CUDA.

    Raises ConfigError for a list that cannot be read, ImpossibleBuildError for one that the toolkit or
    the release does not take.
    """
    if asked is None or asked.strip().lower() == OFFICIAL:
        return official_arch_list(facts, cell)
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None:
        raise ConfigError(
            f"--arch-list '{asked}': {cell.build.identifier(host.arch)} is built without CUDA; leave the "
            "option out, or take a CUDA build (`nox -l` lists them)",
            code="arch-list-without-cuda",
        )
    return _format_for_package(
        facts, cell, check_arch_list(facts, asked, toolkit, cell.release, host.gpus.devices)
    )


def _format_for_package(facts: Facts, cell: Cell, targets: Iterable[ArchTarget]) -> str:
    """Return a list as PyTorch writes it, "9.0" as "9.0a" where the package's kernels are empty without."""
    alone = facts.packages[cell.release.package].chip_code
    return format_arch_list(
        replace(one, suffix=one.suffix or "a" * (one.capability in alone)) for one in targets
    )


def check_arch_list(
    facts: Facts, asked: str, toolkit: Toolkit | None, release: Release | None, gpus: Iterable[Gpu]
) -> list[ArchTarget]:
    """Return what a list asks for; without a toolkit, or a release, it need only fit some.

    Raises ConfigError and ImpossibleBuildError as `resolve_arch_list` does, with everything that stands against it.
    """
    targets, unreadable = parse_arch_list(
        facts, asked, (release or newest_release(facts)).torch_version, gpus
    )
    against = [*unreadable, *find_arch_problems(facts, targets, toolkit, release)]
    if against:
        head = f"arch list '{asked}' cannot be used"
        head += f" for {release}" if release else ""
        head += f" with CUDA {toolkit.version}" if toolkit else ""
        message = "\n".join((f"{head}:", *(f"  {line}" for line in dict.fromkeys(against))))
        if unreadable:
            raise ConfigError(message, code="arch-list-invalid")
        raise ImpossibleBuildError(message, code="arch-list-impossible")
    return targets


def official_arch_list(facts: Facts, cell: Cell) -> str | None:
    """Return the list of the official build with the nearest toolkit, as far as the cell's own makes it.

    The nearest is the newest that is not newer; where all are newer, the oldest. PTX of a capability that
    is left out goes to the next one, so that GPUs which the list does not name are still served. A toolkit
    for Jetson boards makes code for these: no official build serves them.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    listed = _nearest(cell, toolkit) if toolkit else None
    if toolkit is None or listed is None:
        return None
    targets, _ = parse_arch_list(facts, listed, cell.release.torch_version)
    own = facts.packages[cell.release.package].capabilities
    kept = [
        one
        for one in targets
        if one.name in toolkit.capabilities and is_within(own, one.capability)
    ]
    lost = [capability_key(one.capability) for one in targets if one.ptx and one not in kept]
    if kept and lost:
        later = [one for one in kept if capability_key(one.capability) > lost[-1]]
        heir = (later or kept[-1:])[0]
        kept.append(ArchTarget(heir.capability, heir.suffix, ptx=True))
    return _format_for_package(facts, cell, kept) or None


def _nearest(cell: Cell, toolkit: Toolkit) -> str | None:
    if toolkit.jetson and cell.build.arch == "aarch64":
        return ";".join(toolkit.jetson)
    lists = {
        Version(cuda): said.capabilities.get(cell.build.arch, said.capabilities.get("x86_64", ""))
        for cuda, said in cell.release.cuda_official.items()
    }
    known = sorted(cuda for cuda, listed in lists.items() if listed)
    older = [cuda for cuda in known if cuda <= Version(toolkit.version)]
    return lists[(older[-1:] or known[:1])[0]] if known else None
