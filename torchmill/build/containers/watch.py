"""A watchdog process that ends a container whose session was killed.

`python -m torchmill.build.containers.watch`.

Its orders are one line of JSON on standard input. It goes when it is told `end`; where the input ends
without that, whoever started the container was killed, and cannot end it any more.
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

from torchmill.core import process
from torchmill.core.errors import HostError
from torchmill.core.paths import CHECKOUT
from torchmill.core.process import CommandError
from torchmill.toolchain.guard.command import GuardStarter

LATER = 5.0  # seconds until it looks again: an engine may have been about to start the container


@contextlib.contextmanager
def watch_container(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str]
) -> Iterator[Callable[[], None]]:
    """Have a container watched while the context lasts; yield what is called when it has been ended.

    `mark` has the one variable that all processes of it carry on this machine, `after` removes it.
    """
    watch = subprocess.Popen(
        [sys.executable, "-m", "torchmill.build.containers.watch"],
        env={**environ, "PYTHONPATH": _path(environ)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for the build, and `kill -9` of its group too
    )

    def ended() -> None:
        _say(watch, "end")
        watch.wait()

    try:
        _say(watch, json.dumps({"mark": dict(mark), "after": list(after)}))
        yield ended
    finally:
        if watch.stdin is not None:
            with contextlib.suppress(OSError):
                watch.stdin.close()


def end_container(
    mark: Mapping[str, str], after: Sequence[str], environ: Mapping[str, str] | None = None
) -> None:
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
    superior = GuardStarter(sys.stdin.fileno())
    try:
        orders = json.loads(superior.read_first_line())
    except ValueError:  # killed before it could say what
        return 2
    while not (superior.gone or superior.asked_to_end):
        superior.read()
    if superior.gone:
        end_container(orders["mark"], orders["after"])
        time.sleep(LATER)
        end_container(orders["mark"], orders["after"])
    return 0


def _say(watch: subprocess.Popen[str], line: str) -> None:
    with contextlib.suppress(OSError):  # it is gone: then nobody watches
        if watch.stdin is not None:
            watch.stdin.write(line + "\n")
            watch.stdin.flush()


def _path(environ: Mapping[str, str]) -> str:
    checkout = str(CHECKOUT)
    return os.pathsep.join(filter(None, [checkout, environ.get("PYTHONPATH")]))


if __name__ == "__main__":
    sys.exit(main())
