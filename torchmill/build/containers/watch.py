"""A watchdog process that ends a container whose session was killed.

`python -m torchmill.build.containers.watch` reads one line of JSON from standard input: what to end. The
line `end` ends the watchdog; where the input ends without that, the session was killed, and the container
is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from torchmill.core import process, reaper
from torchmill.core.errors import HostError
from torchmill.core.paths import CHECKOUT
from torchmill.core.process import CommandError
from torchmill.toolchain.guard.command import GuardStarter

SECOND_LOOK_SECONDS = 5.0  # after the first: an engine may have been about to start the container


@contextlib.contextmanager
def watch_container(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str]
) -> Iterator[Callable[[], None]]:
    """Have a container watched while the context lasts; yield what is called when it has been ended.

    `mark` has the one variable that all processes of it carry on this machine, `after` removes it.
    """
    path = os.pathsep.join(filter(None, [str(CHECKOUT), environ.get("PYTHONPATH")]))
    watch = subprocess.Popen(
        [sys.executable, "-m", "torchmill.build.containers.watch"],
        env={**reaper.without_mark(environ), "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for the build, and `kill -9` of its group too
    )

    pipe: IO[str] = watch.stdin  # type: ignore[assignment] # it is a pipe

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # it was killed: then nobody watches
            pipe.write(f"{line}\n")
            pipe.flush()

    def ended() -> None:
        say("end")
        watch.wait()

    try:
        say(json.dumps({"mark": dict(mark), "after": list(after)}))
        yield ended
    finally:
        with contextlib.suppress(OSError):
            pipe.close()


def end_container(mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    """End the processes that carry a variable, and have an engine remove their container."""
    if sys.platform != "win32" and mark:
        for name, value in mark.items():
            process.end_by_variable(name, value)
    with contextlib.suppress(CommandError, HostError):
        process.capture(after, env=environ)


def main() -> int:
    """Watch; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):  # Slurm tells every process of a job: the build goes first
        signal.signal(number, signal.SIG_IGN)
    session = GuardStarter(sys.stdin.fileno())
    try:
        container = json.loads(session.read_first_line())
    except ValueError:  # killed before it could write the line
        return 2
    while not (session.gone or session.asked_to_end):
        session.read()
    if session.gone:
        end_container(container["mark"], container["after"])
        time.sleep(SECOND_LOOK_SECONDS)
        end_container(container["mark"], container["after"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
