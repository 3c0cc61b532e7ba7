"""The protocol between a gate, which starts one compiler, and the guard.

A gate connects to the socket `s` in the guard's folder and writes lines:

- `ask LENGTH`: may the compiler start? As many bytes follow: its folder, then each word of its
  command, each ended by a zero byte.
- `pid GROUP`: the compiler has started, and leads this process group.
- `end CODE PEAK KILLED`: it has ended with this exit code. Its largest process had so many bytes.
  KILLED is 1 if the kernel seems to have killed it for want of memory, else 0.

The guard answers:

- `go`: start the compiler.
- `again`: end the compiler, if it still runs, and ask again.
- `done`: the compiler has failed; do not run it again.
- `stop`: end the compiler, and fail.
"""

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST_COMMAND_BYTES = 8 * 2**20  # more than Linux lets a command have
_LONGEST_LINE = 128  # bytes
_BLOCK_BYTES = 2**18
_BACKLOG = 1024  # gates that may come at once
_LARGEST_PEAK = 2**63  # bytes that the history can hold
# A process, its user and its group, as unix(7) has them; the last two have no sign.
_PEER = struct.Struct("iII")
_LARGEST_GROUP = 2**31  # of a process, as killpg takes it


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
    """The compiler ended."""

    code: int  # exit code; 128 and the number of the signal that ended it
    peak: int  # bytes of its largest process
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
        self.has_unit = False  # its compiler wants to start, or has started
        self._received = bytearray()
        connection.setblocking(False)

    def read_messages(self) -> Iterator[GateMessage]:
        """Read the data that has arrived, and yield the messages in it.

        After GateGone there are no more.
        """
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
        """Send a word to the gate, unless it has left.

        A gate that does not read, while tens of thousands of words wait for it, is cut off. It would
        miss this word, and wait for it for ever. Without the guard it goes on by itself, and the
        next `read_messages` says that it has gone.
        """
        content = word.encode() + b"\n"
        try:
            is_sent = self.socket.send(content) == len(content)
        except OSError:
            is_sent = False
        if not is_sent:
            with contextlib.suppress(OSError):  # it has left
                self.socket.shutdown(socket.SHUT_RDWR)

    def started_group(self, process: int) -> int | None:
        """Return the process group that the gate's compiler leads; None if it cannot be told.

        `process` is the number that the gate has sent. A gate in a sandbox with a namespace of
        processes sends a number that belongs to another process here, which must not be paused or
        killed. Then the group is that of the gate's only child.
        """
        if sys.platform != "linux":
            return process
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended
            gate = self._peer()[0]  # 0 for a process that this namespace does not have
            if gate > 0 and _parent(process) == gate:
                return process
            (child,) = map(int, Path(f"/proc/{gate}/task/{gate}/children").read_text().split())
            if os.getpgid(child) == child:
                return child
        return None

    def is_trusted(self) -> bool:
        """Tell whether the gate runs as the guard's own user, or as root, who may do all anyway.

        The socket's folder is closed to other users. This check holds even if somebody opens it.
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
            raise ValueError("a command length out of range")
        start = end + 1
        if len(self._received) < start + length:
            return None
        content = bytes(self._received[start : start + length])
        del self._received[: start + length]
        return _parse_message(words, content)


def _parse_message(words: list[bytes], content: bytes) -> GateMessage:
    """Return the message in a line's words and the data behind it. Raises ValueError if it is none."""
    match words:
        case [b"ask", _]:
            cwd, *argv = os.fsdecode(content).split("\0")
            if len(argv) <= 1 or argv.pop():
                raise ValueError("a command without a program, or without an end")
            return StartRequest(cwd, tuple(argv))
        # killpg(0) would mean the guard's own group, and killpg(1) everybody
        case [b"pid", group] if 1 < int(group) < _LARGEST_GROUP:
            return UnitStarted(int(group))
        case [b"end", code, peak, killed] if int(peak) < _LARGEST_PEAK:
            return UnitEnded(int(code), max(0, int(peak)), killed == b"1")
    raise ValueError("not a message of the protocol")


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


def _parent(process: int) -> int:
    """Return the parent of a process; 0 if there is no such process, or it has no parent here.

    Raises OSError, IndexError or ValueError if the process ends just now.
    """
    try:
        status = Path(f"/proc/{process}/stat").read_bytes()
    except FileNotFoundError:
        return 0
    # The name of the program, in parentheses, may hold blanks and parentheses itself.
    return int(status.rpartition(b")")[2].split()[1])
