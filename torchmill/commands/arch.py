"""`invoke arch`: the compute capabilities of GPUs, and what a list of capabilities runs on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from torchmill.commands.command import CommandOutput
from torchmill.config import arch_list, selection
from torchmill.config.arch_list import ArchTarget
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability, GpuHost
from torchmill.config.gpu_names import NamedGpu, find_gpus, gpus_of_host
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, find_release
from torchmill.config.served_gpus import serving_kind
from torchmill.config.toolkit import Toolkit
from torchmill.core.console import fold_text, format_table
from torchmill.core.paths import Layout
from torchmill.host.host import Host, HostResources
from torchmill.host.measurement import read_or_measure_host
from torchmill.plan import estimate_report, gpu_hosts, published
from torchmill.plan.arch_choice import check_arch_list, find_arch_problems, shortest_arch_list
from torchmill.plan.arch_toolkits import find_toolkit, format_toolkit_range, toolkits_with_target
from torchmill.plan.build_options import Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.matrix import can_build_with, possible_cells
from torchmill.plan.plan import Plan
from torchmill.plan.published_wheel import PublishedWheel
from torchmill.plan.trial import find_trial


def capability_as_data(facts: Facts, one: Capability) -> dict[str, Any]:
    """Return what is known of a capability as JSON-ready data."""
    able = toolkits_with_target(facts, one.name)
    drivers = {"linux": "driver", "windows": "driver_windows", "linux_ptx": "driver_ptx"}
    return {
        "capability": one.name,
        "architecture": one.architecture,
        "gpus": list(one.gpus),
        "toolkits": [toolkit.version for toolkit in able],
        "deprecated": [toolkit.version for toolkit in able if one.name in toolkit.deprecated],
        "targets": _targets(facts, one),
        "drivers": {
            toolkit.version: {name: getattr(toolkit, field) for name, field in drivers.items()}
            for toolkit in able
        },
        "official": {
            arch: published.official_support(facts, one, arch) for arch in published.OFFICIAL_ARCHES
        },
        "buildable": _buildable(facts, able, tried=False),
        "tried": _buildable(facts, able, tried=True),
        "runs": {
            gpu.name: serving_kind(facts, [ArchTarget(one.name)], gpu) for gpu in facts.capabilities
        },
    }


def _capability_as_text(facts: Facts, one: Capability) -> str:
    rows = (fold_text(f"  {title:<10}  {text}") for title, text in _rows(facts, one))
    return "\n".join((f"{one.name}  {one.architecture}", *rows))


def _rows(facts: Facts, one: Capability) -> Iterator[tuple[str, str]]:
    able = toolkits_with_target(facts, one.name)
    yield "GPUs", ", ".join(one.gpus) or "none listed on NVIDIA's pages"
    if not able:
        yield "toolkits", "none makes code for it"
        return
    warned = [toolkit for toolkit in able if one.name in toolkit.deprecated]
    deprecated = f" (deprecated in {format_toolkit_range(warned)})" if warned else ""
    yield "toolkits", f"CUDA {format_toolkit_range(able)}{deprecated}"
    others = [name for name in _targets(facts, one) if name != one.name]
    ranges = {name: format_toolkit_range(toolkits_with_target(facts, name)) for name in others}
    if ranges:
        yield "targets", "; ".join(f"{name}: CUDA {listed}" for name, listed in ranges.items())
    drivers = (
        f"{driver or 'not known'} with CUDA {format_toolkit_range(list(group))}"
        for driver, group in groupby(able, key=lambda toolkit: toolkit.driver)
    )
    yield "driver", "comes with the board's JetPack" if one.tegra else f"Linux {', '.join(drivers)}"
    yield "torch", _history(facts, one, able)
    on = [
        gpu.name for gpu in facts.capabilities if serving_kind(facts, [ArchTarget(one.name)], gpu)
    ]
    yield "runs on", f"{', '.join(on)}; with +PTX on every later one too"


def _targets(facts: Facts, one: Capability) -> list[str]:
    names = {name for toolkit in facts.toolkits for name in toolkit.capabilities}
    return sorted(name for name in names if name.rstrip("af") == one.name)


def _history(facts: Facts, one: Capability, able: Sequence[Toolkit]) -> str:
    """Tell which official builds run on a capability, and how to build one where the newest do not."""
    everything = facts.releases[base_package(facts).name]
    ways = published.official_support(facts, one, "aarch64" if one.tegra else "x86_64")
    text = f"official builds that run on it: {_stretches(everything, ways) or 'none'}"
    if not one.tegra and (on_arm := published.official_support(facts, one, "aarch64")):
        text += f"; for aarch64: {_stretches(everything, on_arm)}"
    if published.READ_CODE.fullmatch(ways.get(everything[-1].version, "")):
        return text
    if tried := _buildable(facts, able, tried=True):
        return f"{text}; build it yourself: torch up to {tried[0]} was built with CUDA {tried[1]}"
    if untried := _buildable(facts, able, tried=False):
        release, cuda = untried
        return (
            f"{text}; build it yourself: torch up to {release} takes CUDA {cuda}, "
            "though nobody has tried it"
        )
    return f"{text}; no release builds with such a toolkit"


def _buildable(facts: Facts, able: Iterable[Toolkit], *, tried: bool) -> tuple[str, str] | None:
    """Return the newest release that can be built with one of some toolkits, and the newest such toolkit.

    With `tried`, only those count that somebody is known to have built so.
    """
    order = [one.version for one in facts.toolkits]
    wanted = {one.version for one in able}
    for release in reversed(facts.releases[base_package(facts).name]):
        cells = [
            cell
            for arch in release.arches
            for cell in possible_cells(facts, release, arch)
            if cell.build.cuda in wanted and (not tried or find_trial(facts, cell).witness)
        ]
        if versions := [str(cell.build.cuda) for cell in cells]:
            return release.version, max(versions, key=order.index)
    return None


def _stretches(everything: Sequence[Release], ways: Mapping[str, str]) -> str:
    """Return "1.0.0 to 1.3.1 (code for 3.5), 1.4.0 (code for 3.7)"."""
    texts = []
    for way, group in groupby(everything, key=lambda release: ways.get(release.version)):
        members = list(group)
        first, last = members[0].version, members[-1].version
        if way:
            texts.append(f"{first if first == last else f'{first} to {last}'} ({way})")
    return ", ".join(texts)


def answer_arch(
    facts: Facts,
    host: Host,
    listed: str = "",
    *,
    names: Sequence[str] = (),
    local: Release | None = None,
    cuda: str = "",
    tag: str = "",
) -> CommandOutput:
    """Return what is known of a list, or of GPUs by their names; asked for nothing, of all that fit in short.

    `local` asks for the GPUs of `host` too, and is the release for which it tells what their list saves. A list must
    be for the toolkit `cuda` and the release `tag`, if they are named; with both it says what the list costs on `host`.
    Raises ConfigError for what is not known or cannot be read, ImpossibleBuildError for a list that the toolkit or the
    release does not take.
    """
    toolkit = find_toolkit(facts, "--cuda", cuda) if cuda else None
    release = find_release(facts, base_package(facts).name, tag) if tag else None
    gpus = [one for name in names for one in find_gpus(facts, name)]
    gpus += gpus_of_host(facts, host.gpus.devices, host.unknown_gpus_reason) if local else ()
    own = {one.capability.name: one.capability for one in gpus}
    shortest = arch_list.format_arch_list(shortest_arch_list(facts, own.values()))
    asked = listed or (shortest if local else ";".join(own))
    if not asked:
        return _answer_in_short(facts, toolkit, release)
    targets = check_arch_list(facts, asked, toolkit, release, host.gpus.devices)
    wanted, written = {each.capability for each in targets}, arch_list.format_arch_list(targets)
    capabilities = [one for one in facts.capabilities if one.name in wanted]
    ways = {gpu.name: serving_kind(facts, targets, gpu) for gpu in facts.capabilities}
    plan = _plan(facts, targets, toolkit, release, host)
    on_board = gpus or [NamedGpu(one.name, one) for one in capabilities]
    board = None if local else gpu_hosts.find_board(facts, on_board)
    where = _machine([one.capability for one in on_board], host, board, here=local is not None)
    releases = [release] if release else facts.releases[base_package(facts).name]
    if local is not None or board:
        wheel = published.newest_published(facts, releases, where)
    else:
        wheel = published.newest_for_gpus(facts, releases, where)
    saving = _saving(facts, local, cuda, host) if local else []
    text = [
        *(f"{one.gpu}: {one.capability.name}" for one in gpus if one.gpu != one.capability.name),
        *(
            []
            if shortest in {"", written}
            else [f"{shortest} would do: its code runs on all of them"]
        ),
        *(_capability_as_text(facts, one) for one in capabilities),
        *_served(targets, ways, gpus),
        *_official(facts, wheel, on_board, board),
        *saving,
        *_remarks(facts, targets, toolkit, release),
        *(
            [
                estimate_report.estimate_as_text(
                    facts, plan, host.resources.memory, gpus=[*own.values()]
                )
            ]
            if plan
            else ()
        ),
    ]
    data = {
        "gpus": {one.gpu: one.capability.name for one in gpus},
        "capabilities": [capability_as_data(facts, one) for one in capabilities],
        "list": written,
        "published": wheel and wheel.as_data(),
        "saving": saving[0] if saving else None,
        "serves": ways,
        **(
            estimate_report.estimate_as_data(facts, plan, gpus=[*own.values()])
            if plan
            else {"estimate": None, "overflow": None}
        ),
    }
    return CommandOutput("\n".join(text), data)


def _answer_in_short(
    facts: Facts, toolkit: Toolkit | None, release: Release | None
) -> CommandOutput:
    """Return what is known of all capabilities that fit a toolkit and a release."""
    fitting = [
        one
        for one in facts.capabilities
        if not any(find_arch_problems(facts, [ArchTarget(one.name)], toolkit, release))
    ]
    rows = []
    for one in fitting:
        able = toolkits_with_target(facts, one.name)
        names = ", ".join(one.gpus[:3]) + (", …" if len(one.gpus) > 3 else "")  # noqa: PLR2004 - for a glance
        rows.append(
            (
                one.name,
                one.architecture,
                format_toolkit_range(able) if able else "none",
                names,
            )
        )
    table = format_table(("capability", "architecture", "CUDA", "GPUs"), rows)
    return CommandOutput(
        table, {"capabilities": [capability_as_data(facts, one) for one in fitting]}
    )


def _official(
    facts: Facts, wheel: PublishedWheel | None, gpus: Sequence[NamedGpu], board: GpuHost | None
) -> list[str]:
    """Return which official wheel serves some GPUs, and what their board says of the machine and of other wheels."""
    these = "all of these GPUs" if len({one.capability.name for one in gpus}) > 1 else "this GPU"
    return [
        *([gpu_hosts.board_sentence(board, gpus[0])] if board else ()),
        str(wheel or f"no official wheel that was read fits {these}"),
        *map(
            gpu_hosts.index_sentence,
            gpu_hosts.board_indexes(facts, [one.capability for one in gpus]),
        ),
    ]


def _machine(gpus: Iterable[Capability], host: Host, board: GpuHost | None, *, here: bool) -> Host:
    """Return the machine that a wheel is for: this one, a board's, or one of which only the GPUs are known."""
    names = [one.name for one in gpus]
    if here:
        return published.with_gpus(host, names)
    if board:
        return published.with_gpus(gpu_hosts.board_machine(board, host), names)
    arch = host.arch if host.system == "linux" else published.OFFICIAL_ARCHES[0]
    return published.with_gpus(
        Host(arch, "linux", HostResources(host.resources.cores, host.resources.memory)), names
    )


def _saving(facts: Facts, wanted: Release, cuda: str, host: Host) -> list[str]:
    """Return how much sooner a build for this machine's GPUs ends than one with the official list.

    The build is of the release that is wanted, else of the newest that can, with an official toolkit if there is one,
    and for a Python that is here if any is.
    """
    for release in (wanted, *reversed(facts.releases[wanted.package])):
        possible = list(possible_cells(facts, release, host.arch))
        cells = [
            cell for cell in possible if cell.build.python in host.interpreters.paths
        ] or possible
        order = sorted(
            cells,
            key=lambda one: (one.build.cuda in release.cuda_official, one.build.python[-1] != "t"),
        )
        for cell in reversed(order):
            fits = cuda in {"", cell.build.cuda, cell.build.variant}
            if fits and (saving := estimate_report.saving_for_gpus(facts, cell, host)):
                return saving
    return []


def _served(
    targets: Sequence[ArchTarget], ways: Mapping[str, str | None], gpus: Iterable[NamedGpu]
) -> Iterator[str]:
    """Yield a list, in which way it serves each capability, and which of some GPUs it does not serve."""
    yield f"TORCH_CUDA_ARCH_LIST={arch_list.format_arch_list(targets)}"
    for way, title in (("code", "runs on"), ("PTX", "by PTX on"), (None, "not on")):
        if names := [name for name, served in ways.items() if served == way]:
            yield f"  {title:<10}  {', '.join(names)}"
    for one in gpus:
        if ways[one.capability.name] is None:
            yield f"{one.gpu} ({one.capability.name}) can run nothing on this list"


def _remarks(
    facts: Facts, targets: Sequence[ArchTarget], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield what to know before a list is built with a toolkit."""
    if toolkit is None:
        return
    if warned := [one.name for one in targets if one.name in toolkit.deprecated]:
        yield f"  CUDA {toolkit.version} warns about {', '.join(warned)}, which a later toolkit drops"
    if any(one.ptx for one in targets) and toolkit.driver_ptx:
        yield f"  PTX made by CUDA {toolkit.version} is sure to run with Linux driver {toolkit.driver_ptx}"
    if release and not can_build_with(facts, release, toolkit):
        yield f"  {release} does not build with CUDA {toolkit.version}"


def _plan(
    facts: Facts,
    targets: Sequence[ArchTarget],
    toolkit: Toolkit | None,
    release: Release | None,
    host: Host,
) -> Plan | None:
    """Return the plan of a build with such a list, for the newest Python; None if none is possible."""
    if toolkit is None or release is None:
        return None
    able = [
        cell
        for cell in possible_cells(facts, release, host.arch)
        if cell.build.cuda == toolkit.version
    ]
    options = Options(arch_list=arch_list.format_arch_list(targets))
    return compute_plan(facts, able[-1], host, options) if able else None


def show_arch(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    list_: str | None = None,
    gpu: list[str] | None = None,
    local: bool = False,
    cuda: str = "",
    tag: str = "",
    host: str = "",
) -> CommandOutput:
    """Say which GPUs, toolkits and releases match compute capabilities."""
    wanted = selection.selected_or_newest(facts, layout, tag) if local else None
    machine = read_or_measure_host(host, layout.root)
    return answer_arch(
        facts, machine, list_ or "", names=gpu or (), local=wanted, cuda=cuda, tag=tag
    )
