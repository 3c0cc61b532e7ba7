"""Servers that take wheels: pypiserver, moto's S3, and stand-ins for GitHub and for conda services.

The stand-ins answer as the services' documentation says.
"""

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

USER = "user"
PASSWORD = "correct horse"  # noqa: S105 - of the servers here
TOKEN = "ghs_secret"  # noqa: S105 - of the servers here


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        """Print nothing."""


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


@contextmanager
def pypiserver(packages: Path, **options: Any) -> Iterator[str]:
    """Serve a folder with pypiserver, whose uploads need a password; yield its address."""
    with warnings.catch_warnings():  # pypiserver imports cgi, which is deprecated
        warnings.simplefilter("ignore")
        import pypiserver as server  # type: ignore[import-untyped]
    # pypiserver's copy of bottle leaves an import hook behind, about which Python warns.
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if type(finder).__name__ != "_ImportRedirect"
    ]
    packages.mkdir(exist_ok=True)
    logging.getLogger("pypiserver").setLevel(logging.CRITICAL)
    app = server.app(
        roots=[packages],
        auther=lambda user, password: (user, password) == (USER, PASSWORD),
        **{"authenticate": ["update"], **options},
    )
    with make_server("127.0.0.1", 0, app, _Threads, _Quiet) as http_server, _running(http_server):
        yield f"http://127.0.0.1:{http_server.server_port}"


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
    """A repository of GitHub with its releases."""

    repository: str = "me/wheels"
    url: str = ""
    releases: list[dict[str, Any]] = field(default_factory=list)
    contents: dict[int, bytes] = field(default_factory=dict)  # by the id of the asset
    requests: list[str] = field(default_factory=list)  # "GET /repos/…", in their order
    breaks_after: int | None = None  # bytes of the next upload, after which its connection ends
    has_digests: bool = True
    page_entries: int = 2  # the most on a page: few, so that there are several pages
    made: int = 0  # releases so far, also those that were deleted

    def release(self, tag: str, *, draft: bool = False, body: str = "") -> dict[str, Any]:
        """Make a release."""
        self.made += 1
        number = self.made
        release = {
            "id": number,
            "tag_name": tag,
            "name": tag,
            "body": body,
            "draft": draft,
            "assets": [],
        }
        release["upload_url"] = f"{self.url}/uploads/{number}/assets{{?name,label}}"
        self.releases.append(release)
        return release

    def with_id(self, number: int) -> dict[str, Any]:
        """Return the release with an id."""
        (release,) = [release for release in self.releases if release["id"] == number]
        return release

    def add(
        self, release: dict[str, Any], name: str, content: bytes, state: str = "uploaded"
    ) -> dict[str, Any]:
        """Add a file to a release."""
        number = len(self.contents) + 1
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}" if self.has_digests else None
        asset = {"id": number, "name": name, "state": state, "size": len(content), "digest": digest}
        asset["browser_download_url"] = f"{self.url}/download/{release['tag_name']}/{quote(name)}"
        self.contents[number] = content
        release["assets"].append(asset)
        return asset

    def names(self, tag: str) -> list[str]:
        """Return the names of a release's complete files."""
        (release,) = [release for release in self.releases if release["tag_name"] == tag]
        assets = [asset for asset in release["assets"] if asset["state"] == "uploaded"]
        return sorted(asset["name"] for asset in assets)


class _Api(BaseHTTPRequestHandler):
    """The part of https://docs.github.com/rest/releases that torchmill uses."""

    hub: GitHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        """Print nothing."""

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
        self.hub.requests.append(f"{verb} {parts.path}")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if match := re.fullmatch(r"/download/([^/]+)/([^/]+)", parts.path):  # needs no token
            return self._download(match[1], unquote(match[2]))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"message": "Bad credentials"})
        top = f"/repos/{self.hub.repository}/releases"
        if match := re.fullmatch(r"/uploads/(\d+)/assets", parts.path):
            return self._upload(int(match[1]), query["name"])
        if not parts.path.startswith(top):
            return self._answer(404, {"message": "Not Found"})
        return self._release_request(verb, parts.path.removeprefix(top), query)

    def _download(self, tag: str, name: str) -> None:
        for release in self.hub.releases:
            for asset in release["assets"]:
                if (release["tag_name"], asset["name"]) == (tag, name):
                    return self._answer(200, self.hub.contents[asset["id"]])
        return self._answer(404, {})

    def _release_request(self, verb: str, path: str, query: dict[str, str]) -> None:
        releases = self.hub.releases
        if match := re.fullmatch(r"/tags/([^/]+)", path):  # never a draft
            return self._release_of_tag(unquote(match[1]))
        if match := re.fullmatch(r"/(\d+)/assets", path):
            return self._pages(self.hub.with_id(int(match[1]))["assets"], query)
        if match := re.fullmatch(r"/assets/(\d+)", path):
            return self._asset(verb, int(match[1]))
        if match := re.fullmatch(r"/(\d+)", path):
            return self._release(verb, int(match[1]))
        if verb == "POST":
            fields = json.loads(self._body())
            release = self.hub.release(
                fields["tag_name"], draft=fields["draft"], body=fields["body"]
            )
            return self._answer(201, release)
        return self._pages(releases, query)

    def _release_of_tag(self, tag: str) -> None:
        for release in self.hub.releases:
            if release["tag_name"] == tag and not release["draft"]:
                return self._answer(200, release)
        return self._answer(404, {"message": "Not Found"})

    def _release(self, verb: str, number: int) -> None:
        if number not in {release["id"] for release in self.hub.releases}:
            return self._answer(404, {"message": "Not Found"})
        release = self.hub.with_id(number)
        if verb == "DELETE":
            self.hub.releases.remove(release)
            return self._answer(204, None)
        release.update(json.loads(self._body()))
        return self._answer(200, release)

    def _asset(self, verb: str, number: int) -> None:
        listed = [asset["id"] for release in self.hub.releases for asset in release["assets"]]
        if number not in listed:
            return self._answer(404, {"message": "Not Found"})
        if verb == "DELETE":
            for release in self.hub.releases:
                assets = [asset for asset in release["assets"] if asset["id"] != number]
                release["assets"] = assets
            return self._answer(204, None)
        assert self.headers["Accept"] == "application/octet-stream"
        return self._answer(200, self.hub.contents[number])

    def _upload(self, number: int, name: str) -> None:
        release = self.hub.with_id(number)
        if any(asset["name"] == name for asset in release["assets"]):
            self._body()
            return self._answer(
                422, {"message": "Validation Failed", "errors": [{"code": "already_exists"}]}
            )
        if self.hub.breaks_after is not None:
            # GitHub keeps the bytes that arrived as an asset in this state.
            self.hub.add(release, name, self.rfile.read(self.hub.breaks_after), "starter")
            self.hub.breaks_after = None
            self.close_connection = True
            return None
        return self._answer(201, self.hub.add(release, name, self._body()))

    def _pages(self, entries: list[dict[str, Any]], query: dict[str, str]) -> None:
        page = int(query.get("page", 1))
        size = min(int(query["per_page"]), self.hub.page_entries)
        headers = {}
        if len(entries) > page * size:
            address = self.hub.url + self.path.partition("?")[0]
            headers["Link"] = f'<{address}?per_page={size}&page={page + 1}>; rel="next"'
        self._answer(200, entries[(page - 1) * size : page * size], headers)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        if answer is None:
            content = b""
        elif isinstance(answer, bytes):
            content = answer
        else:
            content = json.dumps(answer).encode()
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
    """Take uploads as prefix.dev, anaconda.org and quetz do, from clients with the token.

    Yields the address, and the list of the files that arrived.
    """
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
            """Print nothing."""

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
            body = self._body()
            answer = {}
            path = urlsplit(self.path).path
            login = self.headers.get("Authorization") or self.headers.get("X-API-Key") or ""
            has_token = login.split()[-1:] == [TOKEN]
            code = 200 if path == "/stored" or has_token else 401
            # anaconda.org names another address, to which the file has to be uploaded.
            if path.startswith("/stage/"):
                answer = {
                    "post_url": f"http://{self.headers['Host']}/stored",
                    "form_data": {},
                    "dist_id": "1",
                }
            elif code == 200 and self.command == "GET":
                code = 404  # there is no such package yet
            if code == 200 and (path == "/stored" or "/upload/" in path):
                received.append(body)
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - inherited

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, _running(server):
        yield f"http://127.0.0.1:{server.server_port}", received
