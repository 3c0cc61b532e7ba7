"""Guard one build: `python -m millguard.service`, whose command is a line of JSON on stdin.

It writes `{"record":"ready"}` when gates may connect, then a line for each record. It ends when it
reads `end`. If its standard input ends without that, the process that started it was killed: then
it also ends all processes of the build.
"""

import contextlib
import math
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from millguard import processes
from millguard.expectations import NeedHistory, UnitExpectations
from millguard.gate_protocol import listen
from millguard.jobserver import TokenPool
from millguard.limits import LimitMeter, process_limit
from millguard.scheduler import MemoryProbe, UnitScheduler
from millguard.server import (
    GATE,
    GuardCommand,
    GuardRecorder,
    GuardServer,
    GuardStarter,
    parse_command,
)
from millguard.shared_board import SharedBoard
from millguard.timeline import TimelineEvent

CORES_SECONDS = 1.0  # between two looks at how many processors there are, which rarely change
SPARE_DESCRIPTORS = 32  # for files, pipes and /proc; the rest is for connections of gates


def main() -> int:
    """Guard a build; return the exit code."""
    # Slurm sends signals to every process of a job: the build must end first.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        starter = GuardStarter(sys.stdin.fileno())
        command = parse_command(starter.read_first_line())
        listening = listen(Path(command.folder))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"it cannot serve: {error}\n")
        return 2
    _guard(command, listening, starter)
    return 0


def _guard(command: GuardCommand, listening: socket.socket, starter: GuardStarter) -> None:
    begun = time.monotonic()

    def clock() -> float:
        return time.monotonic() - begun

    folder = Path(command.folder)
    meter = LimitMeter()
    recorder = GuardRecorder(sys.stdout.fileno(), Path(command.timeline), clock)
    history = NeedHistory(Path(command.history))
    expectations = UnitExpectations(history, command.known)
    pool = TokenPool(folder)
    board = _open_board(command, clock, recorder)
    scheduler = UnitScheduler(
        expectations, pool, command.roots, clock, recorder.record, board=board
    )
    probe = MemoryProbe(
        meter.memory,
        command.memory,
        _now_and_then(lambda: command.cores or meter.cores().count),
    )
    most_gates = max(1, _raise_descriptor_limit() - SPARE_DESCRIPTORS)
    server = GuardServer(listening, starter, scheduler, probe, most_gates)
    recorder.announce_ready()
    server.serve(history.save)
    if starter.gone:
        scheduler.stop()
    server.close()
    pool.close()
    if board is not None:
        board.close()
    Path(folder, "s").unlink(missing_ok=True)
    problem = history.save()
    if problem is not None:
        recorder.record(TimelineEvent(clock(), "no history", "", problem))
    recorder.close()
    if starter.gone:
        # The starter, which does this otherwise, is gone.
        processes.end_by_variable(GATE, command.folder)
        shutil.rmtree(folder, ignore_errors=True)


def _now_and_then(measure: Callable[[], float]) -> Callable[[], float]:
    """Return a function that measures every CORES_SECONDS, and returns the last figure meanwhile."""
    measured = 0.0
    due = -math.inf

    def read() -> float:
        nonlocal measured, due
        now = time.monotonic()
        if now >= due:
            measured = measure()
            due = now + CORES_SECONDS
        return measured

    return read


def _open_board(
    command: GuardCommand, clock: Callable[[], float], recorder: GuardRecorder
) -> SharedBoard | None:
    """Return the board of this user's builds; None if there can be none, with an event for the user."""
    if not command.board:
        return None
    try:
        return SharedBoard(Path(command.board))
    except OSError as error:
        recorder.record(TimelineEvent(clock(), "no board", "", str(error)))
        return None


def _raise_descriptor_limit() -> int:
    """Return how many descriptors this process may have, after raising the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit below the one that it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return process_limit("RLIMIT_NOFILE") or sys.maxsize


if __name__ == "__main__":
    sys.exit(main())
