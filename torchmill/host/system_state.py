"""Ask the operating system: its version and packages, Xcode's tools, and translation by Rosetta."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from torchmill.core.lenient_paths import find_paths
from torchmill.host.distribution import os_release
from torchmill.host.programs import RunProgram

_RPM = ("rpm", "--query", "--all", "--queryformat", "installed %{NAME} %{VERSION}\n")
# How each package manager lists everything that is installed.
_LISTING: Mapping[str, tuple[str, ...]] = {
    "apt": ("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package} ${Version}\n"),
    "dnf": _RPM,
    "microdnf": _RPM,
    "yum": _RPM,
    "zypper": _RPM,
    "pacman": ("pacman", "--query"),
    "apk": ("apk", "info", "--verbose"),
    "brew": ("brew", "list", "--versions"),
}
_APK_PACKAGE = re.compile(r"(?P<name>.+)-(?P<version>\d[^-]*-r\d+)")
_CONDA_RECORD = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-[^-]+")  # name of its file


def installed_packages(manager: str, environ: Mapping[str, str], run: RunProgram) -> dict[str, str]:
    """Return every installed package of a manager with its version; {} if it does not answer.

    conda's are those of the active environment; {} if none is active. Raises KeyError for
    micromamba, which has no environment of its own.
    """
    if manager == "conda":
        prefix = environ.get("CONDA_PREFIX")
        if not prefix:
            return {}
        # conda's own records, without starting conda.
        records = find_paths(Path(prefix, "conda-meta"), "*.json")
        return _match_packages(_CONDA_RECORD, [path.stem for path in records])
    lines = run(_LISTING[manager]).splitlines()
    if manager == "apk":
        return _match_packages(_APK_PACKAGE, lines)
    packages: dict[str, str] = {}
    for line in lines:
        words = line.split()
        if manager in {"brew", "pacman"}:
            # brew lists several versions of a package in one line.
            if words:
                packages[words[0]] = words[-1]
        elif words[:1] == ["installed"] and len(words) > 2:  # noqa: PLR2004 - state, name, version
            packages[words[1]] = words[2]
    return packages


def _match_packages(pattern: re.Pattern[str], texts: list[str]) -> dict[str, str]:
    """Return the versions of packages by name, from texts that a pattern matches."""
    packages: dict[str, str] = {}
    for text in texts:
        match = pattern.fullmatch(text)
        if match:
            packages[match["name"]] = match["version"]
    return packages


def system_version(root: Path, run: RunProgram) -> dict[str, str]:
    """Return the version of macOS as {"macos": "14.5"}, that of Linux as {"codename": "trixie"}.

    `root` is the folder with the files of the Linux system.
    """
    versions = {
        "macos": run(["sw_vers", "-productVersion"]).strip(),
        "codename": os_release(root).get("VERSION_CODENAME", ""),
    }
    return {name: version for name, version in versions.items() if version}


def xcode_tools(paths: Mapping[str, str], run: RunProgram) -> dict[str, str]:
    """Return {"xcode": folder} of its command-line tools; {} if they are not installed."""
    if "xcode-select" not in paths:
        return {}
    folder = run([paths["xcode-select"], "-p"]).strip()
    return {"xcode": folder} if folder else {}


def shared_memory_size(root: Path) -> int | None:
    """Return the size of /dev/shm in bytes, which containers have little of; None without one."""
    folder = root / "dev/shm"
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def is_translated(run: RunProgram) -> bool:
    """Tell whether Rosetta translates this process, made for Intel, for Apple silicon."""
    return run(["sysctl", "-n", "sysctl.proc_translated"]).strip() == "1"
