"""What `invoke serve` does: an index on this machine's own address, for a quick look."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from torchmill.deliver.index import answers, state
from torchmill.deliver.index.state import State
from torchmill.errors import ConfigError, DeliveryError, HostError
from torchmill.layout import Layout
from torchmill.model import Facts

LOOPBACK = "127.0.0.1"
PORT = 8000  # where nothing else is said, and nobody listens on it
LARGEST_PORT = 65535
PATIENCE = 60  # seconds after which a connection that says nothing is closed
SIX = 6  # of IP
TLS = b"\x16\x03"  # how a client begins that takes the address for one of https
HELP = {
    "folder": "the index, by default index/ beside dist/",
    "port": f"the port to listen on, by default {PORT}, or any where that is taken",
    "host": f"the address to listen on, by default {LOOPBACK}: this machine alone; 0.0.0.0 is for everybody "
    "who reaches it",
}
OPTIONS: dict[str, Any] = {"help": HELP, "auto_shortflags": False}


def serve(_: Facts, layout: Layout, folder: str = "", port: str = "", host: str = LOOPBACK) -> str:
    """Serve the index that `invoke index` wrote, to this machine alone, until Ctrl-C."""
    root = Path(folder).absolute() if folder else layout.index
    known = state.load(root)
    if known is None:
        raise DeliveryError(
            f"{root}: holds no index: write one with `invoke index`, or name it with --folder"
        )
    # who looks at the processes sees by its folder what this one serves
    with contextlib.chdir(root), listening(root, port, host) as server:
        said = "\n".join(greeting(root, host, server.server_address[1], known))
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return "\nended"
    return ""


def greeting(root: Path, host: str, port: int, known: State) -> Iterator[str]:
    """Yield where the index is served and to whom, and the lines to try: those of its newest wheel."""
    listens = ipaddress.ip_address(host)
    named = f"[{host}]" if listens.version == SIX else host
    named = socket.gethostname() if listens.is_unspecified else named
    whom = "this machine alone" if listens.is_loopback else f"everybody who reaches {host}"
    address = f"http://{named}:{port}"
    yield f"{root} is at {address}/ for {whom}; Ctrl-C ends it"
    entries = sorted((kept.entry for kept in known.wheels.values()), key=lambda one: (one.name, one.version))
    for one in entries[-1:]:
        url = f"{address}/{one.variant}/" if one.variant else f"{address}/"
        yield f"  pip install --extra-index-url {url} {one.name}=={one.version}"
        yield f"  uv pip install --index {url} {one.name}=={one.version}"


def listening(root: Path, port: str, host: str = LOOPBACK) -> ThreadingHTTPServer:
    """Return a server of the index that listens, by default on no address but this machine's own.

    Raises ConfigError for what is no port or address, HostError where it cannot be listened on.
    """
    if port and not (port.isascii() and port.isdigit() and int(port) <= LARGEST_PORT):
        raise ConfigError(f"--port {port}: write a number up to {LARGEST_PORT}; 0 means any that is free")
    try:
        kind = _Six if ipaddress.ip_address(host).version == SIX else _Server
    except ValueError:
        raise ConfigError(
            f"--host {host}: write an address of this machine, as {LOOPBACK}, ::1 or 0.0.0.0"
        ) from None
    try:
        return kind((host, int(port or PORT)), partial(_Handler, root))
    except OSError as error:
        with contextlib.suppress(OSError):
            if not port:
                return kind((host, 0), partial(_Handler, root))
        raise HostError(
            f"{host}, port {port or PORT}: cannot be listened on ({error.strerror or error}): name another "
            "with --port or --host"
        ) from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # uv opens fifty connections at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Six(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def __init__(self, root: Path, *args: Any) -> None:
        self.root = root
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer with a page of the kind that is wanted, a file, or a part of it."""
        found = answers.file(self.root, self.path)
        if found is not None and found.is_dir():
            self._page(found)
        else:
            self._file(found, answers.kind_of(found) if found else "")

    def do_HEAD(self) -> None:
        """Answer the same without a body."""
        self.do_GET()

    def log_request(self, code: int | str = "-", _: int | str = "-") -> None:
        """Write a line for each request; whatever a client sends, it stays one."""
        status = code.value if isinstance(code, HTTPStatus) else code
        if self.command:
            said = f"{self.command} {self.path} {self.headers.get('Range', '')}"
        else:  # what came is no request
            tls = getattr(self, "raw_requestline", b"").startswith(TLS)
            said = "https, where http is spoken" if tls else self.requestline
        words = said.strip().encode("unicode_escape").decode("ascii")
        with contextlib.suppress(OSError):  # whoever read the log has read enough
            sys.stderr.write(f"{words} {status}\n")

    def log_error(self, *_: Any) -> None:
        """Say no more than the line of the request: that a connection has ended is no error."""

    def _page(self, folder: Path) -> None:
        path, question, query = self.path.partition("?")
        if not path.endswith("/"):
            # relative, and from the last name on: "//host" would lead to another machine
            place = f"./{path.rpartition('/')[2]}/{question}{query}"
            self._say(HTTPStatus.MOVED_PERMANENTLY, f"it is at {place}", Location=place)
            return
        kind = answers.kind(self.headers.get("Accept", ""))
        if kind is None:
            self._say(
                HTTPStatus.NOT_ACCEPTABLE, f"{path} is to be had as {', '.join(answers.KINDS)}", Vary="Accept"
            )
        else:
            self._file(answers.within(self.root, folder / answers.KINDS[kind]), kind, Vary="Accept")

    def _file(self, path: Path | None, kind: str, **headers: str) -> None:
        try:
            if path is None or not path.is_file():  # a pipe would be waited for
                raise FileNotFoundError
            file = path.open("rb")
        except OSError:  # it may have gone since it was looked for
            self._say(HTTPStatus.NOT_FOUND, f"this index has no {self.path}")
            return
        with file:
            self._content(file, os.fstat(file.fileno()), {"Content-Type": kind} | headers)

    def _content(self, file: BinaryIO, seen: os.stat_result, headers: dict[str, str]) -> None:
        tag = f'"{seen.st_size:x}-{seen.st_mtime_ns:x}-{seen.st_ino:x}"'
        headers |= {"ETag": tag, "Last-Modified": formatdate(seen.st_mtime, usegmt=True)}
        if answers.unchanged(self.headers, tag, seen.st_mtime):
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self._end(headers)
            return
        fits = self.headers.get("If-Range", tag) == tag
        span = answers.part(self.headers.get("Range", "") if fits else "", seen.st_size)
        if span is None and seen.st_size:
            size = f"bytes */{seen.st_size}"
            self._say(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                f"it has {seen.st_size} bytes",
                Content_Range=size,
            )
            return
        first, last = span or (0, 0)
        whole = last - first == seen.st_size
        self.send_response(HTTPStatus.OK if whole else HTTPStatus.PARTIAL_CONTENT)
        if not whole:
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{seen.st_size}"
        self._end(headers | {"Content-Length": str(last - first), "Accept-Ranges": "bytes"})
        if self.command != "HEAD" and last > first:
            self.connection.sendfile(file, first, last - first)

    def _say(self, status: HTTPStatus, sentence: str, **headers: str) -> None:
        """Answer with a page for people that says why there is nothing else."""
        title = f"{status.value} {status.phrase}"
        page = (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
            f"<body><h1>{title}</h1><p>{escape(sentence)}</p>\n"
            '<p><a href="/">All projects</a></p></body></html>\n'
        ).encode()
        self.send_response(status)
        self._end({"Content-Type": "text/html", "Content-Length": str(len(page))} | headers)
        if self.command != "HEAD":
            self.wfile.write(page)

    def _end(self, headers: dict[str, str]) -> None:
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
