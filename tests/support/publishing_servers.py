"""Real places that take wheels: pypiserver, moto's S3, and a stand-in for GitHub that obeys its documents."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

USER, PASSWORD, TOKEN = "user", "correct horse", "ghs_secret"


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


@contextmanager
def pypiserver(packages: Path, **options: Any) -> Iterator[str]:
    """Serve a folder with pypiserver, whose uploads need a password; yield its address."""
    with warnings.catch_warnings():  # it imports cgi
        warnings.simplefilter("ignore")
        import pypiserver as server  # type: ignore[import-untyped]
    # Its bottle hooks into the import of everything, in a way that Python warns of.
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "_ImportRedirect"]
    packages.mkdir(exist_ok=True)
    logging.getLogger("pypiserver").setLevel(logging.CRITICAL)
    said = {"authenticate": ["update"], **options}
    app = server.app(
        roots=[packages], auther=lambda user, word: (user, word) == (USER, PASSWORD), **said
    )
    with make_server("127.0.0.1", 0, app, _Threads, _Quiet) as made, _running(made):
        yield f"http://127.0.0.1:{made.server_port}"


@contextmanager
def s3(bucket: str) -> Iterator[dict[str, str]]:
    """Serve S3 with one bucket; yield the variables that lead there."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    environ = {
        **keys,
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_CONFIG_FILE": "/nonexistent",
    }
    try:
        yield environ | {"BUCKET": bucket}
    finally:
        server.stop()


@dataclass
class GitHub:
    """A repository as the API shows it; `breaks` bytes into the next upload the connection ends."""

    repository: str = "me/wheels"
    url: str = ""
    releases: list[dict[str, Any]] = field(default_factory=list)
    contents: dict[int, bytes] = field(default_factory=dict)  # by asset
    asked: list[str] = field(default_factory=list)
    breaks: int | None = None
    tells_digests: bool = True
    page: int = 2  # entries, to have several pages

    def release(self, tag: str, *, draft: bool = False, body: str = "") -> dict[str, Any]:
        """Make a release."""
        number = len(self.releases) + 1
        made = {
            "id": number,
            "tag_name": tag,
            "name": tag,
            "body": body,
            "draft": draft,
            "assets": [],
        }
        made["upload_url"] = f"{self.url}/uploads/{number}/assets{{?name,label}}"
        self.releases.append(made)
        return made

    def add(
        self, release: dict[str, Any], name: str, content: bytes, state: str = "uploaded"
    ) -> dict[str, Any]:
        """Add a file to a release."""
        number = len(self.contents) + 1
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}" if self.tells_digests else None
        made = {"id": number, "name": name, "state": state, "size": len(content), "digest": digest}
        made["browser_download_url"] = f"{self.url}/download/{release['tag_name']}/{quote(name)}"
        self.contents[number] = content
        release["assets"].append(made)
        return made

    def names(self, tag: str) -> list[str]:
        """Return the names of a release's whole files."""
        (release,) = [one for one in self.releases if one["tag_name"] == tag]
        return sorted(one["name"] for one in release["assets"] if one["state"] == "uploaded")


class _Api(BaseHTTPRequestHandler):
    """https://docs.github.com/rest/releases, as far as it is needed."""

    hub: GitHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def do_DELETE(self) -> None:
        self._handle("DELETE")

    def _handle(self, verb: str) -> None:
        parts = urlsplit(self.path)
        self.hub.asked.append(f"{verb} {parts.path}")
        said = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if match := re.fullmatch(r"/download/([^/]+)/([^/]+)", parts.path):  # needs no token
            release = next(one for one in self.hub.releases if one["tag_name"] == match[1])
            asset = next(
                (one for one in release["assets"] if one["name"] == unquote(match[2])), None
            )
            return (
                self._answer(200, self.hub.contents[asset["id"]])
                if asset
                else self._answer(404, {})
            )
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"message": "Bad credentials"})
        top = f"/repos/{self.hub.repository}/releases"
        if match := re.fullmatch(r"/uploads/(\d+)/assets", parts.path):
            return self._upload(int(match[1]), said["name"])
        if not parts.path.startswith(top):
            return self._answer(404, {"message": "Not Found"})
        return self._released(verb, parts.path.removeprefix(top), said)

    def _released(self, verb: str, path: str, said: dict[str, str]) -> None:
        releases = self.hub.releases
        if match := re.fullmatch(r"/tags/([^/]+)", path):  # never a draft
            found = [
                one for one in releases if one["tag_name"] == unquote(match[1]) and not one["draft"]
            ]
            return (
                self._answer(200, found[0])
                if found
                else self._answer(404, {"message": "Not Found"})
            )
        if match := re.fullmatch(r"/(\d+)/assets", path):
            return self._pages(releases[int(match[1]) - 1]["assets"], said)
        if match := re.fullmatch(r"/assets/(\d+)", path):
            return self._asset(verb, int(match[1]))
        if match := re.fullmatch(r"/(\d+)", path):
            releases[int(match[1]) - 1].update(json.loads(self._body()))
            return self._answer(200, releases[int(match[1]) - 1])
        if verb == "POST":
            made = json.loads(self._body())
            release = self.hub.release(made["tag_name"], draft=made["draft"], body=made["body"])
            return self._answer(201, release)
        return self._pages(releases, said)

    def _asset(self, verb: str, number: int) -> None:
        if verb == "DELETE":
            for release in self.hub.releases:
                release["assets"] = [one for one in release["assets"] if one["id"] != number]
            return self._answer(204, None)
        assert self.headers["Accept"] == "application/octet-stream"
        return self._answer(200, self.hub.contents[number])

    def _upload(self, number: int, name: str) -> None:
        release = self.hub.releases[number - 1]
        if any(one["name"] == name for one in release["assets"]):
            self._body()
            return self._answer(
                422, {"message": "Validation Failed", "errors": [{"code": "already_exists"}]}
            )
        if self.hub.breaks is not None:  # what came is left as an asset that says so
            self.hub.add(release, name, self.rfile.read(self.hub.breaks), "starter")
            self.hub.breaks = None
            self.close_connection = True
            return None
        return self._answer(201, self.hub.add(release, name, self._body()))

    def _pages(self, entries: list[dict[str, Any]], said: dict[str, str]) -> None:
        page, size = int(said.get("page", 1)), min(int(said["per_page"]), self.hub.page)
        more = len(entries) > page * size
        where = self.hub.url + self.path.partition("?")[0]
        link = {"Link": f'<{where}?per_page={size}&page={page + 1}>; rel="next"'} if more else {}
        self._answer(200, entries[(page - 1) * size : page * size], link)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, status: int, said: Any, headers: dict[str, str] | None = None) -> None:
        content = (
            said if isinstance(said, bytes) else b"" if said is None else json.dumps(said).encode()
        )
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def github() -> Iterator[GitHub]:
    """Serve a repository without releases."""
    hub = GitHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Api", (_Api,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    with server, _running(server):
        yield hub


@contextmanager
def _running(server: WSGIServer | ThreadingHTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


@contextmanager
def conda_services() -> Iterator[tuple[str, list[bytes]]]:
    """Serve uploads as prefix.dev, anaconda.org and quetz do, to who has the token; yield the address, what arrived."""
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            """Say nothing."""

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def _answer(self) -> None:
            body, said, place = self._body(), {}, urlsplit(self.path).path
            given = (
                self.headers.get("Authorization") or self.headers.get("X-API-Key") or ""
            ).split()[-1:]
            code = 200 if place == "/stored" or given == [TOKEN] else 401
            if place.startswith("/stage/"):  # of anaconda.org, which has files put elsewhere
                said = {
                    "post_url": f"http://{self.headers['Host']}/stored",
                    "form_data": {},
                    "dist_id": "1",
                }
            elif code == 200 and self.command == "GET":
                code = 404  # it knows no such package yet
            if code == 200 and (place == "/stored" or "/upload/" in place):
                received.append(body)
            text = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - the names are the base class's

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, _running(server):
        yield f"http://127.0.0.1:{server.server_port}", received
