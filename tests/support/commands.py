"""Run the real `nox` and `invoke` as a user does."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

InvokeHere = Callable[
    [str], tuple[int, str, str]
]  # what the fixture `invoke` gives: exit code, output, errors

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "TORCHMILL_INVOKE": "invoke",
    "TORCHMILL_NOX": "nox",
}  # what messages name, wherever the tests run
OURS = ("TORCHMILL_", "NOX_", "INVOKE_")


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a user's environment in which everything that is made goes below `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {
        "TORCHMILL_HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "NO_COLOR": "1",
        **PROGRAMS,
        "TORCHMILL_PROBE": "off",  # no test waits for hosts that are not on this machine
        "MILLGUARD_BOARD": "",  # tests run side by side, and regard no build of another
        **(extra or {}),
    }


def run(
    tool: str, *arguments: str, home: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `nox` or `invoke` of this environment in the root of the project, to its end."""
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment(home, env), capture_output=True, text=True, check=False
    )
