"""What the facts leave open or contradict about CUDA toolkits, for whoever adds a toolkit.

A gap is a thing that a toolkit can have in `build_configs/` and lacks, such as a provider from
which `invoke toolkit` installs the toolkit. A gap is no mistake: NVIDIA may offer nothing.
"""

from collections.abc import Iterator

from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.toolkit import Toolkit
from torchmill.core.errors import ConfigError

# NVIDIA's minor version compatibility, as the head of toolkits.toml explains `driver`.
_FIRST_WITH_SHARED_DRIVER = Version("11.1")


def describe_gaps(facts: Facts) -> list[str]:
    """Return a note for the toolkits with the same gaps, and a note on capabilities without GPUs.

    Notes on toolkits come in the order of the oldest toolkit of each. Kinds of facts that the files
    do not have at all, such as images in the facts of a small project, are no gaps.
    """
    toolkits_by_gaps: dict[str, list[str]] = {}
    for toolkit in facts.toolkits:
        gaps = ", ".join(_toolkit_gaps(facts, toolkit))
        if gaps:
            toolkits_by_gaps.setdefault(gaps, []).append(toolkit.version)
    notes = [f"note: {gaps}: CUDA {', '.join(names)}" for gaps, names in toolkits_by_gaps.items()]
    without_gpus = _capabilities_without_gpus(facts)
    if without_gpus:
        notes.append(f"note: no GPUs: compute capability {', '.join(without_gpus)}")
    return notes


def _toolkit_gaps(facts: Facts, toolkit: Toolkit) -> Iterator[str]:
    """Yield the gaps of a toolkit, each as "no provider": what no machine has in the facts."""
    provided: set[str] = set()
    with_parts: set[str] = set()
    for source in facts.toolkit_sources:
        if source.kind == "toolkit":
            provided.update(source.versions)
        elif source.kind == "parts":
            with_parts.update(source.versions)
    archives = [archive for archive in facts.images.archives if archive.kind == "toolkit"]
    versions_by_gap = {
        "no provider": provided,
        "no parts": with_parts,
        "no installer": {archive.cuda for archive in archives},
        "no image": {base.toolkit for base in facts.images.bases if base.toolkit},
    }
    for gap, versions in versions_by_gap.items():
        if versions and toolkit.version not in versions:
            yield gap


def _capabilities_without_gpus(facts: Facts) -> list[str]:
    """Return the capabilities for which no GPU is named, in ascending order."""
    if not facts.gpus.capabilities:
        return []
    with_gpus = {capability.name for capability in facts.gpus.capabilities if capability.gpus}
    without_gpus: set[str] = set()
    for toolkit in facts.toolkits:
        for name in toolkit.capabilities:
            capability = name.rstrip("af")  # "10.0f" is code for the GPUs of 10.0
            if capability not in with_gpus:
                without_gpus.add(capability)
    return sorted(without_gpus, key=Version)


def refuse_different_drivers(facts: Facts) -> None:
    """Raise ConfigError if toolkits of one major version, from 11.1 on, name different drivers.

    From 11.1 on every driver for a major version of CUDA runs the code of all its toolkits, and
    builds rely on it. Toolkits whose driver is not known are passed over.
    """
    first_by_key: dict[tuple[str, int], tuple[str, str]] = {}
    contradictions = []
    for toolkit in facts.toolkits:
        version = Version(toolkit.version)
        if version < _FIRST_WITH_SHARED_DRIVER:
            continue
        drivers = {"driver": toolkit.driver, "driver_windows": toolkit.driver_windows}
        for key, driver in drivers.items():
            if driver is None:
                continue
            first, expected = first_by_key.setdefault(
                (key, version.major), (toolkit.version, driver)
            )
            if driver != expected:
                contradictions.append(
                    f"  toolkits.toml: {toolkit.version}: '{key}' is {driver}, and that of {first} "
                    f"is {expected}"
                )
    if contradictions:
        lines = "\n".join(contradictions)
        raise ConfigError(
            "toolkits of one major version, from CUDA 11.1 on, share the oldest driver that runs "
            f"their code:\n{lines}\nThe driver that came with a toolkit is its 'driver_ptx'",
            code="facts-invalid",
        )
