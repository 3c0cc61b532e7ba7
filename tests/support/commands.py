"""Run the real `nox` and `invoke` as a user does."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.forked_commands import can_fork, run_forked
from torchmill.core.paths import FACTS_FILES, FACTS_MEMORY

InvokeHere = Callable[
    [str], tuple[int, str, str]
]  # what the fixture `invoke` gives: exit code, output, errors

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "TORCHMILL_INVOKE": "invoke",
    "TORCHMILL_NOX": "nox",
}  # what messages name, wherever the tests run
OURS = ("TORCHMILL_", "NOX_", "INVOKE_")
# An empty folder that lasts as long as the tests. With it, homes begin with what a user's first command has computed:
# the parsed facts and, for nox, the list of sessions. Without it, each test would compute them again.
warm_home: Path | None = None


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a user's environment in which everything that is made goes below `home`."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return variables | {
        "TORCHMILL_HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "NO_COLOR": "1",
        **PROGRAMS,
        "TORCHMILL_TRIES": "2",  # the repetition follows at once; more would pause before it
        "TORCHMILL_PROBE": "off",  # no test waits for hosts that are not on this machine
        "MILLGUARD_BOARD": "",  # tests run side by side, and regard no build of another
        **(extra or {}),
    }


@functools.cache
def _make_warm_cache(home: Path) -> Path:
    """Run two commands with an empty home; return torchmill's cache after them."""
    argv = [sys.executable, "-m", "nox", "--list"]
    # Without a release, and with the one that most tests select.
    for selection in ({}, {"TORCHMILL_TAG": "v1.13.1"}):
        variables = environment(home, selection)
        subprocess.run(argv, cwd=ROOT, env=variables, check=True, capture_output=True)
    return home / "cache" / "torchmill"


def _fill_cache(tool: str, home: Path) -> None:
    """Copy into the cache of a home what a command would compute, unless it is there."""
    if warm_home is None or not home.is_dir():
        return
    facts_file, parsed_files, sessions_file = FACTS_FILES
    names = [facts_file, parsed_files]
    if tool == "nox":
        names.append(sessions_file)
    memories = _make_warm_cache(warm_home) / FACTS_MEMORY
    for name in names:
        for source in memories.glob(f"*/{name}"):
            path = home / "cache" / "torchmill" / FACTS_MEMORY / source.parent.name / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, path)


def start(
    argv: Sequence[str], home: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start `nox` or `invoke` with arguments, in a session of its own; its output is one text."""
    return subprocess.Popen(
        [sys.executable, "-m", *argv],
        cwd=ROOT,
        env=environment(home, env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(
    tool: str, *arguments: str, home: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `nox` or `invoke` of this environment in the root of the project, to its end."""
    _fill_cache(tool, home)
    variables = environment(home, env)
    if can_fork(variables):
        return run_forked(tool, arguments, variables)
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
