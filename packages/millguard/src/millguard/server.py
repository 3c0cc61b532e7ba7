"""The guard's main loop: its command, gates, memory, records."""

import contextlib
import json
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
from millguard.gate_protocol import GateClient
from millguard.scheduler import MemoryProbe, UnitScheduler
from millguard.strict_json import parse_object
from millguard.timeline import MOMENT_SHARE, Record, TimelineEvent, TimelineWriter

GATE = "MILLGUARD_GATE"  # names the folder of a build's guard to its gates, and marks its processes
BUFFERED_BYTES = 2**20  # bytes for a reader that is late; what comes after them is lost to it
FLUSH_TIMEOUT_SECONDS = 1.0  # seconds that it gets for the last of them
READY = '{"record":"ready"}\n'
SAVE_INTERVAL_SECONDS = 60.0  # seconds
UNITS_SHARE = 0.04  # of a processor that looking at every single unit may cost


@dataclass(frozen=True, slots=True)
class GuardCommand:
    """How one build is guarded."""

    folder: str  # that holds the socket, and the files of those that go on without the guard
    timeline: str  # the file that every record is written to
    history: str  # the file with what was learned of units
    roots: tuple[str, ...]  # folders below which a source is known by its path
    cores: int | None  # to keep busy; None: as many as the machine has, read again and again
    memory: int | None  # bytes that all units together may have; None: what the machine has left
    known: tuple[KnownCost, ...] = ()

    def to_line(self) -> str:
        """Return the command as one line of JSON, without its end."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_command(line: str) -> GuardCommand:
    """Return the command in a line. Raise ValueError where it holds none."""
    try:
        values: dict[str, Any] = parse_object(line)
        known = tuple(KnownCost(**one) for one in values.pop("known"))
        return GuardCommand(**{**values, "roots": tuple(values["roots"]), "known": known})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no command for the guard: {error}") from None


class GuardStarter:
    """The process that started the guard, read at a descriptor."""

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
        return b"end\n" in self._received

    def take_refusal(self) -> bool:
        """Tell whether it has sent `refuse` since this was asked last: nothing that waits may start."""
        refusal = b"refuse\n" in self._received
        self._received = self._received.replace(b"refuse\n", b"")
        return refusal

    @property
    def gone(self) -> bool:
        """Tell whether it is gone without having sent `end`: it was killed."""
        return self._closed and not self.asked_to_end

    def read_first_line(self) -> str:
        """Wait for a line; "" where none comes."""
        while b"\n" not in self._received and not self._closed:
            self.read()
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8")

    def read(self) -> None:
        """Read what it has sent; waits where that is nothing."""
        block = os.read(self._descriptor, 65536)
        self._received += block
        self._closed = not block


class NonblockingPipe:
    """Write lines to a descriptor: as much as it takes at once, and the rest the next time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = bytearray()

    def write(self, text: str) -> None:
        """Take a whole line, and write what can be written now."""
        if len(self._pending) < BUFFERED_BYTES:
            self._pending += text.encode()
        self._write(0.0)

    def close(self) -> None:
        """Give a late reader a moment."""
        until = time.monotonic() + FLUSH_TIMEOUT_SECONDS
        while self._pending and time.monotonic() < until:
            self._write(until - time.monotonic())

    def _write(self, seconds: float) -> None:
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        while self._pending and ready.poll(1000 * seconds):
            try:  # a pipe that is ready takes this much without waiting
                written = os.write(self._descriptor, self._pending[: select.PIPE_BUF])
            except OSError:  # the reader is gone
                self._pending.clear()
                return
            del self._pending[:written]


class GuardRecorder:
    """Write each record to a descriptor and to a file.

    A file that cannot be written, or no longer, costs the timeline and nothing else; an event says so.
    `clock` gives the seconds since the start of the build.
    """

    def __init__(self, descriptor: int, file: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._out = NonblockingPipe(descriptor)
        self._told = TimelineWriter(self._out.write)
        self._file: TextIO | None = None
        self._kept: TimelineWriter | None = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # by lines: whoever is killed leaves what was seen until then
            self._file = file.open("w", encoding="utf-8", buffering=1)
            self._kept = TimelineWriter(self._file.write, MOMENT_SHARE)
        except OSError as error:
            self._give_up_file(error)

    def announce_ready(self) -> None:
        """Say that gates may come."""
        self._out.write(READY)

    def record(self, record: Record) -> None:
        """Write a record."""
        self._told.write(record)
        if self._kept is not None:
            try:
                self._kept.write(record)
            except OSError as error:
                self._give_up_file(error)

    def close(self) -> None:
        """Write what was held back."""
        self._told.finish()
        self._out.close()
        with contextlib.suppress(OSError):
            if self._kept is not None:
                self._kept.finish()
            if self._file is not None:
                self._file.close()

    def _give_up_file(self, error: OSError) -> None:
        self._kept = None
        self._told.write(TimelineEvent(self._clock(), "no timeline", "", str(error)))


class GuardServer:
    """Serve the gates of one build until its starter sends `end`, or is gone.

    Of gates that come all at once `most` are let in, and the others as those leave.
    """

    def __init__(
        self,
        listening: socket.socket,
        starter: GuardStarter,
        scheduler: UnitScheduler,
        probe: MemoryProbe,
        most: int,
    ) -> None:
        self._most = most
        self._listening, self._starter = listening, starter
        self._scheduler, self._probe = scheduler, probe
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, listening)
        self._selector.register(starter, selectors.EVENT_READ, starter)
        self._count = 0  # of all gates that came
        self._there = 0  # of those that are there
        self._units_due = self._due = time.monotonic()  # when to look again

    def serve(self, rarely: Callable[[], object]) -> None:
        """Serve to the end; do `rarely` what takes a moment, now and then while the memory is not short."""
        done = time.monotonic()
        while not (self._starter.asked_to_end or self._starter.gone):
            changed = False
            for key, _ in self._selector.select(max(0.0, self._due - time.monotonic())):
                if key.data is self._starter:
                    self._starter.read()
                    if self._starter.take_refusal():
                        self._scheduler.refuse()
                elif key.data is self._listening:
                    self._accept()
                else:
                    changed |= self._read_gate(key.data)
            now = time.monotonic()
            if changed or now >= self._due:
                self._look(now)
                if now - done > SAVE_INTERVAL_SECONDS and self._scheduler.calm:
                    rarely()
                    done = now

    def close(self) -> None:
        """End the connections, and take no more."""
        self._selector.close()
        self._listening.close()
        self._scheduler.close()

    def _look(self, now: float) -> None:
        """Look at the memory, do what follows, and set when to look again."""
        if now >= self._units_due:
            worked = time.process_time()
            self._scheduler.measure_units()
            self._units_due = now + (time.process_time() - worked) / UNITS_SHARE
        # after the units: what they take meanwhile is counted twice rather than not at all
        self._due = now + self._scheduler.apply_policy(
            self._probe.read(now, self._due, self._scheduler.used)
        )

    def _accept(self) -> None:
        while self._there < self._most:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # nobody else came, or left again
                return
            self._count += 1
            self._there += 1
            client = GateClient(connection, self._count)
            self._selector.register(connection, selectors.EVENT_READ, client)
            self._scheduler.add_gate(client)
        self._selector.unregister(self._listening)

    def _read_gate(self, client: GateClient) -> bool:
        """Handle the messages of a gate; return whether there were any."""
        changed = False
        for message in client.read_messages():
            changed = True
            if not self._scheduler.handle_message(client, message):
                self._selector.unregister(client.socket)
                client.close()
                if self._there == self._most:
                    self._selector.register(self._listening, selectors.EVENT_READ, self._listening)
                self._there -= 1
                break
        return changed
