"""`invoke arch`: the compute capabilities of GPUs, and what a list of capabilities runs on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from json import dumps
from textwrap import wrap
from typing import Any

from torchmill.commands.command import TaskCommand
from torchmill.config.arch_list import (
    ArchTarget,
    NamedGpu,
    find_gpus,
    format_arch_list,
    gpus_of_host,
    how_served,
    is_plain_target,
    shortest_arch_list,
)
from torchmill.config.arch_list_check import (
    can_build_with,
    check_arch_list,
    find_arch_problems,
    format_toolkit_range,
    toolkits_with_target,
)
from torchmill.config.matrix import base_package, find_release, supported_cells
from torchmill.config.model import Capability, Facts, Host, Options, Plan, Release, Toolkit
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout
from torchmill.host.machine import measure_host
from torchmill.plan import estimate
from torchmill.plan.build_plan import compute_plan

WIDTH = 100


def find_capability(facts: Facts, name: str) -> Capability:
    """Return what gpus.toml says of a capability.

    Raises ConfigError when it says nothing.
    """
    if (one := facts.capability(name)) is not None:
        return one
    known = ", ".join(one.name for one in facts.capabilities)
    raise ConfigError(f"compute capability {name} is not known; there is {known}")


def capability_as_data(facts: Facts, one: Capability) -> dict[str, Any]:
    """Return what is known of a capability as JSON-ready data."""
    able = toolkits_with_target(facts, one.name)
    releases = _official(facts, one)
    return {
        "capability": one.name,
        "architecture": one.architecture,
        "gpus": list(one.gpus),
        "toolkits": [toolkit.version for toolkit in able],
        "deprecated": [toolkit.version for toolkit in able if one.name in toolkit.deprecated],
        "targets": _targets(facts, one),
        "drivers": {
            toolkit.version: {
                "linux": toolkit.driver,
                "windows": toolkit.driver_windows,
                "linux_ptx": toolkit.driver_ptx,
            }
            for toolkit in able
        },
        "official": [release.version for release in releases],
        "buildable": _buildable(facts, able),
        "runs": {gpu.name: how_served(facts, [ArchTarget(one.name)], gpu) for gpu in facts.capabilities},
    }


def capability_as_text(facts: Facts, one: Capability) -> str:
    """Return what is known of a capability for a person to read."""
    lines = [f"{one.name}  {one.architecture}"]
    for title, text in _rows(facts, one):
        folded = wrap(text, WIDTH - 14) or [""]
        lines += [f"  {title:<10}  {folded[0]}", *(f"{'':14}{more}" for more in folded[1:])]
    return "\n".join(lines)


def capabilities_overview(facts: Facts, capabilities: Iterable[Capability]) -> str:
    """Return one line for each capability."""
    lines = []
    for one in capabilities:
        able = toolkits_with_target(facts, one.name)
        toolkits = f"CUDA {format_toolkit_range(able)}" if able else ""
        named = ", ".join(one.gpus[:3]) + (", …" if len(one.gpus) > 3 else "")  # noqa: PLR2004 - for a glance
        lines.append(f"{one.name:<5} {one.architecture:<10} {toolkits:<18} {named}".rstrip())
    return "\n".join(lines)


def list_as_data(facts: Facts, targets: Sequence[ArchTarget]) -> dict[str, Any]:
    """Return a list and whom it serves as JSON-ready data."""
    return {
        "list": format_arch_list(targets),
        "serves": {gpu.name: how_served(facts, targets, gpu) for gpu in facts.capabilities},
    }


def list_as_text(facts: Facts, targets: Sequence[ArchTarget]) -> str:
    """Return a list and whom it serves for a person to read."""
    ways: dict[str | None, list[str]] = {}
    for gpu in facts.capabilities:
        ways.setdefault(how_served(facts, targets, gpu), []).append(gpu.name)
    lines = [f"TORCH_CUDA_ARCH_LIST={format_arch_list(targets)}"]
    for way, title in (("code", "runs on"), ("PTX", "by PTX on"), (None, "not on")):
        if way in ways:
            lines.append(f"  {title:<10}  {', '.join(ways[way])}")
    return "\n".join(lines)


def _rows(facts: Facts, one: Capability) -> Iterator[tuple[str, str]]:
    able = toolkits_with_target(facts, one.name)
    yield "GPUs", ", ".join(one.gpus) or "none that NVIDIA's pages name"
    if not able:
        yield "toolkits", "none makes code for it"
        return
    warned = [toolkit for toolkit in able if one.name in toolkit.deprecated]
    others = [name for name in _targets(facts, one) if name != one.name]
    yield (
        "toolkits",
        f"CUDA {format_toolkit_range(able)}"
        + (f" (deprecated in {format_toolkit_range(warned)})" if warned else ""),
    )
    if others:
        yield (
            "targets",
            "; ".join(
                f"{name}: CUDA {format_toolkit_range(toolkits_with_target(facts, name))}" for name in others
            ),
        )
    yield "driver", "Linux " + ", ".join(_drivers(able))
    yield "torch", _history(facts, one, able)
    on = [gpu.name for gpu in facts.capabilities if how_served(facts, [ArchTarget(one.name)], gpu)]
    yield "runs on", f"{', '.join(on)}; with +PTX on every later one too"


def _targets(facts: Facts, one: Capability) -> list[str]:
    names = {name for toolkit in facts.toolkits for name in toolkit.capabilities}
    return sorted(
        name for name in names if name == one.name or (not is_plain_target(name) and name[:-1] == one.name)
    )


def _drivers(able: Sequence[Toolkit]) -> Iterator[str]:
    for driver, group in groupby(able, key=lambda toolkit: toolkit.driver):
        yield f"{driver or 'not known'} with CUDA {format_toolkit_range(list(group))}"


def _history(facts: Facts, one: Capability, able: Sequence[Toolkit]) -> str:
    """Tell which official builds have a capability, and how to get it where the newest have not."""
    everything = facts.releases[base_package(facts).name]
    having = _official(facts, one)
    text = f"in official builds of {_stretches(everything, having)}" if having else "in no official build"
    if everything[-1] in having:
        return text
    if not (buildable := _buildable(facts, able)):
        return f"{text}; no release builds with such a toolkit"
    return f"{text}; build it yourself: torch up to {buildable[0]} builds with CUDA {buildable[1]}"


def _official(facts: Facts, one: Capability) -> list[Release]:
    """Return the releases of which an official build has code for a capability."""
    return [
        release
        for release in facts.releases[base_package(facts).name]
        if any(
            one.name in (entry.removesuffix("+PTX") for entry in listed.split(";"))
            for said in release.cuda_official.values()
            for listed in said.capabilities.values()
        )
    ]


def _buildable(facts: Facts, able: Iterable[Toolkit]) -> tuple[str, str] | None:
    """Return the newest release that builds with one of some toolkits, and the newest such toolkit."""
    newest_first = sorted(able, key=facts.toolkits.index, reverse=True)
    for release in reversed(facts.releases[base_package(facts).name]):
        for toolkit in newest_first:
            if can_build_with(facts, release, toolkit):
                return release.version, toolkit.version
    return None


def _stretches(everything: Sequence[Release], some: Sequence[Release]) -> str:
    """Return "1.0.0 to 1.3.1, 1.7.0" of releases among all that there are."""
    texts = []
    for inside, group in groupby(everything, key=lambda release: release in some):
        members = list(group)
        if inside:
            first, last = members[0].version, members[-1].version
            texts.append(first if first == last else f"{first} to {last}")
    return ", ".join(texts)


@dataclass(frozen=True, slots=True)
class ArchQuestion:
    """What is asked; what is empty is not asked."""

    text: str = ""  # a list of compute capabilities
    names: tuple[str, ...] = ()  # of GPUs
    local: bool = False  # the GPUs of this machine
    cuda: str = ""  # the toolkit that must make code for it
    tag: str = ""  # the release of torch that must read it


@dataclass(frozen=True, slots=True)
class ArchAnswer:
    """What is known, for people and for programs."""

    text: str
    data: dict[str, Any]


def answer_arch(facts: Facts, question: ArchQuestion, host: Host) -> ArchAnswer:
    """Return what is known of a list or of GPUs; asked for nothing, of all that fit in short.

    With a toolkit and a release it says what the list costs on `host`. Raises ConfigError for what is not
    known or cannot be read, ImpossibleBuildError for a list that the toolkit or the release does not take.
    """
    toolkit = _toolkit(facts, question.cuda) if question.cuda else None
    release = find_release(facts, base_package(facts).name, question.tag) if question.tag else None
    named = [one for name in question.names for one in find_gpus(facts, name)]
    named += gpus_of_host(facts, host.gpus) if question.local else ()
    asked = question.text or ";".join(dict.fromkeys(one.capability.name for one in named))
    if not asked:
        fitting = [
            one
            for one in facts.capabilities
            if not any(find_arch_problems(facts, [ArchTarget(one.name)], toolkit, release))
        ]
        everything = [capability_as_data(facts, one) for one in fitting]
        return ArchAnswer(capabilities_overview(facts, fitting), {"capabilities": everything})
    targets = check_arch_list(facts, asked, toolkit, release, host.gpus)
    known = [find_capability(facts, one) for one in dict.fromkeys(each.capability for each in targets)]
    planned = _planned(facts, targets, toolkit, release, host)
    text = [
        *_named(facts, named),
        *(capability_as_text(facts, one) for one in known),
        list_as_text(facts, targets),
        *_remarks(facts, targets, toolkit, release),
        *([estimate.estimate_as_text(facts, planned, host.memory)] if planned else ()),
    ]
    data = {
        "gpus": {one.gpu: one.capability.name for one in named},
        "capabilities": [capability_as_data(facts, one) for one in known],
        **list_as_data(facts, targets),
        **(estimate.estimate_as_data(facts, planned) if planned else {"estimate": None, "overflow": None}),
    }
    return ArchAnswer("\n".join(text), data)


def _named(facts: Facts, named: Sequence[NamedGpu]) -> Iterator[str]:
    """Yield each GPU's capability, and a shorter list that serves them all, if there is one."""
    capabilities = {one.capability.name: one.capability for one in named}
    for one in named:
        yield f"{one.gpu}: {one.capability.name}"
    shortest = shortest_arch_list(facts, capabilities.values())
    if len(shortest) < len(capabilities):
        yield f"{format_arch_list(shortest)} would do: its code runs on all of them"


def _remarks(
    facts: Facts, targets: Sequence[ArchTarget], toolkit: Toolkit | None, release: Release | None
) -> Iterator[str]:
    """Yield what to know before a list is built with a toolkit."""
    if toolkit is None:
        return
    if warned := [one.name for one in targets if one.name in toolkit.deprecated]:
        yield f"  CUDA {toolkit.version} warns about {', '.join(warned)}: a later toolkit drops them"
    if any(one.ptx for one in targets) and toolkit.driver_ptx:
        yield f"  PTX made by CUDA {toolkit.version} is sure to run with Linux driver {toolkit.driver_ptx}"
    if release and not can_build_with(facts, release, toolkit):
        yield f"  {release} does not build with CUDA {toolkit.version}"


def _planned(
    facts: Facts, targets: Sequence[ArchTarget], toolkit: Toolkit | None, release: Release | None, host: Host
) -> Plan | None:
    """Return the plan of a build with such a list, for the newest Python; None where none is possible."""
    if toolkit is None or release is None:
        return None
    cells = [
        cell
        for cell in supported_cells(facts, release, host.arch)
        if cell.possible and cell.build.cuda == toolkit.version
    ]
    return (
        compute_plan(facts, cells[-1], host, Options(arch_list=format_arch_list(targets))) if cells else None
    )


def _toolkit(facts: Facts, version: str) -> Toolkit:
    known = [one.version for one in facts.toolkits]
    wanted = version.removeprefix("cu")
    for one in facts.toolkits:
        if wanted in {one.version, one.variant.removeprefix("cu")}:
            return one
    near = get_close_matches(version, known, 3) or known
    raise ConfigError(f"no CUDA toolkit {version} is known; there is {', '.join(near)}")


def show_arch(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    list_: str | None = None,
    gpu: list[str] | None = None,
    local: bool = False,
    cuda: str = "",
    tag: str = "",
    json: bool = False,
) -> str:
    """Say which GPUs, toolkits and releases go with compute capabilities."""
    question = ArchQuestion(list_ or "", tuple(gpu or ()), local, cuda, tag)
    answer = answer_arch(facts, question, measure_host(layout.root))
    return dumps(answer.data, indent=1) if json else answer.text


ARCH = TaskCommand(
    show_arch,
    {
        "list_": "compute capabilities, such as '8.6' or '8.0;8.6+PTX'; without them, all that fit, in short",
        "gpu": "a GPU by its name, such as 'RTX 3090'; may be repeated",
        "local": "the GPUs of this machine",
        "cuda": "the toolkit that must make code for the list, such as 11.8",
        "tag": "the release that must read it",
        "json": "print JSON",
    },
    repeated=("gpu",),
    argument="list_",
)
