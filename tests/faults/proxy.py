"""A TCP proxy, and a replacement for git's ssh, that break a connection in a chosen way at a chosen byte.

The ways: "cut" resets the connection, as a router does that forgets it; "close" ends it properly, as a server does that
ends too early; "stall" keeps it open and silent; "drip" passes two bytes a second; "flip" changes a bit of one byte;
"garbage" replaces everything from the byte on. "" breaks nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

WAYS = ("cut", "close", "stall", "drip", "flip", "garbage")
DRIP_SECONDS = 0.5  # between two bytes
_CHUNK_BYTES = 1 << 14


@dataclass(frozen=True)
class Fault:
    """What happens to the bytes of one direction of a connection, from byte `at` on."""

    way: str  # of WAYS, or ""
    at: int
    upward: bool = False  # from client to server, else from server to client
    connection: int = 0  # number of the first connection that breaks; all later ones break too

    def __str__(self) -> str:
        """Return it in words, for the list of failures."""
        direction = "up" if self.upward else "down"
        return f"{self.way or 'no fault'} at byte {self.at} {direction}, {self.connection}"


NO_FAULT = Fault("", 0)


class _Stream:
    """One direction of a connection: bytes pass unchanged until the fault, if there is one."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.passed = 0  # bytes so far

    def pass_on(self, data: bytes) -> tuple[bytes, str]:
        """Return the bytes that pass, and the way in which the connection then breaks, "" if it does not."""
        start = self.passed
        self.passed += len(data)
        if self.fault is None or not self.fault.way or self.passed <= self.fault.at:
            return data, ""
        position = max(self.fault.at - start, 0)  # of the fault in `data`
        if self.fault.way == "flip":
            if start > self.fault.at:  # only one byte is changed, and it has passed
                return data, ""
            flipped = bytes([data[position] ^ 0x20])
            return data[:position] + flipped + data[position + 1 :], ""
        if self.fault.way == "garbage":
            return data[:position] + b"\0\xff" * ((len(data) - position) // 2), ""
        return data[:position], self.fault.way


class Proxy:
    """Passes connections on to a port of this machine, and breaks them by a fault that can be changed."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.fault = NO_FAULT
        self.connections = 0  # since the fault was set
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def begin(self, fault: Fault) -> None:
        """Break connections by this fault from now on, and end those that the last one keeps open."""
        self.fault, self.connections = fault, 0

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                fault = self.fault if self.connections >= self.fault.connection else None
                self.connections += 1
                threading.Thread(target=self._join, args=(client, fault), daemon=True).start()

    def _join(self, client: socket.socket, fault: Fault | None) -> None:
        """Connect a client with the server, and pass bytes in both directions until both end."""
        address = ("127.0.0.1", self._server_port)
        # OSError: the server has already ended.
        with client, contextlib.suppress(OSError), socket.create_connection(address) as server:
            up, down = _Stream(None), _Stream(None)
            if fault is not None:
                (up if fault.upward else down).fault = fault
            directions = ((client, server, up, fault), (server, client, down, fault))
            pumps = []
            for direction in directions:
                pumps.append(threading.Thread(target=self._pump, args=direction, daemon=True))
            for pump in pumps:
                pump.start()
            for pump in pumps:
                pump.join()

    def _pump(
        self, source: socket.socket, target: socket.socket, stream: _Stream, fault: Fault | None
    ) -> None:
        """Pass bytes on from one socket to the other until the end or the fault."""
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                passed, way = stream.pass_on(data)
                target.sendall(passed)
                if way:
                    self._break(way, source, target, data[len(passed) :], fault)
                    return
            target.shutdown(socket.SHUT_WR)

    def _break(
        self,
        way: str,
        source: socket.socket,
        target: socket.socket,
        rest: bytes,
        fault: Fault | None,
    ) -> None:
        """Break a connection; `rest` are the bytes after the fault. Stall and drip last until the next fault."""
        if way == "cut":
            for end in (source, target):  # closing a socket that does not linger resets it
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif way == "close":
            target.shutdown(socket.SHUT_WR)
        elif way == "drip":
            for byte in rest:
                if self.fault is not fault:
                    break
                target.sendall(bytes([byte]))
                time.sleep(DRIP_SECONDS)
        while way in {"stall", "drip"} and self.fault is fault:
            time.sleep(0.1)
        for end in (source, target):  # which ends the other direction, too
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    """Yield a proxy for a port of this machine."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.begin(NO_FAULT)
        proxy.close()


def main() -> int:
    """Run the command of `ssh HOST COMMAND` on this machine, with the fault in TORCHMILL_FAULT (WAY:BYTE).

    The fault breaks the command's output. Returns the exit code: ssh's 255 for a connection that was cut or closed.
    """
    way, _, at = os.environ.get("TORCHMILL_FAULT", ":0").partition(":")
    server = subprocess.Popen(["sh", "-c", sys.argv[-1]], stdout=subprocess.PIPE)
    stream = _Stream(Fault(way, int(at)))
    output = server.stdout.fileno() if server.stdout else 0
    while data := os.read(output, _CHUNK_BYTES):
        passed, broken_way = stream.pass_on(data)
        os.write(1, passed)
        if broken_way in {"cut", "close"}:
            server.kill()
            return 255
        if broken_way == "drip":
            for byte in data[len(passed) :]:
                os.write(1, bytes([byte]))
                time.sleep(DRIP_SECONDS)
        if broken_way == "stall":
            time.sleep(600)  # longer than torchmill waits
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
