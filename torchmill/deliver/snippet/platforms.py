"""The platforms of a project: their names, their wheels' tags, and the markers that tell them (PEP 508)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchmill.errors import ConfigError
from torchmill.model import Arch, Facts

_SYS_PLATFORM = {"linux": "linux", "macos": "darwin", "windows": "win32"}
_TAGS = {"linux": ("manylinux", "linux_"), "macos": ("macosx_",), "windows": ("win_",)}


def name(arch: Arch) -> str:
    """Return how a platform is called: "linux/x86_64"."""
    return f"{arch.system}/{arch.name}"


def chosen(facts: Facts, words: Sequence[str]) -> tuple[Arch, ...]:
    """Return the platforms with these names, in the order of the facts.

    Raises ConfigError for a name that none has.
    """
    known = {name(arch): arch for arch in facts.arches.values()}
    if unknown := [word for word in words if word not in known]:
        raise ConfigError(f"--platform {unknown[0]}: there is {', '.join(known)}")
    return tuple(arch for title, arch in known.items() if title in words)


def of_tag(facts: Facts, tag: str) -> Arch | None:
    """Return the platform of a wheel's platform tag, "manylinux_2_17_x86_64"; None where we know none."""
    for arch in facts.arches.values():
        if tag.endswith(f"_{arch.name}") and tag.startswith(_TAGS.get(arch.system, ())):
            return arch
    return None


def marker(some: Collection[Arch], every: Collection[Arch]) -> str:
    """Return the marker that is true on some of a project's platforms; "" where it is true on all of them.

    A system is told by itself where all of its platforms are meant: so another machine of it finds out that
    there is no wheel, and does not simply go without.
    """
    if {arch.name for arch in every} <= {arch.name for arch in some}:
        return ""
    told = []
    for system in dict.fromkeys(arch.system for arch in some):
        mine = [arch for arch in some if arch.system == system]
        whole = len(mine) == sum(arch.system == system for arch in every)
        told += [_system(system)] if whole else [exactly(arch) for arch in mine]
    return told[0] if len(told) == 1 else " or ".join(_grouped(one) for one in told)


def exactly(arch: Arch) -> str:
    """Return the marker that is true on one platform only."""
    machines = [f"platform_machine == '{machine}'" for machine in arch.machines]
    machine = machines[0] if len(machines) == 1 else f"({' or '.join(machines)})"
    return f"{_system(arch.system)} and {machine}"


def joined(first: str, second: str) -> str:
    """Return the marker that is true where both are; "" is true everywhere."""
    return " and ".join(_grouped(one, " or ") for one in (first, second) if one)


def _system(system: str) -> str:
    return f"sys_platform == '{_SYS_PLATFORM.get(system, system)}'"


def _grouped(marker: str, word: str = " and ") -> str:
    return f"({marker})" if word in marker else marker
