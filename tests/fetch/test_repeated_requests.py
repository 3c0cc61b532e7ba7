"""Requests that fail for a moment are repeated; those that would fail again are not."""

import hashlib
import http.server
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
import urllib3

from tests.support.refusals import refused
from tests.support.silent_progress import SilentBar
from torchmill.core.errors import HostError, SourceError
from torchmill.core.silence import SilentError
from torchmill.fetch.download import download_file, http_session, lasting_complaint, read_body
from torchmill.fetch.http_failures import is_passing_status, judge_http

CONTENT = os.urandom(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT after the failures that it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.statuses: list[int] = []  # of the next answers; then 200
        self.cuts: list[int] = []  # bytes after which the next whole answers end
        self.headers: dict[str, str] = {}
        self.ranges: list[str | None] = []  # of the requests so far
        self.gate = threading.Event()  # the second half of an answer waits for it
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/a.zip"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: connections break on purpose."""


class Answer(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing."""

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if self.server.statuses:
            self.send_response(self.server.statuses.pop(0))
            for name, value in self.server.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        body = CONTENT[start:]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        if self.server.cuts:
            self.wfile.write(body[: self.server.cuts.pop(0)])
            self.close_connection = True
            return
        half = len(body) // 2
        self.wfile.write(body[:half])
        self.wfile.flush()
        self.server.gate.wait(60)
        self.wfile.write(body[half:])


@contextmanager
def running() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("TORCHMILL_TRIES", "3")
    with running() as server:
        yield server


def download(url: str, folder: Path) -> Path:
    return download_file(
        url, folder, SilentBar(), network_hint="wait", refusal_hint="check it", sha256=SHA256
    )


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_server_that_has_no_time_is_asked_again(
    server: Server, tmp_path: Path, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    server.statuses = [status]
    assert download(server.url, tmp_path).read_bytes() == CONTENT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("a.zip from 127.0.0.1: tried again (2 of 3): it answers ")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 416, 451, 501, 505])
def test_a_server_that_refuses_is_asked_once(server: Server, tmp_path: Path, status: int) -> None:
    server.statuses = [status] * 3
    with pytest.raises(SourceError):
        download(server.url, tmp_path)
    assert len(server.ranges) == 1


def test_a_download_that_breaks_is_resumed_at_once(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000]
    assert download(server.url, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_after_the_last_try_the_part_stays(server: Server, tmp_path: Path) -> None:
    server.cuts = [100, 100, 100]
    with refused("connection-broken"):
        download(server.url, tmp_path)
    assert (tmp_path / "a.zip.part").stat().st_size == 300


def test_a_wrong_digest_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    with refused("wrong-digest"):
        download_file(
            server.url,
            tmp_path,
            SilentBar(),
            network_hint="wait",
            refusal_hint="check it",
            sha256="0" * 64,
        )
    assert len(server.ranges) == 1


def test_the_pause_that_a_server_asks_for_is_made(server: Server) -> None:
    server.statuses = [429]
    server.headers = {"Retry-After": "1"}
    began = time.monotonic()
    with http_session() as session:
        _, body = read_body(session, server.url, {})
    assert body == CONTENT
    assert time.monotonic() - began >= 1


def test_a_server_that_asks_for_an_hour_is_left(server: Server) -> None:
    server.statuses = [503]
    server.headers = {"Retry-After": "3600"}
    with http_session() as session, pytest.raises(requests.HTTPError):
        read_body(session, server.url, {})
    assert len(server.ranges) == 1


def test_a_closed_port_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert lasting_complaint("http://127.0.0.1:1/") == "connection refused"
    assert "tried again (2 of 2): connection refused" in capsys.readouterr().err


def wrapped(cause: Exception) -> requests.ConnectionError:
    """Return an error of requests around an error of a socket."""
    error = requests.ConnectionError("no connection")
    error.__context__ = urllib3.exceptions.ProtocolError("broken")
    error.__context__.__context__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        wrapped(socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
        wrapped(ssl.SSLCertVerificationError(1, "certificate verify failed")),
        wrapped(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")),
        requests.exceptions.ProxyError(
            "Tunnel connection failed: 407 Proxy Authentication Required"
        ),
        requests.exceptions.InvalidURL("no host"),
        requests.exceptions.TooManyRedirects("30"),
        HostError("the disk is full", code="disk-full"),
        SourceError("another file", code="wrong-digest"),
        OSError(28, "No space left on device"),
        ValueError("not a number"),
    ],
)
def test_failures_that_last(error: Exception) -> None:
    assert judge_http(error) is None


@pytest.mark.parametrize(
    "error",
    [
        wrapped(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")),
        wrapped(ConnectionRefusedError(111, "Connection refused")),
        wrapped(ConnectionResetError(104, "Connection reset by peer")),
        wrapped(ssl.SSLEOFError(8, "EOF occurred in violation of protocol")),
        wrapped(ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] bad record mac")),
        requests.exceptions.ProxyError("Tunnel connection failed: 503 Service Unavailable"),
        requests.exceptions.ChunkedEncodingError("connection broken"),
        requests.exceptions.ReadTimeout("60 s"),
        urllib3.exceptions.IncompleteRead(1, 2),
        TimeoutError("timed out"),
        OSError(101, "Network is unreachable"),
        SilentError("the host has sent nothing", code="silent"),
    ],
)
def test_failures_that_may_pass(error: Exception) -> None:
    assert judge_http(error) is not None


def test_only_some_statuses_may_pass() -> None:
    passing = [status for status in range(600) if is_passing_status(status)]
    assert [status for status in passing if status < 500] == [408, 425, 429]
    assert 501 not in passing


DOWNLOAD = """\
import sys
from pathlib import Path
from tests.support.silent_progress import SilentBar
from torchmill.fetch.download import download_file
url, folder, sha256 = sys.argv[1:]
download_file(
    url, Path(folder), SilentBar(), network_hint="wait", refusal_hint="check it", sha256=sha256
)
"""


def start_download(url: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DOWNLOAD, url, str(folder), SHA256],
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_part(folder: Path) -> None:
    """Wait until half of the file has arrived."""
    for _ in range(600):
        part = folder / "a.zip.part"
        if part.exists() and part.stat().st_size >= len(CONTENT) // 2:
            return
        time.sleep(0.05)
    pytest.fail("nothing arrived")


def test_two_processes_share_one_download(server: Server, tmp_path: Path) -> None:
    server.gate.clear()
    first = start_download(server.url, tmp_path)
    wait_for_part(tmp_path)
    second = start_download(server.url, tmp_path)
    assert second.stderr is not None
    line = second.stderr.readline()
    assert "a.zip: waiting for another process that downloads it" in line
    if sys.platform == "linux":
        assert f"held by process {first.pid}" in line
    server.gate.set()
    assert (first.wait(60), second.wait(60)) == (0, 0)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert server.ranges == [None]
    second.stderr.close()
    assert first.stderr is not None
    first.stderr.close()


def test_a_killed_download_is_resumed_by_the_process_that_waits(
    server: Server, tmp_path: Path
) -> None:
    server.gate.clear()
    first = start_download(server.url, tmp_path)
    wait_for_part(tmp_path)
    second = start_download(server.url, tmp_path)
    assert second.stderr is not None
    assert "waiting for another process" in second.stderr.readline()
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    server.gate.set()
    assert second.wait(60) == 0
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert server.ranges[0] is None
    assert server.ranges[1] is not None
    second.stderr.close()
    assert first.stderr is not None
    first.stderr.close()
