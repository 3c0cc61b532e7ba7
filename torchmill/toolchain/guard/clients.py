"""The protocol between a gate and the guard.

A gate says `ask N` and N bytes (the working directory and each argument, ended by zeros), `pid GROUP` when
its compiler runs, `end CODE PEAK KILLED` when that has ended. The guard answers `go`, `again` (end it, and
ask again), `done` (believe its failure), `stop` (end it, and fail).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST_COMMAND_BYTES = 8 * 2**20  # bytes of a command: more than Linux lets one have
_LINE = 128  # bytes of a line, at most
_BLOCK = 2**18
_PEER = struct.Struct("3i")  # a process, its user and its group


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A compiler wants to start."""

    cwd: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnitStarted:
    """It runs, as the leader of a process group."""

    group: int


@dataclass(frozen=True, slots=True)
class UnitEnded:
    """It ended; `peak` in bytes is its largest process's."""

    code: int
    peak: int
    killed: bool  # for want of memory, as far as the gate sees


@dataclass(frozen=True, slots=True)
class GateGone:
    """The gate has left, or speaks another language."""


GateMessage = StartRequest | UnitStarted | UnitEnded | GateGone


class GateClient:
    """The connection to one gate."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self._received = bytearray()
        connection.setblocking(False)

    def read_messages(self) -> Iterator[GateMessage]:
        """Read what has arrived, and yield its messages; nothing comes after GateGone."""
        try:
            block = self.socket.recv(_BLOCK)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        if not block:
            yield GateGone()
            return
        self._received += block
        try:
            while (message := self._next_message()) is not None:
                yield message
        except (ValueError, IndexError):
            yield GateGone()

    def send(self, word: str) -> None:
        """Send a word to the gate, unless it has left."""
        with contextlib.suppress(OSError):
            self.socket.send(word.encode() + b"\n")

    def has_started(self, process: int) -> bool:
        """Tell whether a process is the gate's child: in another namespace that number is somebody else's."""
        if sys.platform != "linux":
            return True
        try:
            peer = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            status = Path(f"/proc/{process}/stat").read_bytes()
        except OSError:  # it has ended
            return False
        return int(status.rpartition(b")")[2].split()[1]) == int(_PEER.unpack(peer)[0])

    def close(self) -> None:
        """End the connection: a gate that is still there goes on by itself."""
        self.socket.close()

    def _next_message(self) -> GateMessage | None:
        """Take one message off what was received; None where its end is still to come."""
        end = self._received.find(b"\n", 0, _LINE)
        if end < 0:
            if len(self._received) >= _LINE:
                raise ValueError("a line without an end")
            return None
        words = bytes(self._received[:end]).split()
        length = int(words[1]) if words[0] == b"ask" else 0
        if not 0 <= length <= LONGEST_COMMAND_BYTES:
            raise ValueError("a command of no length")
        if len(self._received) < end + 1 + length:
            return None
        rest = bytes(self._received[end + 1 : end + 1 + length])
        del self._received[: end + 1 + length]
        return _parse_message(words, rest)


def _parse_message(words: list[bytes], rest: bytes) -> GateMessage:
    match words:
        case [b"ask", _]:
            cwd, *argv = os.fsdecode(rest).split("\0")[:-1]
            if not argv:
                raise ValueError("a command without a program")
            return StartRequest(cwd, tuple(argv))
        case [b"pid", group] if int(group) > 1:  # 0 and 1 would mean the guard itself, and everybody
            return UnitStarted(int(group))
        case [b"end", code, peak, killed]:
            return UnitEnded(int(code), max(0, int(peak)), killed == b"1")
    raise ValueError("no word of the protocol")


def listen(folder: Path) -> socket.socket:
    """Return a socket that gates of `folder` can reach, however long its path is.

    Raise OSError where the folder takes no socket.
    """
    serving = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.chdir(folder):  # an address holds about a hundred characters: bind a short one
            serving.bind("s")
        serving.listen(1024)
        serving.setblocking(False)
    except OSError:
        serving.close()
        raise
    return serving
