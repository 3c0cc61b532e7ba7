"""Guard one build: `python -m torchmill.toolchain.guard`, with orders as one line of JSON on standard input.

It says `{"record":"ready"}` when gates may come, then a line for what it sees and does. It ends when it is
told `end`; and when its standard input ends without: then whoever started it was killed, and nothing that it
guards is left running.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from torchmill.core import process
from torchmill.host.limits import LimitMeter
from torchmill.toolchain.guard import command
from torchmill.toolchain.guard.clients import listen
from torchmill.toolchain.guard.command import GATE, GuardCommand, GuardStarter
from torchmill.toolchain.guard.expectations import NeedHistory, UnitExpectations
from torchmill.toolchain.guard.jobserver import TokenPool
from torchmill.toolchain.guard.scheduler import MemoryProbe, UnitScheduler
from torchmill.toolchain.guard.server import GuardRecorder, GuardServer
from torchmill.toolchain.guard.timeline import TimelineEvent

SPARE = 32  # descriptors that are not for gates


def main() -> int:
    """Guard; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):  # Slurm tells every process of a job: the build goes first
        signal.signal(number, signal.SIG_IGN)
    try:
        superior = GuardStarter(sys.stdin.fileno())
        ordered = command.parse_command(superior.first_line())
        listening = listen(Path(ordered.folder))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"it cannot serve: {error}\n")
        return 2
    _guard(ordered, listening, superior)
    return 0


def _guard(ordered: GuardCommand, listening: socket.socket, superior: GuardStarter) -> None:
    """Guard a build to its end."""
    begun = time.monotonic()

    def clock() -> float:
        return time.monotonic() - begun

    meter = LimitMeter()
    recorder = GuardRecorder(sys.stdout.fileno(), Path(ordered.timeline), clock)
    history = NeedHistory(Path(ordered.history))
    pool = TokenPool(Path(ordered.folder))
    admission = UnitScheduler(
        UnitExpectations(history, ordered.known), pool, ordered.roots, clock, recorder.take
    )
    gauge = MemoryProbe(
        lambda used: meter.memory(used).bytes, ordered.memory, lambda: ordered.cores or meter.cores().count
    )
    server = GuardServer(listening, superior, admission, gauge, _open_files() - SPARE)
    recorder.ready()
    server.serve(history.save)
    if superior.gone:
        admission.stop()
    server.close()
    pool.close()
    Path(ordered.folder, "s").unlink(missing_ok=True)
    if (why := history.save()) is not None:
        recorder.take(TimelineEvent(clock(), "no history", "", why))
    recorder.close()
    if superior.gone:
        process.end_by_variable(GATE, ordered.folder)
        shutil.rmtree(ordered.folder, ignore_errors=True)


def _open_files() -> int:
    """Return how many descriptors there may be, after asking for as many as are given."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit below the one that it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


if __name__ == "__main__":
    sys.exit(main())
