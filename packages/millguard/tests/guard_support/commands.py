"""The command `millguard` in a process of its own, with folders of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import millguard

IMPORTS = Path(millguard.__file__).parents[1]
SOURCE = "int number() { return 1; }\n"
DEADLINE = 120.0  # seconds, on a machine with much else to do


# As a user's terminal has them: a shell ignores some signals for a program in the background, and
# so would everything that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)


def command_environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which the command keeps everything below a folder."""
    own = {"MILLGUARD_CACHE": str(folder / "cache"), "MILLGUARD_BOARD": str(folder / "board")}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MILLGUARD_", "MAKEFLAGS", "MAX_JOBS", "LD_PRELOAD"))
    }
    return {**inherited, **own, "PYTHONPATH": str(IMPORTS), **variables}


def millguard_words(*words: str) -> list[str]:
    """Return the command line of millguard with some words."""
    return [sys.executable, "-m", "millguard", *words]


def run_millguard(
    folder: Path, words: Sequence[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run millguard in a folder to its end."""
    return subprocess.run(
        millguard_words(*words),
        cwd=folder,
        env=command_environment(folder, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def compiled_names(folder: Path) -> list[str]:
    """Return the sources and products that were compiled under guard, by millguard's own list."""
    done = run_millguard(folder, ["costs", "list"])
    assert done.returncode == 0, done.stderr
    return sorted(
        line.split("|")[-1 if "|link|" in line else 1] for line in done.stdout.splitlines()
    )
