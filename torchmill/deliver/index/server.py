"""`invoke serve`: serve an index on this machine's own address."""

import contextlib
import ipaddress
import re
import socket
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError, DeliveryError, HostError
from torchmill.core.paths import Layout
from torchmill.deliver.index import pages
from torchmill.deliver.index.folder import IndexState, load_state

JSON_TYPE = "application/vnd.pypi.simple.v1+json"  # PEP 691
KINDS = {".html": "text/html", ".v1_json": JSON_TYPE, "": "application/octet-stream"}
_WANTS_JSON = re.compile(r"application/vnd\.pypi\.simple\.(v1|latest)\+json(?!\s*;\s*q=0(\.0*)?\s*(,|$))")

LOOPBACK = "127.0.0.1"
PORT = 8000  # unless --port names another, or somebody listens on it
LARGEST_PORT = 65535
REQUEST_TIMEOUT_SECONDS = 60  # after which a silent connection is closed


def serve_index(_: Facts, layout: Layout, folder: str = "", port: str = "", host: str = LOOPBACK) -> str:
    """Serve the index that `invoke index` wrote, to this machine alone, until Ctrl-C."""
    root = Path(folder).absolute() if folder else layout.index
    known = load_state(root)
    if known is None:
        raise DeliveryError(
            f"{root} holds no index: write one with `invoke index`, or name another with --folder", code="no-index"
        )
    # who looks at the processes sees by its folder what this one serves
    with contextlib.chdir(root), create_server(root, port, host) as server:
        greeting = "\n".join(serve_greeting(root, host, server.server_address[1], known))
        sys.stdout.write(f"{greeting}\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return "\nended"
    return ""


def serve_greeting(root: Path, host: str, port: int, known: IndexState) -> Iterator[str]:
    """Yield where the index is served and to whom, and the lines to try: those of its newest wheel."""
    listens = ipaddress.ip_address(host)
    named = f"[{host}]" if ":" in host else host
    named = socket.gethostname() if listens.is_unspecified else named
    whom = "this machine alone" if listens.is_loopback else f"everybody who reaches {host}"
    address = f"http://{named}:{port}"
    yield f"{root} is at {address}/ for {whom}; Ctrl-C ends it"
    entries = sorted((kept.entry for kept in known.wheels.values()), key=lambda one: (one.name, one.version))
    for one in entries[-1:]:
        yield from pages.install_lines(one, address)


def create_server(root: Path, port: str, host: str = LOOPBACK) -> ThreadingHTTPServer:
    """Return a server of the index that listens, by default on no address but this machine's own.

    Raises ConfigError for what is no port or address, HostError where it cannot be listened on.
    """
    if port and not (port.isascii() and port.isdigit() and int(port) <= LARGEST_PORT):
        raise ConfigError(
            f"--port {port}: give a number up to {LARGEST_PORT}; 0 takes any that is free", code="invalid-port"
        )
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(
            f"--host {host}: give an address of this machine, such as {LOOPBACK}, ::1 or 0.0.0.0", code="invalid-host"
        ) from None
    server = _ServerOnSix if ":" in host else _Server
    try:
        return server((host, int(port or PORT)), partial(_Handler, directory=str(root)))
    except OSError as error:
        with contextlib.suppress(OSError):
            if not port:
                return server((host, 0), partial(_Handler, directory=str(root)))
        raise HostError(
            f"cannot listen on {host}, port {port or PORT} ({error.strerror or error}): name another with "
            "--port or --host",
            code="cannot-listen",
        ) from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # uv opens fifty connections at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _ServerOnSix(_Server):
    address_family = socket.AF_INET6


class _Handler(SimpleHTTPRequestHandler):
    """The standard library's, with JSON pages and nothing from outside the index.

    pypiserver was looked at: it serves the wheels of one folder, not a tree with pages that are written.
    """

    protocol_version = "HTTP/1.1"
    timeout = REQUEST_TIMEOUT_SECONDS
    extensions_map = KINDS

    def translate_path(self, path: str) -> str:
        """Return the file that a path means: of a folder its page; a name that nothing has for all else."""
        root, found = Path(self.directory), Path(super().translate_path(path))
        try:
            if found.is_dir() and path.partition("?")[0].endswith("/"):
                wants_json = _WANTS_JSON.search(self.headers.get("Accept", "").lower())
                found /= pages.JSON if wants_json else pages.HTML
            whole = found.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # a circle of links, a name that cannot be
            return ""
        hidden = any(part.startswith(".") for part in found.relative_to(root).parts)
        inside = whole.is_relative_to(root.resolve()) and not hidden
        return str(found) if inside and (whole.is_file() or whole.is_dir()) else ""

    def send_head(self) -> Any:
        """Send the headers of a file, and return it."""
        if self.path.partition("?")[0].endswith("/"):
            del self.headers["If-Modified-Since"]  # of a page, a second is too coarse: it may be new since
        return super().send_head()

    def end_headers(self) -> None:
        """Say also what a page depends on."""
        self.send_header("Vary", "Accept")
        super().end_headers()

    def log_message(self, *words: Any) -> None:
        """Write a line for each request, as long as somebody reads them."""
        with contextlib.suppress(OSError):
            super().log_message(*words)
