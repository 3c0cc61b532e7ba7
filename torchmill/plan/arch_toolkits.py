"""Which CUDA toolkits make code for a GPU, and which build was the first with such code."""

from collections.abc import Sequence

from packaging.version import Version

from torchmill.config.arch_list import parse_targets
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.release_lookup import base_package
from torchmill.config.toolkit import Toolkit
from torchmill.core.errors import require_choice


def format_toolkit_range(toolkits: Sequence[Toolkit]) -> str:
    """Return "11.8", or "11.1 to 13.3"; "none" of no toolkits, such as the sample's facts have."""
    if not toolkits:
        return "none"
    oldest = toolkits[0].version
    newest = toolkits[-1].version
    return oldest if oldest == newest else f"{oldest} to {newest}"


def toolkits_with_target(facts: Facts, name: str) -> list[Toolkit]:
    """Return the toolkits that make code for a target, oldest first.

    Of those for a system on a chip it is the ones whose code a driver of its boards runs.
    """
    gpu = facts.capability(name)
    toolkits: list[Toolkit] = []
    for toolkit in facts.toolkits:
        runs = gpu is None or toolkit.version in gpu.jetpack
        if runs and name in toolkit.capabilities:
            toolkits.append(toolkit)
    return toolkits


def first_makers(facts: Facts, gpu: Capability, toolkit: Toolkit) -> str:
    """Return the first toolkit and the first official build with code for a capability itself.

    That is "CUDA 12.8, torch 2.7.0 (cu128)"; "" if none is known, or `toolkit` is newer than the
    first.
    """
    toolkits = toolkits_with_target(facts, gpu.name)
    if not toolkits or Version(toolkits[0].version) < Version(toolkit.version):
        return ""
    first_toolkit = f"CUDA {toolkits[0].version}"
    first_build = _first_official_build(facts, gpu)
    return f"{first_toolkit}, {first_build}" if first_build else first_toolkit


def _first_official_build(facts: Facts, gpu: Capability) -> str:
    """Return the oldest official build with code for a capability: "torch 2.7.0 (cu128)", or ""."""
    arch = "aarch64" if gpu.tegra else "x86_64"
    for release in facts.releases[base_package(facts).name]:
        for version, cuda in release.cuda_official.items():
            targets = parse_targets(facts, cuda.capabilities.get(arch, ""))
            if gpu.name in {target.capability for target in targets}:
                variant = "cu" + version.replace(".", "")
                return f"{release} ({variant})"
    return ""


def find_toolkit(facts: Facts, option: str, version: str) -> Toolkit:
    """Return the toolkit of a version, "11.8" or "cu118". Raises ConfigError that names all."""
    by_version: dict[str, Toolkit] = {}
    for toolkit in facts.toolkits:
        if toolkit.variant == version:
            return toolkit
        by_version[toolkit.version] = toolkit
    return by_version[require_choice(option, version, by_version, "unknown-toolkit")]
