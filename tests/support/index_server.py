"""A small package index on this machine: pages in both formats, files that answer range requests."""

import base64
import html
import io
import json
import re
import socket
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MILLION = 1_000_000


def wheel(package: str, version: str, **said: Any) -> bytes:
    """Return a tiny wheel: `requires`, `requires_python`, `version_py`, `libraries` are what it says."""
    metadata = [f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}"]
    if "requires_python" in said:
        metadata.append(f"Requires-Python: {said['requires_python']}")
    metadata += [f"Requires-Dist: {one}" for one in said.get("requires", ())]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{package}/__init__.py", "")
        archive.writestr(
            f"{package}-{version}.dist-info/METADATA", "\n".join(metadata) + "\n\nText\n"
        )
        if "version_py" in said:
            archive.writestr(f"{package}/version.py", said["version_py"])
        for name, size in said.get("libraries", {}).items():
            archive.writestr(f"{package}/lib/{name}", bytes(size))
    return made.getvalue()


@dataclass
class Index:
    """What the server has, and what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)  # name -> bytes
    attributes: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> of PEP 691
    json: bool = True
    url: str = ""
    asked: list[str] = field(default_factory=list)  # "GET /files/x.whl bytes=-1048576"
    users: list[str] = field(default_factory=list)  # "name:password" of each request that had one

    def add(self, name: str, content: bytes, **attributes: Any) -> None:
        """Put a file on the index."""
        self.files[name] = content
        self.attributes[name] = attributes

    def page(self, project: str) -> tuple[str, bytes]:
        """Return the type and the text of a project's page."""
        names = [name for name in self.files if name.split("-")[0].replace("_", "-") == project]
        if self.json:
            entries = [
                {
                    "filename": name,
                    "url": f"../../files/{name}#sha256=0",
                    "hashes": {},
                    **self.attributes[name],
                }
                for name in names
            ]
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": entries}).encode()
        links = "".join(
            f'<a href="../../files/{name}#sha256=0"{_attributes(self.attributes[name])}>{name}</a><br/>'
            for name in names
        )
        return "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


def _attributes(said: Mapping[str, Any]) -> str:
    return "".join(f' data-{name}="{html.escape(str(value))}"' for name, value in said.items())


class _Handler(BaseHTTPRequestHandler):
    index: Index

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer with a page, or with a file or a range of it."""
        wanted = self.headers.get("Range", "")
        self.index.asked.append(f"GET {self.path} {wanted}".strip())
        if said := self.headers.get("Authorization", "").removeprefix("Basic "):
            self.index.users.append(base64.b64decode(said).decode())
        if match := re.fullmatch(r"/simple/([^/]+)/", self.path):
            kind, content = self.index.page(match[1])
            self._send(200, content, {"Content-Type": kind})
            return
        content = self.index.files.get(self.path.removeprefix("/files/"), b"")
        if not content:
            self._send(404, b"", {})
        elif match := re.fullmatch(r"bytes=(\d*)-(\d*)", wanted):
            start = int(match[1]) if match[1] else max(0, len(content) - int(match[2]))
            end = int(match[2]) + 1 if match[1] and match[2] else len(content)
            if start >= len(content):
                self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            part = content[start:end]
            span = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
            self._send(206, part, {"Content-Range": span})
        else:
            self._send(200, content, {})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        send_answer(self, status, content, headers)


def send_answer(
    handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str]
) -> None:
    """Answer a request with these headers, and the content's length."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


@contextmanager
def gone_index() -> Iterator[Index]:
    """Yield an index that does not answer; nobody else gets its port for as long as the context lasts."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        index = Index()
        index.url = f"http://127.0.0.1:{held.getsockname()[1]}/simple"
        yield index


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    """Serve an index for as long as the context lasts."""
    handler = type("Handler", (_Handler,), {"index": index})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
