"""The folders that millguard keeps between builds, and the file names of recorded runs."""

import os
from collections.abc import Mapping
from pathlib import Path

CACHE_VARIABLE = "MILLGUARD_CACHE"
BOARD_VARIABLE = "MILLGUARD_BOARD"
HISTORY = "units.sqlite"  # what units needed


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for what millguard learns and compiles.

    `MILLGUARD_CACHE` names it; else it lies where the XDG base directory specification says:
    https://specifications.freedesktop.org/basedir-spec/latest/.
    """
    named = environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    caches = Path(environ.get("XDG_CACHE_HOME", ""))
    if caches.is_absolute():  # the specification: relative paths are to be ignored
        return caches / "millguard"
    return Path(environ.get("HOME", "")).absolute() / ".cache" / "millguard"


def board_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder in which this user's guards share a budget; None if they should not.

    It is the same for every session of the user, whatever TMPDIR or XDG_RUNTIME_DIR say: builds of
    a login, of cron and of Slurm are on one machine. `MILLGUARD_BOARD` names another one, or none
    if it is empty.
    """
    named = environ.get(BOARD_VARIABLE)
    if named is None:
        return Path(f"/tmp/millguard-{os.getuid()}")  # noqa: S108 - the board checks its owner
    return Path(named).absolute() if named else None


def runs_folder(cache: Path) -> Path:
    """Return the folder with the recordings of the latest runs."""
    return cache / "runs"
