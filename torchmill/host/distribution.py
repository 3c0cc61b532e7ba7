"""The Linux distribution of a machine, the package managers on it, and who may install packages."""

import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
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
# Groups whose members the stock sudoers files of Debian, Ubuntu, Red Hat, Arch and macOS allow everything.
_SUDO_GROUPS = frozenset({"sudo", "wheel", "admin"})
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)=(.*)")
# "# R36 (release), REVISION: 4.3, GCID: …": https://docs.nvidia.com/jetson/archives/r36.4/DeveloperGuide/
_TEGRA_RELEASE = re.compile(r"R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)")
_TEGRA_PACKAGE = re.compile(
    r"^Package: nvidia-l4t-core\n(?:.+\n)*?Version: (\d+(?:\.\d+)*)", re.MULTILINE
)


def measure_distribution(root: Path) -> LinuxDistribution | None:
    """Return the distribution whose files lie below `root`; None without an os-release file that names one.

    https://www.freedesktop.org/software/systemd/man/latest/os-release.html
    """
    fields = os_release(root)
    if not (name := fields.get("ID", "").lower()):
        return None
    like = tuple(fields.get("ID_LIKE", "").lower().split())
    return LinuxDistribution(name, fields.get("VERSION_ID", ""), like, _tegra_release(root))


def os_release(root: Path) -> dict[str, str]:
    """Return the assignments of the os-release file below `root`; none without such a file."""
    text = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release")
    return dict(_assignments(text))


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if match := _ASSIGNMENT.fullmatch(line):
            with suppress(
                ValueError
            ):  # a quote that is never closed: the other lines are good all the same
                yield match[1], " ".join(shlex.split(match[2]))


def _tegra_release(root: Path) -> str | None:
    """Return the release of Jetson Linux, "36.4.3"; None on other machines."""
    if match := _TEGRA_RELEASE.search(read_text(root / "etc/nv_tegra_release")):
        return f"{match[1]}.{match[2]}"
    if "nvidia,tegra" not in read_text(root / "proc/device-tree/compatible"):
        return None  # the file of packages, which is large, is read on boards alone
    match = _TEGRA_PACKAGE.search(read_text(root / "var/lib/dpkg/status"))
    return match[1] if match else None


def installed_managers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the package managers that are on PATH."""
    path = environ.get("PATH")
    return tuple(
        name for name, program in MANAGER_PROGRAMS.items() if shutil.which(program, path=path)
    )


def is_root() -> bool:
    """Return whether this process runs as root."""
    return os.name != "nt" and os.geteuid() == 0


def may_use_root(environ: Mapping[str, str]) -> bool | None:
    """Return whether this user can run commands as root, itself or through sudo; None if that cannot be told.

    sudo is not asked, because it reports a user whom it does not know to the administrator.
    """
    if os.name == "nt":
        return None
    if is_root():
        return True
    if shutil.which("sudo", path=environ.get("PATH")) is None:
        return False
    return True if _SUDO_GROUPS & _user_groups(os.getgroups()) else None


def _user_groups(ids: Collection[int]) -> set[str]:
    import grp  # not on Windows

    names = set()
    for number in ids:
        with suppress(KeyError):  # a group without a name, as in containers
            names.add(grp.getgrgid(number).gr_name)
    return names
