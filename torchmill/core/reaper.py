"""End the processes that a run has started if the run itself is killed.

Nothing in a killed process can do that. So a run starts a watcher, which waits until the run has
ended. A run that ends by itself dismisses its watcher. If it was killed, the watcher becomes the
reaper, `python -m torchmill.core.reaper JSON`: this module. It ends the processes of the run: pip,
git, their children, and containers. Compilers are ended by the memory guard. Processes of a run are
found by their "mark", a variable in their environment, which they inherit.
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
from torchmill.core.paths import import_path
from torchmill.core.process import CommandError

VARIABLE = "TORCHMILL_RUN"  # the variable that marks every process of a run
# After this time, containers are ended once more: in the first pass, the container engine may have
# been about to start one.
SECOND_PASS_SECONDS = 5.0
# The watcher is a shell, because a Python would take more memory. It becomes the reaper if its pipe
# from the run ends without a line. It ignores the signals that Slurm sends to every process of a
# job, because the run must end first.
_WAIT = 'trap "" TERM INT; read -r _ || exec "$@"'
_DISMISSAL = b"done\n"


def watch_run() -> None:
    """Start the watcher of this run. If the run is killed, it ends processes started from now on.

    The mark of the run is put into `os.environ`, from which these processes inherit it. Nothing
    happens on Windows, and without a shell nothing is watched.
    """
    if sys.platform == "win32":
        return
    run = f"{os.getpid()}-{time.time_ns()}"
    os.environ[VARIABLE] = run
    with contextlib.suppress(OSError):
        _, pipe = _start_watcher({VARIABLE: run}, (), os.environ)
        atexit.register(_dismiss, os.getpid(), pipe)


@contextlib.contextmanager
def watch_container(
    mark: Mapping[str, str], removal: Sequence[str], environ: Mapping[str, str]
) -> Iterator[None]:
    """Let a watcher end a container if this process is killed in the block.

    The watcher calls `end_marked` with `mark` and `removal`; `environ` is its environment. Raises
    OSError if there is no shell.
    """
    watcher, pipe = _start_watcher(mark, removal, without_mark(environ))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the watcher itself was killed
            os.write(pipe, _DISMISSAL)
        os.close(pipe)
        watcher.wait()


def end_marked(
    mark: Mapping[str, str], removal: Sequence[str], environ: Mapping[str, str] | None = None
) -> None:
    """End all other processes of this machine that have a variable of `mark` with its value.

    Then runs the command `removal`, which removes a container; () without a container.
    """
    if sys.platform != "win32":
        from millguard import processes

        for name, value in mark.items():
            processes.end_by_variable(name, value)
    if removal:
        with contextlib.suppress(CommandError, HostError):
            process.capture(removal, env=environ)


def _start_watcher(
    mark: Mapping[str, str], removal: Sequence[str], environ: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a watcher, which calls `end_marked` if this process is killed.

    Returns the watcher and the writing end of its pipe: a line on the pipe dismisses the watcher.
    The kernel closes the pipe when this process ends in any way. Raises OSError if there is no
    shell.
    """
    arguments = json.dumps([dict(mark), list(removal)])
    # -P: a module in the current folder must not replace one of torchmill.
    reaper = (sys.executable, "-P", "-m", "torchmill.core.reaper", arguments)
    reading_end, writing_end = os.pipe()
    try:
        watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WAIT, "sh", *reaper],
            env={**environ, "PYTHONPATH": import_path(environ)},
            stdin=reading_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # neither Ctrl-C nor `kill -9` of the run's group reaches it
        )
    except OSError:
        os.close(writing_end)
        raise
    finally:
        os.close(reading_end)
    process.WATCHERS.add(watcher.pid)
    return watcher, writing_end


def _dismiss(run_pid: int, pipe: int) -> None:
    """Dismiss the watcher at the end of the run, whose process has the number `run_pid`."""
    if os.getpid() == run_pid:  # a fork inherits the handler of atexit, and ends earlier
        with contextlib.suppress(OSError):
            os.write(pipe, _DISMISSAL)


def mark_of_run() -> dict[str, str]:
    """Return the variable that marks processes of this run; {} if nobody called `watch_run`.

    A process that another one of the run has started has the variable from there.
    """
    if VARIABLE not in os.environ:
        return {}
    return {VARIABLE: os.environ[VARIABLE]}


def without_mark(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process that the watcher must not end."""
    return {name: value for name, value in environ.items() if name != VARIABLE}


def _main() -> None:
    """Run the reaper, with the arguments that `_start_watcher` wrote."""
    mark, removal = json.loads(sys.argv[1])
    end_marked(mark, removal)
    if removal:
        time.sleep(SECOND_PASS_SECONDS)
        end_marked(mark, removal)


if __name__ == "__main__":
    _main()
