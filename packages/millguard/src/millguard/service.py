"""Guard one build: `python -m millguard.service`, its command is a line of JSON on stdin.

It writes `{"record":"ready"}` when gates may come, then a line for what it sees and does. It ends when it
reads `end`; and when its standard input ends without: then whoever started it was killed, and nothing that it
guards is left running.
"""

import contextlib
import resource
import shutil
import signal
import socket
import sys
import time
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
from millguard.timeline import TimelineEvent

SPARE = 32  # descriptors that are not for gates


def main() -> int:
    """Guard; return the exit code."""
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # Slurm tells every process of a job: the build goes first
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

    meter = LimitMeter()
    recorder = GuardRecorder(sys.stdout.fileno(), Path(command.timeline), clock)
    history = NeedHistory(Path(command.history))
    pool = TokenPool(Path(command.folder))
    scheduler = UnitScheduler(
        UnitExpectations(history, command.known), pool, command.roots, clock, recorder.record
    )
    probe = MemoryProbe(
        lambda used: meter.memory(used).available,
        command.memory,
        lambda: command.cores or meter.cores().count,
    )
    server = GuardServer(listening, starter, scheduler, probe, max(1, _open_files() - SPARE))
    recorder.announce_ready()
    server.serve(history.save)
    if starter.gone:
        scheduler.stop()
    server.close()
    pool.close()
    Path(command.folder, "s").unlink(missing_ok=True)
    if (why := history.save()) is not None:
        recorder.record(TimelineEvent(clock(), "no history", "", why))
    recorder.close()
    if starter.gone:
        processes.end_by_variable(GATE, command.folder)
        shutil.rmtree(command.folder, ignore_errors=True)


def _open_files() -> int:
    """Return how many descriptors this process may have, after asking for as many as possible."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit below the one that it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return process_limit("RLIMIT_NOFILE") or sys.maxsize


if __name__ == "__main__":
    sys.exit(main())
