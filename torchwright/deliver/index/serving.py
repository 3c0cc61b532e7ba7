"""What `invoke serve` does: an index on this machine's own address, for a quick look."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from torchwright.deliver.index import answers, state
from torchwright.deliver.index.state import State
from torchwright.errors import ConfigError, DeliveryError, HostError
from torchwright.layout import Layout
from torchwright.model import Facts

LOOPBACK = "127.0.0.1"
PORT = 8000  # where nothing else is said, and nobody listens on it
LARGEST_PORT = 65535
PATIENCE = 60  # seconds after which a connection that says nothing is closed
HELP = {
    "folder": "the index, by default index/ beside dist/",
    "port": f"the port to listen on, by default {PORT}, or any where that is taken",
}
OPTIONS: dict[str, Any] = {"help": HELP, "auto_shortflags": False}


def serve(_: Facts, layout: Layout, folder: str = "", port: str = "") -> str:
    """Serve the index that `invoke index` wrote, to this machine alone, until Ctrl-C."""
    root = Path(folder).absolute() if folder else layout.root / "index"
    known = state.load(root)
    if known is None:
        raise DeliveryError(
            f"{root}: holds no index: write one with `invoke index`, or name it with --folder"
        )
    with listening(root, port) as server:
        said = "\n".join(greeting(root, server.server_address[1], known))
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return "\nended"
    return ""


def greeting(root: Path, port: int, known: State) -> Iterator[str]:
    """Yield where the index is served, and the lines to try: those of its newest wheel."""
    address = f"http://{LOOPBACK}:{port}"
    yield f"{root} is at {address}/ for this machine alone; Ctrl-C ends it"
    entries = sorted((kept.entry for kept in known.wheels.values()), key=lambda one: (one.name, one.version))
    for one in entries[-1:]:
        url = f"{address}/{one.variant}/" if one.variant else f"{address}/"
        yield f"  pip install --extra-index-url {url} {one.name}=={one.version}"
        yield f"  uv pip install --index {url} {one.name}=={one.version}"


def listening(root: Path, port: str) -> ThreadingHTTPServer:
    """Return a server of the index that listens, on no address but this machine's own.

    Raises ConfigError for what is no port, HostError where it is taken.
    """
    if port and not (port.isdecimal() and int(port) <= LARGEST_PORT):
        raise ConfigError(f"--port {port}: write a number up to {LARGEST_PORT}; 0 means any that is free")
    try:
        return _Server((LOOPBACK, int(port or PORT)), partial(_Handler, root))
    except OSError as error:
        if port:
            raise HostError(
                f"--port {port}: cannot be listened on ({error.strerror or error}): name another, or none"
            ) from None
        return _Server((LOOPBACK, 0), partial(_Handler, root))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def __init__(self, root: Path, *args: Any) -> None:
        self.root = root
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer with a page of the kind that is wanted, a file, or a part of it."""
        found = answers.file(self.root, self.path)
        if found is None:
            self._empty(HTTPStatus.NOT_FOUND)
        elif found.is_dir():
            self._page(found)
        else:
            self._file(found, _type(found))

    def do_HEAD(self) -> None:
        """Answer the same without a body."""
        self.do_GET()

    def log_request(self, code: int | str = "-", _: int | str = "-") -> None:
        """Write a line for each request; whatever a client sends, it stays one."""
        status = code.value if isinstance(code, HTTPStatus) else code
        said = self.headers.get("Range", "") if hasattr(self, "headers") else ""
        words = f"{self.command} {self.path} {said}".strip().encode("unicode_escape").decode("ascii")
        sys.stderr.write(f"{words} {status}\n")

    def log_error(self, *_: Any) -> None:
        """Say no more than the line of the request: that a connection has ended is no error."""

    def _page(self, folder: Path) -> None:
        path, question, query = self.path.partition("?")
        if not path.endswith("/"):
            # relative, and from the last name on: "//host" would lead to another machine
            name = path.rpartition("/")[2]
            self._empty(HTTPStatus.MOVED_PERMANENTLY, Location=f"./{name}/{question}{query}")
            return
        kind = answers.kind(self.headers.get("Accept", ""))
        if kind is None:
            self._empty(HTTPStatus.NOT_ACCEPTABLE)
        elif page := answers.within(self.root, folder / answers.KINDS[kind]):
            self._file(page, kind, Vary="Accept")
        else:
            self._empty(HTTPStatus.NOT_FOUND)

    def _file(self, path: Path, kind: str, **headers: str) -> None:
        with path.open("rb") as file:
            seen = os.fstat(file.fileno())
            tag = f'"{seen.st_size:x}-{seen.st_mtime_ns:x}-{seen.st_ino:x}"'
            fits = self.headers.get("If-Range", tag) == tag
            span = answers.part(self.headers.get("Range", "") if fits else "", seen.st_size)
            if span is None and seen.st_size:
                self._empty(
                    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, Content_Range=f"bytes */{seen.st_size}"
                )
                return
            first, last = span or (0, 0)
            whole = last - first == seen.st_size
            self.send_response(HTTPStatus.OK if whole else HTTPStatus.PARTIAL_CONTENT)
            if not whole:
                self.send_header("Content-Range", f"bytes {first}-{last - 1}/{seen.st_size}")
            told = {
                "Content-Type": kind,
                "Content-Length": str(last - first),
                "ETag": tag,
                "Accept-Ranges": "bytes",
            }
            self._end(told | headers)
            if self.command != "HEAD" and last > first:
                self.connection.sendfile(file, first, last - first)

    def _empty(self, status: HTTPStatus, **headers: str) -> None:
        self.send_response(status)
        self._end({"Content-Length": "0"} | headers)

    def _end(self, headers: dict[str, str]) -> None:
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


def _type(file: Path) -> str:
    return "text/html" if file.suffix == ".html" else "application/octet-stream"
