"""The platforms of a project: their names, and the markers that are true on them (PEP 508).

A marker is a condition behind a requirement: "sys_platform == 'linux'".
"""

from collections.abc import Collection, Sequence

from torchmill.config.build import Arch
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError

# The value of sys.platform for each system of the facts.
_SYS_PLATFORM = {"linux": "linux", "macos": "darwin", "windows": "win32"}


def platform_name(arch: Arch) -> str:
    """Return the name of a platform: "linux/x86_64"."""
    return f"{arch.system}/{arch.name}"


def find_platforms(facts: Facts, names: Sequence[str]) -> tuple[Arch, ...]:
    """Return the platforms with these names, in the order of the facts.

    Raises ConfigError for a name that no platform has.
    """
    platforms = {platform_name(arch): arch for arch in facts.arches.values()}
    for name in names:
        if name not in platforms:
            raise ConfigError(
                f"unknown --platform {name}: choose from {', '.join(platforms)}",
                code="unknown-platform",
            )
    return tuple(arch for name, arch in platforms.items() if name in names)


def platforms_marker(chosen: Collection[Arch], platforms: Collection[Arch]) -> str:
    """Return the marker that is true on the `chosen` ones of a project's `platforms` only.

    It is "" if all are chosen. If all of a system's platforms are chosen, the marker names only the
    system. Another machine of that system then finds that there is no wheel, instead of silently
    going without the package.
    """
    if {arch.name for arch in platforms} <= {arch.name for arch in chosen}:
        return ""
    markers = []
    for system in dict.fromkeys(arch.system for arch in chosen):
        # The system is enough if all of its platforms in the project are chosen.
        chosen_of_system = [arch for arch in chosen if arch.system == system]
        total = sum(arch.system == system for arch in platforms)
        if len(chosen_of_system) == total:
            markers.append(_system_marker(system))
        else:
            markers += [platform_marker(arch) for arch in chosen_of_system]
    return join_markers(" or ", markers)


def platform_marker(arch: Arch) -> str:
    """Return the marker that is true on one platform only."""
    machines = [f"platform_machine == '{machine}'" for machine in arch.machines]
    machine = join_markers(" or ", machines)
    return join_markers(" and ", [_system_marker(arch.system), machine])


def _system_marker(system: str) -> str:
    return f"sys_platform == '{_SYS_PLATFORM.get(system, system)}'"


def join_markers(operator: str, markers: Sequence[str]) -> str:
    """Return markers joined by " and " or " or ", those with the other operator in parentheses."""
    if len(markers) == 1:
        return markers[0]
    other = " or " if operator == " and " else " and "
    return operator.join(f"({marker})" if other in marker else marker for marker in markers)
