"""End what a run started when the run itself was killed: `python -m torchmill.core.reaper JSON`.

Compilers have a guard for that; this is for everything else: environments that are being made, pip, git, and what
they start, and containers.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from torchmill.core import process
from torchmill.core.errors import HostError
from torchmill.core.paths import CHECKOUT
from torchmill.core.process import CommandError

VARIABLE = "TORCHMILL_RUN"  # which every process of a run carries
SECOND_LOOK_SECONDS = 5.0  # after the first: an engine may have been about to start the container
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
        _, pipe = _start_watch({VARIABLE: run}, (), os.environ)
        atexit.register(_dismiss, os.getpid(), pipe)


@contextlib.contextmanager
def watch_container(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str]
) -> Iterator[None]:
    """Have a container ended, as by `end_marked`, where this process is killed while the context lasts."""
    watch, pipe = _start_watch(mark, after, without_mark(environ))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it was killed: then nobody watches
            os.write(pipe, b"done\n")
        os.close(pipe)
        watch.wait()


def end_marked(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str] | None = None
) -> None:
    """End the processes that carry a variable, the only one in `mark`, and run the command `after` them, if any."""
    if sys.platform != "win32":
        from millguard import processes

        for name, value in mark.items():
            processes.end_by_variable(name, value)
    if after:
        with contextlib.suppress(CommandError, HostError):
            process.capture(after, env=environ)


def _start_watch(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Have `end_marked` called by another process when this one is killed.

    Return what waits for that, and the pipe to which a line is written for it to wait no more. Raises OSError.
    """
    path = os.pathsep.join(filter(None, [str(CHECKOUT), environ.get("PYTHONPATH")]))
    told = json.dumps([dict(mark), list(after)])
    reading, writing = os.pipe()
    try:
        watch = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _WAIT,
                "sh",
                sys.executable,
                "-P",
                "-m",
                "torchmill.core.reaper",
                told,
            ],
            env={**environ, "PYTHONPATH": path},
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, and `kill -9` of its group too
        )
    finally:
        os.close(reading)
    process.WATCHERS.add(watch.pid)
    return watch, writing


def _dismiss(run: int, pipe: int) -> None:
    """End the waiting; a process that was merely forked from the run keeps quiet."""
    if os.getpid() == run:
        with contextlib.suppress(OSError):
            os.write(pipe, b"done\n")


def mark_of_run() -> dict[str, str]:
    """Return the variable by which what this run starts is ended where the run is killed; nothing if nobody watches."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def without_mark(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a process that outlives the run, or sees to its own end."""
    return {name: value for name, value in environ.items() if name != VARIABLE}


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    end_marked(*told)
    if told[1]:
        time.sleep(SECOND_LOOK_SECONDS)
        end_marked(*told)
