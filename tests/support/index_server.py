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


def wheel(package: str, version: str, **contents: Any) -> bytes:
    """Return a tiny wheel with some contents.

    `requires` and `requires_python` are metadata, `version_py` is the text of version.py, and
    `libraries` maps names to sizes in bytes.
    """
    metadata = [f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}"]
    if "requires_python" in contents:
        metadata.append(f"Requires-Python: {contents['requires_python']}")
    metadata += [f"Requires-Dist: {requirement}" for requirement in contents.get("requires", ())]
    text = "\n".join(metadata) + "\n\nText\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{package}/__init__.py", "")
        archive.writestr(f"{package}-{version}.dist-info/METADATA", text)
        if "version_py" in contents:
            archive.writestr(f"{package}/version.py", contents["version_py"])
        for name, size in contents.get("libraries", {}).items():
            archive.writestr(f"{package}/lib/{name}", bytes(size))
    return stream.getvalue()


@dataclass
class Index:
    """The files of an index, and the requests that it got."""

    files: dict[str, bytes] = field(default_factory=dict)  # name -> content
    attributes: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> of PEP 691
    json: bool = True
    url: str = ""
    requests: list[str] = field(default_factory=list)  # "GET /files/x.whl bytes=-1048576"
    users: list[str] = field(default_factory=list)  # "name:password" of each request with a login

    def add(self, name: str, content: bytes, **attributes: Any) -> None:
        """Put a file on the index."""
        self.files[name] = content
        self.attributes[name] = attributes

    def page(self, project: str) -> tuple[str, bytes]:
        """Return the content type and the content of a project's page."""
        names = [name for name in self.files if name.split("-")[0].replace("_", "-") == project]
        if self.json:
            entries = [self._entry(name) for name in names]
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": entries}).encode()
        links = "".join(self._link(name) for name in names)
        return "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()

    def _entry(self, name: str) -> dict[str, Any]:
        """Return a file as a JSON page lists it."""
        url = f"../../files/{name}#sha256=0"
        return {"filename": name, "url": url, "hashes": {}, **self.attributes[name]}

    def _link(self, name: str) -> str:
        """Return a file as an HTML page lists it."""
        attributes = ""
        for key, value in self.attributes[name].items():
            attributes += f' data-{key}="{html.escape(str(value))}"'
        return f'<a href="../../files/{name}#sha256=0"{attributes}>{name}</a><br/>'


class _Handler(BaseHTTPRequestHandler):
    index: Index

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Write no log."""

    def do_GET(self) -> None:
        """Answer with a page, or with a file or a range of it."""
        requested_range = self.headers.get("Range", "")
        self.index.requests.append(f"GET {self.path} {requested_range}".strip())
        login = self.headers.get("Authorization", "").removeprefix("Basic ")
        if login:
            self.index.users.append(base64.b64decode(login).decode())
        page = re.fullmatch(r"/simple/([^/]+)/", self.path)
        if page:
            kind, content = self.index.page(page[1])
            send_answer(self, 200, content, {"Content-Type": kind})
            return
        content = self.index.files.get(self.path.removeprefix("/files/"), b"")
        bounds = re.fullmatch(r"bytes=(\d*)-(\d*)", requested_range)
        if not content:
            send_answer(self, 404, b"", {})
        elif bounds:
            self._send_range(content, bounds[1], bounds[2])
        else:
            send_answer(self, 200, content, {})

    def _send_range(self, content: bytes, first: str, last: str) -> None:
        """Send a part of a file: "5-9" five bytes, "5-" all from the sixth on, "-5" the last five."""
        size = len(content)
        start = int(first) if first else max(0, size - int(last))
        end = int(last) + 1 if first and last else size
        if start >= size:
            send_answer(self, 416, b"", {"Content-Range": f"bytes */{size}"})
            return
        part = content[start:end]
        span = f"bytes {start}-{start + len(part) - 1}/{size}"
        send_answer(self, 206, part, {"Content-Range": span})


def send_answer(
    handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: Mapping[str, str]
) -> None:
    """Answer a request with some headers, and the content's length."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


@contextmanager
def gone_index() -> Iterator[Index]:
    """Give an index that does not answer; no other program gets its port meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        index = Index()
        index.url = f"http://127.0.0.1:{bound.getsockname()[1]}/simple"
        yield index


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    """Serve an index while the context lasts."""
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
