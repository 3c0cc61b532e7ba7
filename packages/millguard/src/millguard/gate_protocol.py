"""The protocol between a gate, which starts one compiler, and the guard.

A gate connects to the socket `s` in the guard's folder and writes lines: `ask LENGTH` with the
compiler's folder and command behind it, `pid GROUP` when it has started, `end CODE PEAK KILLED`
when it has ended. The guard answers `go`, `again`, `done` or `stop`.
"""

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

LONGEST_COMMAND_BYTES = 8 * 2**20  # more than Linux lets a command have
_LONGEST_LINE = 128  # bytes
_BLOCK_BYTES = 2**18
_BACKLOG = 1024  # gates that may come at once
_LARGEST_PEAK = 2**63  # bytes that the history can hold
_PEER = struct.Struct("3i")  # a process, its user and its group, as unix(7) has them


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A compiler wants to start."""

    cwd: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnitStarted:
    """The compiler runs, as the leader of a process group."""

    group: int


@dataclass(frozen=True, slots=True)
class UnitEnded:
    """The compiler ended; `peak` is the bytes of its largest process."""

    code: int
    peak: int
    killed: bool  # for want of memory, as far as the gate sees


@dataclass(frozen=True, slots=True)
class GateGone:
    """The gate has left, or does not keep to the protocol."""


GateMessage = StartRequest | UnitStarted | UnitEnded | GateGone


class GateClient:
    """The connection to one gate."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self._received = bytearray()
        connection.setblocking(False)

    def read_messages(self) -> Iterator[GateMessage]:
        """Read the data that has arrived, and yield its messages; GateGone is the last one."""
        try:
            block = self.socket.recv(_BLOCK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        if not block:
            yield GateGone()
            return
        self._received += block
        try:
            message = self._next_message()
            while message is not None:
                yield message
                message = self._next_message()
        except (ValueError, IndexError):
            yield GateGone()

    def send(self, word: str) -> None:
        """Send a word to the gate, unless it has left."""
        with contextlib.suppress(OSError):
            self.socket.send(word.encode() + b"\n")

    def has_started(self, process: int) -> bool:
        """Tell whether a process is the gate's child.

        A gate in another namespace names it by a number that is somebody else's here.
        """
        if sys.platform != "linux":
            return True
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            return bool(psutil.Process(process).ppid() == self._peer()[0])
        return False

    def is_trusted(self) -> bool:
        """Tell whether the gate is the guard's own user's, or root's, who needs no leave.

        The folder of the socket is the user's alone; this holds even if somebody opens it up.
        """
        if sys.platform != "linux":
            return True
        try:
            user = self._peer()[1]
        except OSError:
            return False
        return user in {os.getuid(), 0}

    def _peer(self) -> tuple[int, int, int]:
        """Return the process, user and group at the other end, as the kernel knows them."""
        peer = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        process, user, group = _PEER.unpack(peer)
        return process, user, group

    def close(self) -> None:
        """End the connection; a gate that is still there goes on by itself."""
        self.socket.close()

    def _next_message(self) -> GateMessage | None:
        """Take one message off the received data; None if its end is still to come."""
        end = self._received.find(b"\n", 0, _LONGEST_LINE)
        if end < 0:
            if len(self._received) >= _LONGEST_LINE:
                raise ValueError("a line without an end")
            return None
        words = bytes(self._received[:end]).split()
        length = int(words[1]) if words[0] == b"ask" else 0
        if not 0 <= length <= LONGEST_COMMAND_BYTES:
            raise ValueError("a command of no length")
        start = end + 1
        if len(self._received) < start + length:
            return None
        content = bytes(self._received[start : start + length])
        del self._received[: start + length]
        return _parse_message(words, content)


def _parse_message(words: list[bytes], content: bytes) -> GateMessage:
    """Return the message in a line's words and the data behind it. Raises ValueError for none."""
    match words:
        case [b"ask", _]:
            cwd, *argv = os.fsdecode(content).split("\0")[:-1]
            if not argv:
                raise ValueError("a command without a program")
            return StartRequest(cwd, tuple(argv))
        # killpg(0) would mean the guard's own group, and killpg(1) everybody
        case [b"pid", group] if int(group) > 1:
            return UnitStarted(int(group))
        case [b"end", code, peak, killed] if int(peak) < _LARGEST_PEAK:
            return UnitEnded(int(code), max(0, int(peak)), killed == b"1")
    raise ValueError("no word of the protocol")


def listen(folder: Path) -> socket.socket:
    """Return a socket that gates of `folder` can reach, however long its path is.

    Raises OSError if the folder takes no socket.
    """
    serving = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # An address has room for about a hundred characters, so a short one is bound in the folder.
        with contextlib.chdir(folder):
            serving.bind("s")
        serving.listen(_BACKLOG)
        serving.setblocking(False)
    except OSError:
        serving.close()
        raise
    return serving
