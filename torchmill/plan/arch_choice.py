"""Choose the compute capabilities of a build: check a list, or take the official build's.

A list, such as "8.0;9.0a+PTX", is the value of TORCH_CUDA_ARCH_LIST. Each of its entries is a
target: a compute capability, perhaps with a suffix ("9.0a"), and perhaps with PTX, which drivers
compile for later GPUs.
"""

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
from torchmill.plan.arch_toolkits import (
    describe_first_builds,
    format_toolkit_range,
    toolkits_with_target,
)
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import can_build_with

OFFICIAL = "official"  # the word that users write for the list of the official build
_FIRST_TWO_DIGIT_MAJOR = 10  # from capability "10.0" on, the major version has two digits


def resolve_arch_list(facts: Facts, cell: Cell, host: Host, text: str | None) -> str | None:
    """Return the value of TORCH_CUDA_ARCH_LIST for a cell; None leaves the list to the build.

    `text` is the list that the user wrote. If it is None or the word "official", the list is that
    of `official_arch_list`, which is None without CUDA or if none is known. Raises ConfigError for
    a list that cannot be read or that is for a build without CUDA, ImpossibleBuildError for a list
    that the toolkit or the release does not take.
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
    """Return the targets of a list that a toolkit and a release take.

    If `toolkit` is None, it is enough that each target is taken by any toolkit that the release
    builds with; if `release` is None, by any release. `gpus` are the machine's, for the word
    "native". Raises ConfigError for a list that
    cannot be read, ImpossibleBuildError for a list that cannot be built; both name all problems.
    """
    torch = (release or newest_release(facts)).torch_version
    targets, unreadable = parse_arch_list(facts, text, torch, gpus)
    problems = [*unreadable, *find_arch_problems(facts, targets, toolkit, release)]
    if not problems:
        return targets
    for_release = f" for {release}" if release else ""
    with_toolkit = f" with CUDA {toolkit.version}" if toolkit else ""
    lines = [f"arch list '{text}' cannot be used{for_release}{with_toolkit}:"]
    # Two entries with the same mistake give the same problem.
    lines.extend(f"  {problem}" for problem in dict.fromkeys(problems))
    message = "\n".join(lines)
    if unreadable:
        raise ConfigError(message, code="arch-list-invalid")
    raise ImpossibleBuildError(message, code="arch-list-impossible")


def official_arch_list(facts: Facts, cell: Cell) -> str | None:
    """Return the list of the official build, as far as the cell's toolkit makes code for it.

    Entries for which the package has no kernels are left out, too.

    If the official builds have other toolkits than the cell, the list is that of the nearest
    toolkit: the newest that is not newer than the cell's, else the oldest. If an entry with PTX is
    dropped, the next later one has PTX in its place. For a toolkit of Jetson boards, which no
    official build serves, the list has the capabilities of these boards. Return None for a build
    without CUDA, and if no list is known or nothing of it remains.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    listed = _nearest_official_list(cell, toolkit) if toolkit else None
    if toolkit is None or listed is None:
        return None
    targets, _ = parse_arch_list(facts, listed, cell.release.torch_version)
    with_kernels = facts.packages[cell.release.package].kernels.capabilities
    usable: list[ArchTarget] = []
    unusable_with_ptx: list[ArchTarget] = []
    for target in targets:
        if target.name in toolkit.capabilities and is_within(with_kernels, target.capability):
            usable.append(target)
        elif target.ptx:
            unusable_with_ptx.append(target)
    if usable and unusable_with_ptx:
        # GPUs that the list does not name are served by its PTX. So the next later target makes
        # the PTX in place of the unusable one; if there is none, the last target does.
        key = capability_key(unusable_with_ptx[-1].capability)
        later = [target for target in usable if capability_key(target.capability) > key]
        successor = later[0] if later else usable[-1]
        # `format_arch_list` merges the two entries for this target.
        usable.append(replace(successor, ptx=True))
    return _format_for_package(facts, cell, usable) or None


def _nearest_official_list(cell: Cell, toolkit: Toolkit) -> str | None:
    """Return the list of the official build with a toolkit, or with the nearest toolkit to it.

    See `official_arch_list`. An arch without a list of its own has that of x86_64. Return None if
    no list of the release is recorded.
    """
    if toolkit.jetson and cell.build.arch == "aarch64":
        return ";".join(toolkit.jetson)
    lists: dict[Version, str] = {}
    for version, cuda in cell.release.cuda.official.items():
        # A machine without a list of its own has that of x86_64.
        listed = cuda.capabilities.get(cell.build.arch, cuda.capabilities.get("x86_64", ""))
        if listed:
            lists[Version(version)] = listed
    if not lists:
        return None
    not_newer = [version for version in lists if version <= Version(toolkit.version)]
    return lists[max(not_newer) if not_newer else min(lists)]


def _format_for_package(facts: Facts, cell: Cell, targets: Iterable[ArchTarget]) -> str:
    """Return a list as PyTorch writes it, "9.0" as "9.0a" if the package's kernels need that.

    Some kernels use instructions of one capability alone. Compiled for "9.0", they are empty.
    """
    suffix_needed = facts.packages[cell.release.package].kernels.chip_code
    package_targets: list[ArchTarget] = []
    for target in targets:
        if not target.suffix and target.capability in suffix_needed:
            package_targets.append(replace(target, suffix="a"))
        else:
            package_targets.append(target)
    return format_arch_list(package_targets)


def shortest_arch_list(facts: Facts, capabilities: Iterable[Capability]) -> tuple[ArchTarget, ...]:
    """Return the shortest list whose code, without PTX, runs on GPUs of each capability."""
    targets: list[ArchTarget] = []
    # From the oldest, because code runs on later minor versions and not on earlier ones.
    oldest_first = sorted(capabilities, key=lambda capability: capability_key(capability.name))
    for capability in oldest_first:
        if serving_kind(facts, targets, capability) is None:
            targets.append(ArchTarget(capability.name))
    return tuple(targets)


def find_arch_problems(
    facts: Facts, targets: Iterable[ArchTarget], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield the first problem of each target that cannot be built, with the remedy.

    If `toolkit` is None, it is enough that each target is taken by any toolkit that the release
    builds with; if `release` is None, by any release.
    """
    for target in targets:
        able_toolkits = toolkits_with_target(facts, target.name)
        # One problem of a target is enough: the others follow from it.
        if not able_toolkits:
            yield _explain_unknown_target(facts, target)
            continue
        if toolkit and target.name not in toolkit.capabilities:
            yield _explain_toolkit(facts, target, toolkit, release)
            continue
        if release is None:
            continue
        reason = _release_reason(facts, target, release)
        if reason:
            yield reason + _substitute(facts, target, toolkit, release)
            continue
        if toolkit is not None:
            continue
        if not any(can_build_with(facts, release, able) for able in able_toolkits):
            yield (
                f"{target.name}: {release} builds with none of the toolkits that make code for "
                f"it, CUDA {format_toolkit_range(able_toolkits)}"
            )


def _explain_unknown_target(facts: Facts, target: ArchTarget) -> str:
    """Return that no toolkit makes code for a target, and which similar targets there are."""
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


def _explain_toolkit(
    facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release | None
) -> str:
    """Return that a toolkit makes no code for a target, and which toolkit or target serves."""
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
            text += _first_builds_clause(facts, target, toolkit, release)
    return text + (
        _other_name(facts, target, toolkit) or _substitute(facts, target, toolkit, release)
    )


def _other_name(facts: Facts, target: ArchTarget, toolkit: Toolkit) -> str:
    """Return the name that a toolkit has for a target's capability, as a clause.

    "" if the toolkit has no other name for it. NVIDIA gave one capability another number: 10.1 became 11.0.
    """
    for capability in facts.gpus.capabilities:
        names = (capability.name, capability.renamed)
        if not capability.renamed or target.capability not in names:
            continue
        for name in names:
            if name != target.capability and name in toolkit.capabilities:
                return f"; CUDA {toolkit.version} calls it {name}"
    return ""


def _first_builds_clause(
    facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release
) -> str:
    """Return the first builds of torch with code for a target, as a clause; "" if not known.

    For a package that is built against torch, it is "" too: official builds are recorded of torch.
    """
    capability = facts.capability(target.capability)
    if capability is None or release.torch is not None:
        return ""
    builds = describe_first_builds(facts, capability, toolkit)
    return f"; the first with code for {capability.name} are {builds}" if builds else ""


def _release_reason(facts: Facts, target: ArchTarget, release: Release) -> str | None:
    """Return why a release does not take a target; None if it does, as far as is known."""
    torch = release.torch_version
    with_kernels = facts.packages[release.package].kernels.capabilities
    if not is_within(with_kernels, target.capability):
        bounds = format_bounds(with_kernels or SpecifierSet())
        return f"{target.name}: {release.package} has kernels only for {bounds}"
    if release.torch is None:  # torch itself, which CMake builds
        return _cmake_reason(facts, target, torch)
    capability = facts.capability(target.capability)
    if capability is None:
        return None
    # Packages that are built against torch are compiled by its module cpp_extension, which has a
    # list of the targets that it takes.
    torch_bounds = capability.extensions.get(target.name)
    if torch_bounds is not None and is_within(torch_bounds, torch):
        return None
    taker = "no release" if torch_bounds is None else f"torch {format_bounds(torch_bounds)}"
    return (
        f"{target.name}: {release.package} is built by torch {torch}'s cpp_extension, "
        f"which does not take it (that of {taker} does)"
    )


def _cmake_reason(facts: Facts, target: ArchTarget, torch: str) -> str | None:
    """Return why the CMake files of a release of torch cannot read a target; None if they can.

    Older ones know neither suffixes nor major versions with two digits.
    """
    spellings: list[str] = []  # keys of [spelling] in arch_names.toml
    major, _ = capability_key(target.capability)
    if major >= _FIRST_TWO_DIGIT_MAJOR:
        spellings.append("two_digits")
    if target.suffix:
        spellings.append(target.suffix)
    for spelling in spellings:
        torch_bounds = facts.gpus.arch_spelling.get(spelling)
        if torch_bounds is not None and not is_within(torch_bounds, torch):
            return (
                f"{target.name}: the CMake of torch {torch} cannot read it "
                f"(that of torch {format_bounds(torch_bounds)} can)"
            )
    return None


def _substitute(
    facts: Facts, target: ArchTarget, toolkit: Toolkit | None, release: Release | None
) -> str:
    """Return a usable target that serves the same GPUs, as a clause; "" if there is none."""
    capability = facts.capability(target.capability)
    if capability is None:
        return ""
    usable = _usable_targets(facts, toolkit, release)
    for other in usable:
        if other.capability == capability.name:
            return f"; {other.name} can stand in for it"
        if code_runs(facts, other, capability):
            return f"; {other.name} can stand in for it: its code runs on {capability.name} too"
    # PTX only if no code runs: drivers take time to compile it when a program starts.
    for other in usable:
        if ptx_runs(facts, other, capability) and not is_chip(facts, other.capability):
            text = f"; {other} can stand in for it: drivers compile its PTX for {capability.name}"
            gap = library_gap(toolkit, capability)
            return f"{text}, but {gap}" if gap else text
    return ""


def _usable_targets(
    facts: Facts, toolkit: Toolkit | None, release: Release | None
) -> list[ArchTarget]:
    """Return the targets without a suffix that a toolkit and a release take, the newest first.

    All have PTX. If `toolkit` is None, they are those of all toolkits; if `release` is None, it
    excludes none.
    """
    names: set[str] = set()
    for candidate in [toolkit] if toolkit else facts.toolkits:
        names.update(name for name in candidate.capabilities if is_plain_target(name))
    newest_first = sorted(names, key=capability_key, reverse=True)
    return [
        ArchTarget(name, ptx=True)
        for name in newest_first
        if release is None or _release_reason(facts, ArchTarget(name), release) is None
    ]


def library_gap(toolkit: Toolkit | None, capability: Capability) -> str:
    """Return a clause that a toolkit's libraries may lack code for a capability; "" if they have it.

    Without a toolkit it is "", too. NVIDIA compiles these libraries, for the GPUs that the toolkit
    makes code for. So the PTX of a build, which drivers compile for other GPUs, does not help its
    calls to cuBLAS.
    """
    if toolkit is None or capability.name in toolkit.capabilities:
        return ""
    return f"cuBLAS, cuDNN and cuFFT of CUDA {toolkit.version} may have no code for it"
