"""Which CUDA toolkits make code for a GPU, and which build was the first with such code.

A target is an entry of TORCH_CUDA_ARCH_LIST without PTX: "8.6", "9.0a".
"""

from collections.abc import Sequence

from packaging.version import Version

from torchmill.config.arch_list import parse_checked_arch_list
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.release_lookup import base_package
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import cuda_label
from torchmill.core.errors import require_choice


def format_toolkit_range(toolkits: Sequence[Toolkit]) -> str:
    """Return "11.8", "11.1 to 13.3", or "none", of toolkits that are sorted by version."""
    if not toolkits:
        return "none"  # the sample in sample/ has facts without toolkits
    oldest = toolkits[0].version
    newest = toolkits[-1].version
    return oldest if oldest == newest else f"{oldest} to {newest}"


def toolkits_with_target(facts: Facts, target: str) -> list[Toolkit]:
    """Return the toolkits that make code for a target, such as "9.0a", oldest first.

    Toolkits that make code for a system on a chip, such as Jetson's, are left out if no driver of
    its boards runs this code.
    """
    capability = facts.capability(target.rstrip("af"))  # of "9.0a", 9.0
    toolkits: list[Toolkit] = []
    for toolkit in facts.toolkits:
        # The bounds of a graphics card's capability are empty, so every toolkit is within them.
        is_run = capability is None or toolkit.version in capability.jetpack
        if is_run and target in toolkit.capabilities:
            toolkits.append(toolkit)
    return toolkits


def describe_first_builds(facts: Facts, capability: Capability, toolkit: Toolkit) -> str:
    """Return the first toolkit and the first official build with code for a capability itself.

    That is "CUDA 12.8, torch 2.7.0 (cu128)"; "" if none is known, or `toolkit` is newer than the
    first: a user with a newer toolkit needs no older one.
    """
    toolkits = toolkits_with_target(facts, capability.name)
    if not toolkits or Version(toolkits[0].version) < Version(toolkit.version):
        return ""
    first_toolkit = f"CUDA {toolkits[0].version}"
    first_build = _first_official_build(facts, capability)
    return f"{first_toolkit}, {first_build}" if first_build else first_toolkit


def _first_official_build(facts: Facts, capability: Capability) -> str:
    """Return the oldest official build with code for a capability: "torch 2.7.0 (cu128)", or ""."""
    arch = "aarch64" if capability.tegra else "x86_64"
    for release in facts.releases[base_package(facts).name]:
        for cuda, official in release.cuda.official.items():
            targets = parse_checked_arch_list(facts, official.capabilities.get(arch, ""))
            if capability.name in {target.capability for target in targets}:
                return f"{release} ({cuda_label(cuda)})"
    return ""


def find_toolkit(facts: Facts, option: str, version: str) -> Toolkit:
    """Return the toolkit that a user names by its version, "11.8", or its variant, "cu118".

    Raises ConfigError for an unknown toolkit, with the name of the option and all versions.
    """
    by_version: dict[str, Toolkit] = {}
    for toolkit in facts.toolkits:
        if toolkit.variant == version:
            return toolkit
        by_version[toolkit.version] = toolkit
    return by_version[require_choice(option, version, by_version, "unknown-toolkit")]
