"""End the processes of a run that was killed itself: `python -m torchmill.core.reaper JSON`.

Compilers have a guard for that; this is for all other processes: pip and venv, git, their children,
and containers.
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

VARIABLE = "TORCHMILL_RUN"  # the variable that marks every process of a run
# Between two passes: an engine may have been about to start the container during the first.
SECOND_PASS_SECONDS = 5.0
# A shell waits, because it is small. It becomes the reaper if the pipe ends without a line. It
# ignores the signals that Slurm sends to every process of a job: the run must end first.
_WAIT = 'trap "" TERM INT; read -r _ || exec "$@"'
_DISMISSAL = b"done\n"


def watch_run() -> None:
    """Have all processes that this one starts from now on ended if it is killed. Not on Windows."""
    if sys.platform == "win32":
        return
    run = f"{os.getpid()}-{time.time_ns()}"
    os.environ[VARIABLE] = run
    with contextlib.suppress(OSError):  # without a shell there is no watcher
        _, pipe = _start_watcher({VARIABLE: run}, (), os.environ)
        atexit.register(_dismiss, os.getpid(), pipe)


@contextlib.contextmanager
def watch_container(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str]
) -> Iterator[None]:
    """Have a container ended, as by `end_marked`, if this process is killed in the block."""
    watcher, pipe = _start_watcher(mark, after, without_mark(environ))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the watcher itself was killed
            os.write(pipe, _DISMISSAL)
        os.close(pipe)
        watcher.wait()


def end_marked(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str] | None = None
) -> None:
    """End all processes that have the variable in `mark`, then run the command `after`, if any."""
    if sys.platform != "win32":
        from millguard import processes

        for name, value in mark.items():
            processes.end_by_variable(name, value)
    if after:
        with contextlib.suppress(CommandError, HostError):
            process.capture(after, env=environ)


def _start_watcher(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Have another process call `end_marked` if this one is killed.

    Returns that process and the writing end of its pipe: a line on it dismisses the watcher. The
    kernel closes the pipe when this process ends in any way. Raises OSError.
    """
    python_path = os.pathsep.join(filter(None, [str(CHECKOUT), environ.get("PYTHONPATH")]))
    arguments = json.dumps([dict(mark), list(after)])
    # -P: a module in the current folder must not replace one of torchmill.
    reaper = (sys.executable, "-P", "-m", "torchmill.core.reaper", arguments)
    reading_end, writing_end = os.pipe()
    try:
        watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT, "sh", *reaper],
            env={**environ, "PYTHONPATH": python_path},
            stdin=reading_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # neither Ctrl-C nor `kill -9` of the run's group reaches it
        )
    finally:
        os.close(reading_end)
    process.WATCHERS.add(watcher.pid)
    return watcher, writing_end


def _dismiss(run_pid: int, pipe: int) -> None:
    """Dismiss the watcher at the end of the run; its forks inherit the handler, and must not."""
    if os.getpid() == run_pid:
        with contextlib.suppress(OSError):
            os.write(pipe, _DISMISSAL)


def mark_of_run() -> dict[str, str]:
    """Return the variable that marks processes of this run; nothing if there is no watcher."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def without_mark(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that outlives the run, or ends by itself."""
    return {name: value for name, value in environ.items() if name != VARIABLE}


def _main() -> None:
    mark, after = json.loads(sys.argv[1])
    end_marked(mark, after)
    if after:
        time.sleep(SECOND_PASS_SECONDS)
        end_marked(mark, after)


if __name__ == "__main__":
    _main()
