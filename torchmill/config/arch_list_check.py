"""Check a list of compute capabilities against toolkit and release, or choose one."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.config.arch_list import (
    ArchTarget,
    capability_key,
    code_runs,
    format_arch_list,
    is_chip,
    is_plain_target,
    parse_arch_list,
    ptx_runs,
)
from torchmill.config.matrix import Cell, ReleaseTerms, format_bounds, is_within, newest_release
from torchmill.config.model import Facts, Gpu, Host, Release, Toolkit
from torchmill.core.errors import ConfigError, ImpossibleBuildError


def format_toolkit_range(toolkits: Sequence[Toolkit]) -> str:
    """Return "11.8", or "11.1 to 13.3"."""
    first, last = toolkits[0].version, toolkits[-1].version
    return first if first == last else f"{first} to {last}"


def toolkits_with_target(facts: Facts, name: str) -> list[Toolkit]:
    """Return the toolkits that make code for a target, oldest first."""
    return [one for one in facts.toolkits if name in one.capabilities]


def find_toolkit(facts: Facts, option: str, version: str) -> Toolkit:
    """Return the toolkit of a version: "11.8", or "cu118". Raises ConfigError that names similar ones."""
    names = {name: one for one in facts.toolkits for name in (one.version, one.variant)}
    if version in names:
        return names[version]
    near = {names[name].version for name in get_close_matches(version.lower(), names, 3)}
    similar = ", ".join(sorted(near, key=Version)) or format_toolkit_range(facts.toolkits)
    raise ConfigError(f"unknown {option} {version}: choose from {similar}", code="unknown-toolkit")


def can_build_with(facts: Facts, release: Release, toolkit: Toolkit) -> bool:
    """Tell whether any build of a release with a toolkit is possible."""
    terms = ReleaseTerms.for_release(facts, release)
    return any(
        build.cuda == toolkit.version and terms.allow(build) for arch in release.arches for build in terms.builds(arch)
    )


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
    return f"{target.name}: no toolkit makes code for it" + (f"; there is {', '.join(near)}" if near else "")


def _toolkit_reason(facts: Facts, target: ArchTarget, toolkit: Toolkit, release: Release | None) -> str:
    able = toolkits_with_target(facts, target.name)
    text = f"{target.name}: CUDA {toolkit.version} makes no code for it, CUDA {format_toolkit_range(able)} does"
    if release is not None:
        fitting = [one for one in able if can_build_with(facts, release, one)]
        text += f"; {release} builds with " + (f"CUDA {format_toolkit_range(fitting)}" if fitting else "none of them")
    return text + _instead(facts, target, toolkit, release)


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
        return f"{target.name}: {release.package} has kernels for {format_bounds(own or SpecifierSet())} alone"
    if release.torch is None:
        return _unread(facts, target, torch)
    gpu = facts.capability(target.capability)
    takers = gpu.extensions.get(target.name) if gpu else None
    if gpu is None or (takers is not None and is_within(takers, torch)):
        return None
    others = f"that of torch {format_bounds(takers)} does" if takers else "that of no release does"
    return (
        f"{target.name}: {release.package} is built by torch {torch}'s cpp_extension, which does not take it ({others})"
    )


def _unread(facts: Facts, target: ArchTarget, torch: str) -> str | None:
    """Return why the CMake of a release of torch stops at a target."""
    wanted = ["two_digits"] if capability_key(target.capability)[0] >= 10 else []  # noqa: PLR2004 - two digits
    for key in (*wanted, *target.suffix):
        able = facts.arch_spelling.get(key)
        if able is not None and not is_within(able, torch):
            return f"{target.name}: the CMake of torch {torch} cannot read it (that of torch {format_bounds(able)} can)"
    return None


def _instead(facts: Facts, target: ArchTarget, toolkit: Toolkit | None, release: Release | None) -> str:
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
            return f"; {one.name} can stand for it"
        if code_runs(facts, one, gpu):
            return f"; {one.name} can stand for it: its code runs on {gpu.name} too"
    for one in fitting:
        if ptx_runs(facts, one, gpu) and not is_chip(facts, one.capability):
            return f"; {one} can stand for it: drivers compile its PTX for {gpu.name}"
    return ""


def resolve_arch_list(facts: Facts, cell: Cell, host: Host, asked: str | None) -> str | None:
    """Return the value of TORCH_CUDA_ARCH_LIST for a cell, None for a build without CUDA.

    Raises ConfigError for a list that cannot be read, ImpossibleBuildError for one that the toolkit or
    the release does not take.
    """
    if asked is None:
        return official_arch_list(facts, cell)
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None:
        raise ConfigError(
            f"--arch-list '{asked}': {cell.build.identifier(host.arch)} is built without CUDA; leave the "
            "option out, or take a CUDA build (`nox -l` lists them)",
            code="arch-list-without-cuda",
        )
    return format_arch_list(check_arch_list(facts, asked, toolkit, cell.release, host.gpus))


def check_arch_list(
    facts: Facts, asked: str, toolkit: Toolkit | None, release: Release | None, gpus: Iterable[Gpu]
) -> list[ArchTarget]:
    """Return what a list asks for; without a toolkit, or a release, it need only fit some.

    Raises ConfigError and ImpossibleBuildError as `chosen` does, with everything that stands against it.
    """
    targets, unreadable = parse_arch_list(facts, asked, (release or newest_release(facts)).torch_version, gpus)
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
    kept = [one for one in targets if one.name in toolkit.capabilities and is_within(own, one.capability)]
    lost = [capability_key(one.capability) for one in targets if one.ptx and one not in kept]
    if kept and lost:
        later = [one for one in kept if capability_key(one.capability) > lost[-1]]
        heir = (later or kept[-1:])[0]
        kept.append(ArchTarget(heir.capability, heir.suffix, ptx=True))
    return format_arch_list(kept) or None


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
