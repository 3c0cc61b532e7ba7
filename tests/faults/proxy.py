"""A TCP proxy, and a pipe for git's ssh, that break a connection in a chosen way at a chosen byte."""

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
    """What happens to the bytes that come from one side, from byte `at` of the first connections on."""

    way: str  # of WAYS; "": nothing
    at: int
    upward: bool = False  # to the server; else to the client
    connection: int = 0  # which connection it is that breaks; later ones break too

    def __str__(self) -> str:
        """Return it in words, for the list of failures."""
        return f"{self.way or 'no fault'} at byte {self.at} {'up' if self.upward else 'down'}, {self.connection}"


class _Stream:
    """One direction of a connection: what comes in goes out, until the fault."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault, self.seen = fault, 0

    def pass_on(self, data: bytes) -> tuple[bytes, str]:
        """Return what goes on of `data`, and what happens then: a way, or "" where all goes on."""
        start, self.seen = self.seen, self.seen + len(data)
        if self.fault is None or not self.fault.way or self.seen <= self.fault.at:
            return data, ""
        place = max(self.fault.at - start, 0)
        if self.fault.way == "flip":
            changed = (
                data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :]
                if start <= self.fault.at
                else data
            )
            return changed, ""
        if self.fault.way == "garbage":
            return data[:place] + b"\0\xff" * ((len(data) - place) // 2), ""
        return data[:place], self.fault.way


class Proxy:
    """Passes connections on to a port of this machine; `fault` may be changed between two uses."""

    def __init__(self, port: int) -> None:
        self._to, self.fault, self.connections = port, Fault("", 0), 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def begin(self, fault: Fault) -> None:
        """Let connections break in this way from now on."""
        self.fault, self.connections = fault, 0

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                number, self.connections = self.connections, self.connections + 1
                fault = self.fault if number >= self.fault.connection else None
                threading.Thread(target=self._join, args=(client, fault), daemon=True).start()

    def _join(self, client: socket.socket, fault: Fault | None) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            self._connect() as server,
        ):  # it may have ended by now
            pumps = [
                threading.Thread(
                    target=self._pump,
                    args=(
                        source,
                        target,
                        _Stream(fault if fault and fault.upward == upward else None),
                        fault,
                    ),
                    daemon=True,
                )
                for source, target, upward in ((client, server, True), (server, client, False))
            ]
            for pump in pumps:
                pump.start()
            for pump in pumps:
                pump.join()

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._to))

    def _pump(
        self, source: socket.socket, target: socket.socket, stream: _Stream, fault: Fault | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                onward, ending = stream.pass_on(data)
                target.sendall(onward)
                if ending:
                    self._end(ending, source, target, data[len(onward) :], fault)
                    return
            target.shutdown(socket.SHUT_WR)

    def _end(
        self,
        way: str,
        source: socket.socket,
        target: socket.socket,
        rest: bytes,
        fault: Fault | None,
    ) -> None:
        if way == "cut":  # as a router that forgets the connection
            for one in (source, target):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif way == "close":  # as a server that ends too early
            target.shutdown(socket.SHUT_WR)
        for byte in rest if way == "drip" else b"":
            if self.fault is not fault:
                break
            target.sendall(bytes([byte]))
            time.sleep(DRIP_SECONDS)
        while way in {"stall", "drip"} and self.fault is fault:
            time.sleep(0.1)
        for one in (source, target):  # ends the other direction as well
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    """Give a proxy of a port of this machine."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.begin(Fault("", 0))
        proxy.close()


def main() -> int:
    """Run the command of `ssh HOST COMMAND` here, through the fault that TORCHMILL_FAULT names: WAY:BYTE."""
    way, _, at = os.environ.get("TORCHMILL_FAULT", ":0").partition(":")
    server = subprocess.Popen(["sh", "-c", sys.argv[-1]], stdout=subprocess.PIPE)
    stream = _Stream(Fault(way, int(at)))
    output = server.stdout.fileno() if server.stdout else 0
    while data := os.read(output, _CHUNK_BYTES):
        onward, ending = stream.pass_on(data)
        os.write(1, onward)
        if ending in {"cut", "close"}:
            server.kill()
            return 255
        for byte in data[len(onward) :] if ending == "drip" else b"":
            os.write(1, bytes([byte]))
            time.sleep(DRIP_SECONDS)
        if ending == "stall":
            time.sleep(600)
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
