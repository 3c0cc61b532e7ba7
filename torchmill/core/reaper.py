"""End what a run started when the run itself was killed: `python -m torchmill.core.reaper RUN`.

Compilers have a guard for that, containers a watchdog; this is for everything else: environments that are
being made, pip, git, and what they start.
"""

import atexit
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from torchmill.core import process
from torchmill.core.paths import CHECKOUT

VARIABLE = "TORCHMILL_RUN"  # which every process of a run carries
# A shell waits, for it is small; it becomes the program where the pipe ends without a word. Slurm sends signals to
# every process of a job: the run goes first.
_WAIT = 'trap "" TERM INT; read -r _ || exec "$@"'


def watch_run() -> None:
    """Have all processes that this one starts from now on ended when this one is killed. Not on Windows."""
    if sys.platform == "win32":
        return
    run = f"{os.getpid()}-{time.time_ns()}"
    os.environ[VARIABLE] = run
    with contextlib.suppress(OSError):  # without a shell nobody watches
        _, pipe = start_watch("torchmill.core.reaper", [run], os.environ)
        atexit.register(_dismiss, os.getpid(), pipe)


def start_watch(module: str, words: Sequence[str], environ: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Have a module of ours run with some words when this process is killed.

    Return what waits for that, and the pipe to which a line is written for it to wait no more. Raises OSError.
    """
    path = os.pathsep.join(filter(None, [str(CHECKOUT), environ.get("PYTHONPATH")]))
    reading, writing = os.pipe()
    try:
        watch = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT, "sh", sys.executable, "-m", module, *words],
            env={**environ, "PYTHONPATH": path},
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, and `kill -9` of its group too
        )
    finally:
        os.close(reading)
    return watch, writing


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
