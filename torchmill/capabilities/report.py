"""What is known of a compute capability, and of a list of them, for people and programs."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from torchmill.capabilities.judging import builds_with, makers, span
from torchmill.capabilities.targets import Target, canonical, plain, serves
from torchmill.errors import ConfigError
from torchmill.matrix import base_package
from torchmill.model import Capability, Facts, Release, Toolkit

WIDTH = 100


def capability(facts: Facts, name: str) -> Capability:
    """Return what gpus.toml says of a capability.

    Raises ConfigError when it says nothing.
    """
    if (one := facts.capability(name)) is not None:
        return one
    known = ", ".join(one.name for one in facts.capabilities)
    raise ConfigError(f"compute capability {name} is not known; there is {known}")


def as_data(facts: Facts, one: Capability) -> dict[str, Any]:
    """Return what is known of a capability as JSON-ready data."""
    able = makers(facts, one.name)
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
        "runs": {gpu.name: serves(facts, [Target(one.name)], gpu) for gpu in facts.capabilities},
    }


def as_text(facts: Facts, one: Capability) -> str:
    """Return what is known of a capability for a person to read."""
    lines = [f"{one.name}  {one.architecture}"]
    for title, text in _rows(facts, one):
        folded = wrap(text, WIDTH - 14) or [""]
        lines += [f"  {title:<10}  {folded[0]}", *(f"{'':14}{more}" for more in folded[1:])]
    return "\n".join(lines)


def overview(facts: Facts, capabilities: Iterable[Capability]) -> str:
    """Return one line for each capability."""
    lines = []
    for one in capabilities:
        able = makers(facts, one.name)
        toolkits = f"CUDA {span(able)}" if able else ""
        named = ", ".join(one.gpus[:3]) + (", …" if len(one.gpus) > 3 else "")  # noqa: PLR2004 - for a glance
        lines.append(f"{one.name:<5} {one.architecture:<10} {toolkits:<18} {named}".rstrip())
    return "\n".join(lines)


def list_as_data(facts: Facts, targets: Sequence[Target]) -> dict[str, Any]:
    """Return a list and whom it serves as JSON-ready data."""
    return {
        "list": canonical(targets),
        "serves": {gpu.name: serves(facts, targets, gpu) for gpu in facts.capabilities},
    }


def list_as_text(facts: Facts, targets: Sequence[Target]) -> str:
    """Return a list and whom it serves for a person to read."""
    ways: dict[str | None, list[str]] = {}
    for gpu in facts.capabilities:
        ways.setdefault(serves(facts, targets, gpu), []).append(gpu.name)
    lines = [f"TORCH_CUDA_ARCH_LIST={canonical(targets)}"]
    for way, title in (("code", "runs on"), ("PTX", "by PTX on"), (None, "not on")):
        if way in ways:
            lines.append(f"  {title:<10}  {', '.join(ways[way])}")
    return "\n".join(lines)


def _rows(facts: Facts, one: Capability) -> Iterator[tuple[str, str]]:
    able = makers(facts, one.name)
    yield "GPUs", ", ".join(one.gpus) or "none that NVIDIA's pages name"
    if not able:
        yield "toolkits", "none makes code for it"
        return
    warned = [toolkit for toolkit in able if one.name in toolkit.deprecated]
    others = [name for name in _targets(facts, one) if name != one.name]
    yield "toolkits", f"CUDA {span(able)}" + (f" (deprecated in {span(warned)})" if warned else "")
    if others:
        yield "targets", "; ".join(f"{name}: CUDA {span(makers(facts, name))}" for name in others)
    yield "driver", "Linux " + ", ".join(_drivers(able))
    yield "torch", _history(facts, one, able)
    on = [gpu.name for gpu in facts.capabilities if serves(facts, [Target(one.name)], gpu)]
    yield "runs on", f"{', '.join(on)}; with +PTX on every later one too"


def _targets(facts: Facts, one: Capability) -> list[str]:
    names = {name for toolkit in facts.toolkits for name in toolkit.capabilities}
    return sorted(name for name in names if name == one.name or (not plain(name) and name[:-1] == one.name))


def _drivers(able: Sequence[Toolkit]) -> Iterator[str]:
    for driver, group in groupby(able, key=lambda toolkit: toolkit.driver):
        yield f"{driver or 'not known'} with CUDA {span(list(group))}"


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
            if builds_with(facts, release, toolkit):
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
