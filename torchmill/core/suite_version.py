"""Which torchmill this is."""

import subprocess
from pathlib import Path

from torchmill.core.paths import CHECKOUT

UNKNOWN = "unknown"
_TIMEOUT_SECONDS = 10.0
_DESCRIBE = ("describe", "--tags", "--always", "--dirty", "--match", "v[0-9]*")


def suite_version(folder: Path = CHECKOUT) -> str:
    """Return the version of torchmill in a folder.

    In a checkout it is git's description, "v0.2.0-12-gab12cd3" or a commit alone, because a version
    that was installed from it earlier says nothing about its files now. Installed from a wheel it
    is the wheel's version. A copy of a checkout without its repository is "unknown".
    """
    if (folder / ".git").exists():
        return _describe_checkout(folder)
    if folder.name != "torchmill_suite":
        return UNKNOWN
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torchmill")
    except PackageNotFoundError:
        return UNKNOWN


def _describe_checkout(folder: Path) -> str:
    argv = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *_DESCRIBE]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN
