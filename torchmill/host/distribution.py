"""The Linux distribution of a machine, its package managers, and who may install packages."""

import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.core.lenient_paths import read_text

# Package managers by the program that runs them.
MANAGER_PROGRAMS: Mapping[str, str] = {
    "apt": "apt-get",
    "dnf": "dnf",
    "microdnf": "microdnf",
    "yum": "yum",
    "zypper": "zypper",
    "pacman": "pacman",
    "apk": "apk",
    "brew": "brew",
    "conda": "conda",
    "micromamba": "micromamba",
}
# Groups that the stock sudoers files of Debian, Ubuntu, Red Hat, Arch and macOS allow everything.
_SUDO_GROUPS = frozenset({"sudo", "wheel", "admin"})
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)=(.*)")
# "# R36 (release), REVISION: 4.3, GCID: …":
# https://docs.nvidia.com/jetson/archives/r36.4/DeveloperGuide/
_TEGRA_RELEASE = re.compile(r"R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)")
_TEGRA_PACKAGE = re.compile(
    r"^Package: nvidia-l4t-core\n(?:.+\n)*?Version: (\d+(?:\.\d+)*)", re.MULTILINE
)


def measure_distribution(root: Path) -> LinuxDistribution | None:
    """Return the distribution whose files lie below `root`; None if no os-release file names one.

    https://www.freedesktop.org/software/systemd/man/latest/os-release.html
    """
    fields = os_release(root)
    name = fields.get("ID", "").lower()
    if not name:
        return None
    like = tuple(fields.get("ID_LIKE", "").lower().split())
    return LinuxDistribution(name, fields.get("VERSION_ID", ""), like, _tegra_release(root))


def os_release(root: Path) -> dict[str, str]:
    """Return the assignments of the os-release file below `root`; {} without such a file."""
    text = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release")
    fields: dict[str, str] = {}
    for line in text.splitlines():
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            continue
        # A quote that is never closed spoils its own line alone.
        with suppress(ValueError):
            fields[match[1]] = " ".join(shlex.split(match[2]))
    return fields


def _tegra_release(root: Path) -> str | None:
    """Return the release of Jetson Linux, "36.4.3"; None on other machines."""
    release = _TEGRA_RELEASE.search(read_text(root / "etc/nv_tegra_release"))
    if release:
        return f"{release[1]}.{release[2]}"
    # The list of packages is large, so it is read on boards alone.
    if "nvidia,tegra" not in read_text(root / "proc/device-tree/compatible"):
        return None
    package = _TEGRA_PACKAGE.search(read_text(root / "var/lib/dpkg/status"))
    return package[1] if package else None


def installed_managers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the package managers that are on PATH: "apt", "conda"."""
    path = environ.get("PATH")
    return tuple(
        name for name, program in MANAGER_PROGRAMS.items() if shutil.which(program, path=path)
    )


def is_root() -> bool:
    """Tell whether this process runs as root."""
    return os.name != "nt" and os.geteuid() == 0


def may_use_root(environ: Mapping[str, str]) -> bool | None:
    """Tell whether this user can run commands as root, directly or by sudo; None if unknown.

    sudo is not asked, because it reports a user whom it does not know to the administrator.
    """
    if os.name == "nt":
        return None
    if is_root():
        return True
    if shutil.which("sudo", path=environ.get("PATH")) is None:
        return False
    if _SUDO_GROUPS & _group_names(os.getgroups()):
        return True
    return None


def _group_names(numbers: Collection[int]) -> set[str]:
    """Return the names of groups; a group without a name is left out."""
    import grp  # not on Windows

    names: set[str] = set()
    for number in numbers:
        with suppress(KeyError):  # a group without a name, as in containers
            names.add(grp.getgrgid(number).gr_name)
    return names
