"""`invoke serve`: serve an index on this machine's own address."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterator
from email.message import Message
from email.utils import formatdate, parsedate_to_datetime
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError, DeliveryError, HostError
from torchmill.core.paths import Layout
from torchmill.deliver.index import pages, scan
from torchmill.deliver.index.scan import IndexState

SIMPLE = "application/vnd.pypi.simple.v1"
KINDS = {"text/html": pages.HTML, f"{SIMPLE}+html": pages.HTML, f"{SIMPLE}+json": pages.JSON}
_LATEST = re.compile(r"(application/vnd\.pypi\.simple)\.latest(\+html|\+json)")
_RANGE = re.compile(r"bytes=(?P<first>\d*)-(?P<last>\d*)", re.ASCII)


def requested_file(root: Path, target: str) -> Path | None:
    """Return the file or folder that a request means; None where that is not in `root`, or is hidden.

    `target` is what stands in the request: "/cpu/torch/?x=1". Links that lead out of `root` lead nowhere.
    """
    path = target.partition("?")[0].partition("#")[0]
    start, *parts = path.split("/")
    names = [unquote(part) for part in parts]
    if start or not all(names[:-1]) or any(_is_trick(name) for name in names):
        return None
    return resolve_within(root, root.joinpath(*names))


def resolve_within(root: Path, path: Path) -> Path | None:
    """Return where a path leads, links followed; None where that is not in `root`, or nothing is there."""
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # nothing, a circle of links, a name that cannot be
        return None
    return found if found.is_relative_to(root.resolve()) else None


def _is_trick(name: str) -> bool:
    return name.startswith(".") or any(sign in name for sign in "/\\:\0")


def file_kind(file: Path) -> str:
    """Return the type of a file that is asked for by its name."""
    names = {name: kind for kind, name in KINDS.items() if kind != f"{SIMPLE}+html"}
    return names.get(file.name) or ("text/html" if file.suffix == ".html" else "application/octet-stream")


def preferred_kind(accept: str) -> str | None:
    """Return which of KINDS a client wants most, HTML where it does not care; None: none of them."""
    wishes = _LATEST.sub(r"\1.v1\2", accept.lower()) or "*/*"
    found = {name: _quality(name, wishes) for name in KINDS}
    best = max(found, key=lambda name: found[name])
    return best if found[best] > 0 else None


def _quality(name: str, wishes: str) -> float:
    """Return how much a kind is wished, from 0 to 1: what names it exactly counts before what names all."""
    said: dict[str, float] = {}
    for wish in wishes.split(","):
        pattern, *rest = (part.strip() for part in wish.split(";"))
        weights = [part[2:] for part in rest if part.startswith("q=")]
        try:
            said[pattern] = float(weights[0]) if weights else 1.0
        except ValueError:
            said[pattern] = 0.0
    patterns = (name, f"{name.partition('/')[0]}/*", "*/*")
    return next((said[pattern] for pattern in patterns if pattern in said), 0.0)


def requested_range(wanted: str, size: int) -> tuple[int, int] | None:
    """Return from where to where (excluded) a file of `size` bytes is wanted; None where it has no such part.

    What is no range, or several of them, means the whole file.
    """
    match = _RANGE.fullmatch(wanted.strip())
    if match is None or not (match["first"] or match["last"]):
        return 0, size
    if not match["first"]:
        first, last = max(0, size - int(match["last"])), size
    else:
        first, last = int(match["first"]), min(int(match["last"] or size) + 1, size)
    return (first, last) if first < last else None


def is_unchanged(headers: Message, tag: str, changed: float) -> bool:
    """Tell whether a client has a file already: by its ETag, else by when it changed (seconds since 1970)."""
    if known := headers.get("If-None-Match"):
        return known.strip() == "*" or tag in {one.strip().removeprefix("W/") for one in known.split(",")}
    try:
        since = parsedate_to_datetime(headers.get("If-Modified-Since", ""))
    except ValueError:  # there is none, or it is no date
        return False
    return int(changed) <= since.timestamp()


LOOPBACK = "127.0.0.1"
PORT = 8000  # where nothing else is said, and nobody listens on it
LARGEST_PORT = 65535
REQUEST_TIMEOUT_SECONDS = 60  # seconds after which a connection that says nothing is closed
SIX = 6  # of IP
TLS = b"\x16\x03"  # how a client begins that takes the address for one of https


def serve_index(_: Facts, layout: Layout, folder: str = "", port: str = "", host: str = LOOPBACK) -> str:
    """Serve the index that `invoke index` wrote, to this machine alone, until Ctrl-C."""
    root = Path(folder).absolute() if folder else layout.index
    known = scan.load_state(root)
    if known is None:
        raise DeliveryError(
            f"{root}: holds no index: write one with `invoke index`, or name it with --folder"
        )
    # who looks at the processes sees by its folder what this one serves
    with contextlib.chdir(root), create_server(root, port, host) as server:
        said = "\n".join(serve_greeting(root, host, server.server_address[1], known))
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return "\nended"
    return ""


def serve_greeting(root: Path, host: str, port: int, known: IndexState) -> Iterator[str]:
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


def create_server(root: Path, port: str, host: str = LOOPBACK) -> ThreadingHTTPServer:
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
    timeout = REQUEST_TIMEOUT_SECONDS

    def __init__(self, root: Path, *args: Any) -> None:
        self.root = root
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer with a page of the kind that is wanted, a file, or a part of it."""
        found = requested_file(self.root, self.path)
        if found is not None and found.is_dir():
            self._page(found)
        else:
            self._file(found, file_kind(found) if found else "")

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
        kind = preferred_kind(self.headers.get("Accept", ""))
        if kind is None:
            self._say(HTTPStatus.NOT_ACCEPTABLE, f"{path} is to be had as {', '.join(KINDS)}", Vary="Accept")
        else:
            self._file(resolve_within(self.root, folder / KINDS[kind]), kind, Vary="Accept")

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
        if is_unchanged(self.headers, tag, seen.st_mtime):
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self._end(headers)
            return
        fits = self.headers.get("If-Range", tag) == tag
        span = requested_range(self.headers.get("Range", "") if fits else "", seen.st_size)
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
