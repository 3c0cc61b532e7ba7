"""The version of the torchmill that runs."""

import subprocess
from pathlib import Path

from torchmill.core.paths import CHECKOUT, INSTALLED_SUITE

UNKNOWN = "unknown"
_TIMEOUT_SECONDS = 10.0
_DESCRIBE = ("describe", "--tags", "--always", "--dirty", "--match", "v[0-9]*")


def suite_version(folder: Path = CHECKOUT) -> str:
    """Return the version of the torchmill in a folder.

    For a checkout it is git's description, "v0.2.0-12-gab12cd3", or the commit if there is no tag;
    "-dirty" at its end stands for changes that are not committed. For a torchmill that was
    installed from a wheel it is the wheel's version. It is UNKNOWN for a copy of a checkout without
    its repository, and if git does not answer.
    """
    # The metadata of an editable installation would not do for a checkout: they do not change with
    # its files.
    if (folder / ".git").exists():
        return _describe_checkout(folder)
    if folder.name != INSTALLED_SUITE:
        return UNKNOWN
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torchmill")
    except PackageNotFoundError:
        return UNKNOWN


def _describe_checkout(folder: Path) -> str:
    """Return git's description of a checkout and its changes; UNKNOWN if git gives none in time."""
    # core.fsmonitor may name a program, which git would start.
    argv = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *_DESCRIBE]
    try:
        result = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return result.stdout.strip() or UNKNOWN
