"""A proxy for an HTTP server that fails some of the requests, drawn at random.

It stands in front of a real server, such as an index, and speaks HTTP with both sides. A request fails in one of WAYS;
all others are passed on unchanged.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.faults.connections import served

WAYS = (
    "503",  # the server answers that it is overloaded
    "429",  # the server asks to come back after a second
    "reset",  # the connection is reset before the server sees the request
    "lost answer",  # the server does what it is asked, and the connection is reset before it answers
    "late 503",  # the server does what it is asked, and the proxy answers 503
    "cut",  # the answer ends in the middle of its body
    "silence",  # nothing comes
)
RATE = 0.2  # of the requests fail
_HOP_BY_HOP = {
    "connection",
    "transfer-encoding",
    "expect",
    "keep-alive",
}  # headers of one connection


class FlakyProxy:
    """A proxy for a server on a port of this machine; `rate` of the requests fail."""

    def __init__(self, port: int, seed: str, ways: Sequence[str], silence: float) -> None:
        self.url = ""
        self.rate = 0.0
        self.requests = 0
        self.faults: Counter[str] = Counter()  # the number of failed requests, by way
        self.server_port = port
        self.silence = silence  # seconds that a silent answer takes
        self._ways = tuple(ways)
        self._chance = random.Random(seed)  # noqa: S311 - no secret
        self._lock = threading.Lock()

    def draw(self) -> str:
        """Return the way in which the next request fails, "" if it does not."""
        with self._lock:
            self.requests += 1
            if self._chance.random() >= self.rate:
                return ""
            way = self._chance.choice(self._ways)
            self.faults[way] += 1
            return way


class _Handler(BaseHTTPRequestHandler):
    proxy: FlakyProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Print nothing."""

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_PATCH(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _handle(self) -> None:
        """Pass a request on, or fail it."""
        body = self._read_body()
        way = self.proxy.draw()
        if way in {"503", "429"}:
            self._refuse(int(way))
        elif way == "silence":
            time.sleep(self.proxy.silence)
            self._reset()
        elif way == "reset":
            self._reset()
        else:
            self._pass_on(body, way)

    def _pass_on(self, body: bytes, way: str) -> None:
        """Let the server answer, and pass its answer on, unless the way is one that loses it."""
        status, headers, content = self._ask_server(body)
        if way == "lost answer":
            self._reset()
        elif way == "late 503":
            self._refuse(503)
        else:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if way == "cut" and self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2])
                self._reset()
            elif self.command != "HEAD":
                self.wfile.write(content)

    def _ask_server(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the status, the headers and the body of the server's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.server_port, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in {*_HOP_BY_HOP, "content-length"}:
                    connection.putheader(name, value)
            if body or self.command in {"POST", "PUT", "PATCH"}:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            headers = []
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    headers.append((name, value))
            return answer.status, headers, answer.read()

    def _read_body(self) -> bytes:
        """Return the body of the request."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _refuse(self, status: int) -> None:
        """Answer that the server has no time."""
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _reset(self) -> None:
        """Reset the connection: closing a socket that does not linger does so."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


@contextlib.contextmanager
def flaky(
    port: int,
    seed: str,
    ways: Sequence[str] = WAYS,
    silence: float = 0.0,
    certified: Path | None = None,
) -> Iterator[FlakyProxy]:
    """Yield a proxy for a port of this machine, which fails nothing until its `rate` is set.

    With a folder `certified`, it speaks TLS, and writes its certificate there.
    """
    proxy = FlakyProxy(port, seed, ways, silence)
    with served(type("Handler", (_Handler,), {"proxy": proxy}), certified) as proxy_port:
        scheme = "https" if certified else "http"
        proxy.url = f"{scheme}://127.0.0.1:{proxy_port}"
        yield proxy
