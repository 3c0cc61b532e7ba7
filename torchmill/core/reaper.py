"""End what a run started when the run itself was killed: `python -m torchmill.core.reaper RUN`.

Compilers have a guard for that, containers a watchdog; this is for everything else: environments that are
being made, pip, git, and what they start.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from torchmill.core import process
from torchmill.core.paths import CHECKOUT

VARIABLE = "TORCHMILL_RUN"  # which every process of a run carries
# A shell waits, for it is small; it becomes the reaper where the pipe ends without a word.
_WAIT = 'read -r _ || exec "$0" -m torchmill.core.reaper "$1"'


def watch_run() -> None:
    """Have all processes that this one starts from now on ended when this one is killed. Not on Windows."""
    if sys.platform == "win32":
        return
    run = f"{os.getpid()}-{time.time_ns()}"
    os.environ[VARIABLE] = run
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    reading, writing = os.pipe()
    with contextlib.suppress(OSError):  # without a shell nobody watches
        subprocess.Popen(
            ["/bin/sh", "-c", _WAIT, sys.executable, run],
            env={**os.environ, "PYTHONPATH": path},
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    os.close(reading)
    atexit.register(_dismiss, os.getpid(), writing)


def _dismiss(run: int, pipe: int) -> None:
    """End the waiting; a process that was merely forked from the run keeps quiet."""
    if os.getpid() == run:
        with contextlib.suppress(OSError):
            os.write(pipe, b"done\n")


def without_mark(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a process that outlives the run, or sees to its own end."""
    return {name: value for name, value in environ.items() if name != VARIABLE}


if __name__ == "__main__":
    process.end_by_variable(VARIABLE, sys.argv[1])
