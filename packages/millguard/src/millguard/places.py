"""The folders that millguard keeps between builds.

The cache has measured needs, recorded runs and compiled gates. In the board, the guards of one user
share a budget.
"""

import os
from collections.abc import Mapping
from pathlib import Path

CACHE_VARIABLE = "MILLGUARD_CACHE"
BOARD_VARIABLE = "MILLGUARD_BOARD"
HISTORY = "units.sqlite"  # the memory and time that units needed


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for measured needs, recorded runs and compiled gates.

    `MILLGUARD_CACHE` names it; else it lies where the XDG base directory specification says:
    https://specifications.freedesktop.org/basedir-spec/latest/. It may not exist yet.
    """
    users_folder = environ.get(CACHE_VARIABLE)
    if users_folder:
        return Path(users_folder).absolute()
    caches = Path(environ.get("XDG_CACHE_HOME", ""))
    if caches.is_absolute():  # the specification: relative paths are to be ignored
        return caches / "millguard"
    home = environ.get("HOME") or _recorded_home()
    return Path(home).absolute() / ".cache" / "millguard"


def _recorded_home() -> str:
    """Return this user's home by the system's records; "" if there is none, as in some containers.

    cron and systemd may start programs without HOME.
    """
    import pwd  # not on Windows, which always has a variable for it

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def board_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder in which this user's guards share a budget; None if they should not.

    It is the same for every session of the user, whatever TMPDIR or XDG_RUNTIME_DIR say: builds of
    a login, of cron and of Slurm are on one machine. Without `MILLGUARD_BOARD` it is
    /tmp/millguard-UID; the variable names another one, or none if it is empty. It may not exist yet.
    """
    users_folder = environ.get(BOARD_VARIABLE)
    if users_folder is None:
        return Path(f"/tmp/millguard-{os.getuid()}")  # noqa: S108 - the board checks its owner
    return Path(users_folder).absolute() if users_folder else None


def runs_folder(cache: Path) -> Path:
    """Return the folder with the recordings of the latest runs."""
    return cache / "runs"
