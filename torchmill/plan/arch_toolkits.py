"""Which CUDA toolkits make code for a GPU, and which releases build with them."""

from collections.abc import Sequence

from packaging.version import Version

from torchmill.config.arch_list import parse_targets
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.release_lookup import base_package
from torchmill.config.toolkit import Toolkit
from torchmill.core.errors import require_choice


def format_toolkit_range(toolkits: Sequence[Toolkit]) -> str:
    """Return "11.8", or "11.1 to 13.3"; "none" of no toolkits, such as those of the sample's facts."""
    return (
        " to ".join(dict.fromkeys(one.version for one in (*toolkits[:1], *toolkits[-1:]))) or "none"
    )


def toolkits_with_target(facts: Facts, name: str) -> list[Toolkit]:
    """Return the toolkits that make code for a target which a driver of its boards runs, oldest first."""
    gpu = facts.capability(name)
    return [
        one
        for one in facts.toolkits
        if name in one.capabilities and (not gpu or one.version in gpu.jetpack)
    ]


def first_makers(facts: Facts, gpu: Capability, toolkit: Toolkit) -> str:
    """Return the first toolkit and the first official build with code for a capability itself.

    That is "CUDA 12.8, torch 2.7.0 (cu128)"; "" if none is known, or `toolkit` is newer than the first.
    """
    able = toolkits_with_target(facts, gpu.name)
    if not able or Version(able[0].version) < Version(toolkit.version):
        return ""
    arch = "aarch64" if gpu.tegra else "x86_64"
    builds = (
        (release, cuda, said.capabilities.get(arch, ""))
        for release in facts.releases[base_package(facts).name]
        for cuda, said in release.cuda_official.items()
    )
    having = (
        f"{release} (cu{cuda.replace('.', '')})"
        for release, cuda, listed in builds
        if gpu.name in {target.capability for target in parse_targets(facts, listed)}
    )
    return ", ".join(filter(None, (f"CUDA {able[0].version}", next(having, ""))))


def find_toolkit(facts: Facts, option: str, version: str) -> Toolkit:
    """Return the toolkit of a version: "11.8", or "cu118". Raises ConfigError that names all of them."""
    by_variant = {one.variant: one for one in facts.toolkits}
    by_version = {one.version: one for one in facts.toolkits}
    return (
        by_variant.get(version)
        or by_version[require_choice(option, version, by_version, "unknown-toolkit")]
    )
