"""The main loop of the guard: it reads commands, serves gates, watches memory, writes records.

A gate is a small program that starts one compiler when the guard lets it (see `gate_protocol`).
"""

import contextlib
import errno
import json
import math
import os
import select
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from millguard.costs import KnownCost
from millguard.gate_protocol import GateClient, GateGone, StartRequest, UnitEnded
from millguard.scheduler import MemoryProbe, RoomReading, UnitScheduler
from millguard.strict_json import parse_object
from millguard.timeline import MOMENT_SHARE, Record, TimelineEvent, TimelineWriter

# The environment variable that holds the folder of a build's guard. Gates find the guard by it, and
# it marks the processes of the build.
GATE = "MILLGUARD_GATE"
BUFFERED_BYTES = 2**20  # for a slow reader of the records, who loses those that do not fit
FLUSH_TIMEOUT_SECONDS = 1.0  # for a slow reader at the end
WRITE_INTERVAL_SECONDS = 0.1
READY = '{"record":"ready"}\n'
SAVE_INTERVAL_SECONDS = 60.0
UNITS_SHARE = 0.04  # of one processor, that measuring every unit may cost
RETRY_SECONDS = 1.0  # after which descriptors may be free again
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BLOCK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class GuardCommand:
    """The settings for the guard of one build."""

    folder: str  # has the socket, and the files that let gates continue when the guard is gone
    timeline: str  # the file that every record is written to
    history: str  # the file with the needs of units in earlier builds
    roots: tuple[str, ...]  # folders below which a source is known by its relative path
    cores: int | None  # to keep busy; None: those of the machine, measured again and again
    memory: int | None  # bytes for all units together; None: those that the machine has left
    known: tuple[KnownCost, ...] = ()
    board: str = ""  # the folder in which builds of one user share a budget; "": not shared

    def to_line(self) -> str:
        """Return the command as one line of JSON, without its end."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_command(line: str) -> GuardCommand:
    """Return the command in a line. Raises ValueError if it has none."""
    try:
        values: dict[str, Any] = parse_object(line)
        values["known"] = tuple(KnownCost(**cost) for cost in values["known"])
        values["roots"] = tuple(values["roots"])
        return GuardCommand(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no command for the guard: {error}") from None


class GuardStarter:
    """The process that started the guard, read from a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received = b""
        self._closed = False

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._descriptor

    @property
    def asked_to_end(self) -> bool:
        """Tell whether it has sent `end`."""
        return b"end" in self._received.split(b"\n")[:-1]

    def take_refusal(self) -> bool:
        """Tell whether it has sent `refuse` since the last call: no waiting unit may start."""
        refusal = b"refuse\n" in self._received
        self._received = self._received.replace(b"refuse\n", b"")
        return refusal

    @property
    def gone(self) -> bool:
        """Tell whether it is gone without having sent `end`: it was killed."""
        return self._closed and not self.asked_to_end

    def read_first_line(self) -> str:
        """Wait for a whole line; return "" if none comes."""
        while b"\n" not in self._received:
            if self._closed:
                return ""
            self.read()
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8")

    def read(self) -> None:
        """Read the received bytes; wait if there are none."""
        block = os.read(self._descriptor, _BLOCK_BYTES)
        self._received += block
        self._closed = not block


class NonblockingPipe:
    """Write lines to a descriptor without ever waiting for a slow reader.

    Lines are written several at a time, with the first line that comes WRITE_INTERVAL_SECONDS after
    the last writing: each writing wakes the reader, which costs more than the line.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = bytearray()
        self._due = -math.inf
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, text: str) -> None:
        """Take a whole line, and write as much as possible if it is time to.

        A full buffer drops the line.
        """
        if len(self._pending) < BUFFERED_BYTES:
            self._pending += text.encode()
        now = time.monotonic()
        if now >= self._due:
            self._due = now + WRITE_INTERVAL_SECONDS
            self.flush(0.0)

    def flush(self, seconds: float = FLUSH_TIMEOUT_SECONDS) -> None:
        """Write until nothing is pending, or the time is over; 0 takes what fits at once."""
        until = time.monotonic() + seconds
        # poll takes a negative time as for ever.
        while self._pending and self._poll.poll(1000 * max(0.0, until - time.monotonic())):
            try:
                # A pipe that is ready takes PIPE_BUF bytes without blocking.
                written = os.write(self._descriptor, self._pending[: select.PIPE_BUF])
            except OSError:  # the reader is gone
                self._pending.clear()
                return
            del self._pending[:written]


class GuardRecorder:
    """Write each record to a descriptor and to a file.

    If the file cannot be written, from the start or later, only the timeline is lost, and an event
    says so. `clock` returns the seconds since the start of the build.
    """

    def __init__(self, descriptor: int, file: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pipe = NonblockingPipe(descriptor)
        self._pipe_writer = TimelineWriter(self._pipe.write)
        self._file: TextIO | None = None
        self._file_writer: TimelineWriter | None = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Buffered by lines: after a kill, the file has all records until then.
            self._file = file.open("w", encoding="utf-8", buffering=1)
            self._file_writer = TimelineWriter(self._file.write, MOMENT_SHARE)
        except OSError as error:
            self._give_up_file(error)

    def announce_ready(self) -> None:
        """Announce that gates may connect."""
        self._pipe.write(READY)
        self._pipe.flush()

    def record(self, record: Record) -> None:
        """Write a record."""
        self._pipe_writer.write(record)
        if self._file_writer is not None:
            try:
                self._file_writer.write(record)
            except OSError as error:
                self._give_up_file(error)

    def close(self) -> None:
        """Write the records that are pending, and close the file."""
        self._pipe_writer.finish()
        self._pipe.flush()
        if self._file_writer is not None:
            with contextlib.suppress(OSError):  # a full disk: the last moment is missing
                self._file_writer.finish()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _give_up_file(self, error: OSError) -> None:
        self._file_writer = None
        self._pipe_writer.write(TimelineEvent(self._clock(), "no timeline", "", str(error)))


class GuardServer:
    """Serve the gates of one build until its starter sends `end`, or is gone.

    At most `most_gates` are connected at a time; the others wait until one leaves.
    """

    def __init__(
        self,
        listening: socket.socket,
        starter: GuardStarter,
        scheduler: UnitScheduler,
        probe: MemoryProbe,
        most_gates: int,
    ) -> None:
        self._most_gates = most_gates
        self._listening = listening
        self._starter = starter
        self._scheduler = scheduler
        self._probe = probe
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, listening)
        self._selector.register(starter, selectors.EVENT_READ, starter)
        self._spare = _open_spare()
        self._listens = True
        self._retry_at = 0.0  # when to listen again after descriptors have run out
        self._accepted = 0  # gates so far
        self._connected = 0  # gates at present
        # The times of the next readings: of the machine's memory, and of every unit's.
        self._due = time.monotonic()
        self._units_due = self._due

    def serve(self, save: Callable[[], object]) -> None:
        """Serve to the end; call `save` about once a minute while memory is not short.

        It may take a second, in which the guard would not notice that memory runs short.
        """
        saved_at = time.monotonic()
        while not (self._starter.asked_to_end or self._starter.gone):
            changed = self._handle_input()
            now = time.monotonic()
            if changed or now >= self._due:
                self._measure(now)
                if now - saved_at > SAVE_INTERVAL_SECONDS and self._scheduler.calm:
                    save()
                    saved_at = now

    def _handle_input(self) -> bool:
        """Wait for input until the next measurement; return whether the policy may decide otherwise.

        Only messages of gates change what it decides from.
        """
        changed = False
        if not self._listens and time.monotonic() >= self._retry_at:
            self._listen_again()
        for key, _ in self._selector.select(max(0.0, self._due - time.monotonic())):
            if key.data is self._starter:
                self._starter.read()
                if self._starter.take_refusal():
                    self._scheduler.refuse()
            elif key.data is self._listening:
                changed = self._accept() or changed
            elif self._read_gate(key.data):
                changed = True
        return changed

    def close(self) -> None:
        """Close all connections, also those of the scheduler's gates, and accept no more."""
        self._selector.close()
        self._listening.close()
        if self._spare is not None:
            os.close(self._spare)
        self._scheduler.close()

    def _measure(self, now: float) -> None:
        """Measure the memory, apply the policy, and set when to do so again."""
        try:
            state = self._read_memory(now)
        except OSError:  # no descriptor is left for the kernel's files
            self._due = now + RETRY_SECONDS
        else:
            self._due = now + self._scheduler.apply_policy(state)

    def _read_memory(self, now: float) -> RoomReading:
        """Return the room for units, after measuring those that run. Raises OSError."""
        if now >= self._units_due:
            began = time.process_time()
            self._scheduler.measure_units()
            cpu_seconds = time.process_time() - began
            self._units_due = now + cpu_seconds / UNITS_SHARE
        # The machine last: memory that units take between the two readings is then counted as used by
        # the machine, and never as free. The probe gets the time for which this look was due, and so
        # learns how late looks are.
        return self._probe.read(now, self._due, self._scheduler.used)

    def _accept(self) -> bool:
        """Accept gates that wait for that; return whether one has asked for something already."""
        changed = False
        while self._connected < self._most_gates:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._handle_shortage()
                return changed  # no further gate, or it has left again
            client = GateClient(connection, self._accepted + 1)
            if not client.is_trusted():
                client.close()
                continue
            self._accepted += 1
            self._connected += 1
            self._selector.register(connection, selectors.EVENT_READ, client)
            self._scheduler.add_gate(client)
            # Most gates have sent their question by now.
            changed = self._read_gate(client) or changed
        self._stop_listening()  # until a gate leaves
        return changed

    def _handle_shortage(self) -> None:
        """Accept nothing for a while, because descriptors have run out.

        Gates that wait to be accepted keep the socket ready: a selector with it would return at once,
        again and again. If no gate is connected, none can leave and make room. Then those that wait
        are turned away, to go on by themselves.
        """
        if self._connected == 0:
            self._turn_gates_away()
        self._stop_listening()
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def _turn_gates_away(self) -> None:
        """End the connections of gates that wait to be accepted, by a descriptor kept for that."""
        if self._spare is not None:
            os.close(self._spare)
        with contextlib.suppress(OSError):  # none waits any more
            while True:
                self._listening.accept()[0].close()
        self._spare = _open_spare()

    def _stop_listening(self) -> None:
        """Let gates that come wait unanswered."""
        if self._listens:
            self._selector.unregister(self._listening)
            self._listens = False

    def _listen_again(self) -> None:
        """Accept gates again if there is room for one."""
        if not self._listens and self._connected < self._most_gates:
            self._selector.register(self._listening, selectors.EVENT_READ, self._listening)
            self._listens = True

    def _read_gate(self, client: GateClient) -> bool:
        """Handle the messages of a gate; return whether the policy may decide otherwise now."""
        changed = False
        for message in client.read_messages():
            match message:
                case StartRequest():
                    client.has_unit = True
                    changed = True
                case UnitEnded() | GateGone() if client.has_unit:
                    # Not if the gate leaves after that: then it was considered already.
                    client.has_unit = False
                    changed = changed or self._scheduler.has_candidates
            if not self._scheduler.handle_message(client, message):
                self._disconnect(client)
                break
        return changed

    def _disconnect(self, client: GateClient) -> None:
        self._selector.unregister(client.socket)
        client.close()
        self._connected -= 1
        self._listen_again()


def _open_spare() -> int | None:
    """Return a descriptor that can be given up for another one; None if there is none left."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
