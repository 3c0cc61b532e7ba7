"""Broken connections: git over its own protocol, ssh and https, downloads, package indexes and uploads.

A *case* breaks connections while a command runs, and then runs the same command without a fault. The first must end
well or be refused in time, the second must end well.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import random
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

from tests.faults.proxy import NO_FAULT, WAYS, Fault, Proxy, proxied
from tests.faults.tally import CommandOutcome, Tally, judge
from tests.support import documented_wheels, publishing_servers
from tests.support.index_server import send_answer
from tests.support.silent_progress import SilentBar, SilentProgress
from tests.support.source_upstream import Forge, layout, make_forge, request
from torchmill.commands.publish import deliver_files
from torchmill.deliver.publish import targets, upload_set
from torchmill.fetch.download import download_file, http_session
from torchmill.fetch.package_index import project_files
from torchmill.fetch.source.fetcher import fetch_source
from torchmill.fetch.source.tree import digest_contents
from torchmill.wheel import finished_wheel

SILENCE_SECONDS = 2.0
# For one command: it makes several connections, of which each may be silent for SILENCE_SECONDS, and retries.
LONGEST_SECONDS = 40.0
KINDS = ("git", "ssh", "https", "download", "index", "upload")
# Errors after a broken upload that last: only the owner of the index can remove what it has stored.
_LASTING_UPLOAD_CODES = ("file-exists", "half-upload")

Attempt = Callable[[Path], str]  # does the work in a folder; returns a digest of the result


def attack_connections(kind: str, count: int, seed: int) -> Tally:
    """Run `count` cases of one of KINDS, with faults drawn at random."""
    chance = random.Random(f"{seed} {kind}")  # noqa: S311 - no secret
    tally = Tally(f"connections: {kind}")
    lasting_codes = _LASTING_UPLOAD_CODES if kind == "upload" else ()
    with (
        tempfile.TemporaryDirectory() as folder,
        quiet_environment(Path(folder)),
        _SETTINGS[kind](Path(folder)) as setting,
    ):
        begin, attempt, size = setting
        begin(NO_FAULT)
        expected = attempt(Path(folder, "whole"))
        for number in range(count):
            way = WAYS[number % len(WAYS)]
            upward = kind == "upload" and number % 4 > 0
            # Squared: most faults come early, where the protocols negotiate.
            at = int(size * chance.random() ** 2)
            fault = Fault(way, at, upward, connection=chance.choice((0, 0, 1)))
            begin(fault)
            place = Path(folder, str(number))
            first = _timed(functools.partial(attempt, place), expected)
            begin(NO_FAULT)
            second = _timed(functools.partial(attempt, place), expected)
            tally.add(str(fault), judge(first, second, lasting_codes))
    return tally


def _timed(attempt: Callable[[], str], expected: str) -> CommandOutcome:
    """Return the outcome of a command, with a complaint if it took too long."""
    start = time.monotonic()
    outcome = CommandOutcome.of(attempt, expected)
    seconds = time.monotonic() - start
    if seconds > LONGEST_SECONDS:
        return replace(outcome, complaint=f"took {seconds:.0f} s")
    return outcome


@contextlib.contextmanager
def quiet_environment(folder: Path) -> Iterator[None]:
    """Set the variables that git and torchmill read, and restore the environment at the end."""
    before = dict(os.environ)
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("GIT_") or name.endswith("CA_BUNDLE"):
            del os.environ[name]
    quiet = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "TORCHMILL_SILENCE": f"{SILENCE_SECONDS:g}",
        "HOME": str(folder),
    }
    os.environ.update(quiet)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # servers complain of broken connections
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# What a case needs: a function that sets the fault, the work, and the bytes that usually pass.
Setting = tuple[Callable[[Fault], None], Attempt, int]


def _fetch(forge: Forge, place: Path) -> str:
    source = fetch_source(request(forge), layout(place), SilentProgress())
    return digest_contents(source.path)


def busy_forge(folder: Path, base: str) -> Forge:
    """Return repositories with enough content that a connection can break in its middle."""
    forge = make_forge(folder, base)
    noise = random.Random(1).randbytes(60_000).hex()  # noqa: S311 - no secret
    tip = forge.commit("pytorch/torch", {"setup.py": "version = 3\n", "noise": noise}, (), "v1")
    forge.commits["v1"] = tip
    return forge


@contextlib.contextmanager
def _over_git(folder: Path) -> Iterator[Setting]:
    port = _free_port()
    with proxied(port) as proxy:
        forge = busy_forge(folder / "forge", f"git://127.0.0.1:{proxy.port}")
        argv = ["git", "daemon", "--listen=127.0.0.1", f"--port={port}"]
        argv += ["--export-all", "--reuseaddr"]
        daemon = subprocess.Popen([*argv, f"--base-path={forge.folder}"], stderr=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield proxy.begin, functools.partial(_fetch, forge), 70_000
        finally:
            daemon.terminate()
            daemon.wait()


@contextlib.contextmanager
def _over_ssh(folder: Path) -> Iterator[Setting]:
    forge = busy_forge(folder / "forge", f"ssh://forge{folder}/forge")
    os.environ["GIT_SSH_COMMAND"] = f"{sys.executable} {Path(__file__).with_name('proxy.py')}"

    def begin(fault: Fault) -> None:
        os.environ["TORCHMILL_FAULT"] = f"{fault.way}:{fault.at}"

    yield begin, functools.partial(_fetch, forge), 70_000


class GitHandler(BaseHTTPRequestHandler):
    """git's own server of its smart protocol over HTTP."""

    folder: ClassVar[str] = ""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Print nothing."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        variables = {  # of CGI, as git-http-backend(1) lists them
            "GIT_PROJECT_ROOT": self.folder, "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
            "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)), "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "PATH": os.environ["PATH"],
        }  # fmt: skip
        backend = subprocess.run(
            ["git", "http-backend"], input=body, env=variables, capture_output=True, check=False
        )
        head, _, content = backend.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        send_answer(self, status, content, headers)


@contextlib.contextmanager
def _over_https(folder: Path) -> Iterator[Setting]:
    handler = type("Handler", (GitHandler,), {"folder": str(folder / "forge")})
    with served(handler, folder) as port, proxied(port) as proxy:
        forge = busy_forge(folder / "forge", f"https://127.0.0.1:{proxy.port}")
        os.environ["GIT_SSL_CAINFO"] = str(folder / "certificate.pem")
        yield proxy.begin, functools.partial(_fetch, forge), 70_000


@contextlib.contextmanager
def served(
    handler: Callable[..., BaseHTTPRequestHandler], certified: Path | None = None
) -> Iterator[int]:
    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing: connections are broken on purpose."""

    with Server(("127.0.0.1", 0), handler) as server:
        port = server.server_port
        if certified:
            names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
            key, certificate = certified / "key.pem", certified / "certificate.pem"
            argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
            argv += names
            subprocess.run(
                [*argv, "-keyout", str(key), "-out", str(certificate)],
                check=True,
                capture_output=True,
            )
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        yield port
        server.shutdown()


class QuietFiles(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Print nothing."""


@contextlib.contextmanager
def _of_a_download(folder: Path) -> Iterator[Setting]:
    content, made = random.Random(2).randbytes(90_000), io.BytesIO()  # noqa: S311 - no secret
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        info = tarfile.TarInfo("t/setup.py")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    (folder / "served").mkdir()
    (folder / "served/t.tar.gz").write_bytes(made.getvalue())
    digest = hashlib.sha256(made.getvalue()).hexdigest()
    with (
        served(functools.partial(QuietFiles, directory=str(folder / "served"))) as port,
        proxied(port) as proxy,
    ):

        def attempt(place: Path) -> str:
            url = f"http://127.0.0.1:{proxy.port}/t.tar.gz"
            path = download_file(
                url, place, SilentBar(), network_hint="wait", refusal_hint="see why", sha256=digest
            )
            return hashlib.sha256(path.read_bytes()).hexdigest()

        yield proxy.begin, attempt, 90_000


@contextlib.contextmanager
def _of_an_index(folder: Path) -> Iterator[Setting]:
    page = "".join(
        f'<a href="../../files/t-{number}.tar.gz#sha256={number:064x}">t-{number}.tar.gz</a>\n'
        for number in range(400)
    )
    (folder / "served/simple/t").mkdir(parents=True)
    (folder / "served/simple/t/index.html").write_text(
        f"<!DOCTYPE html><body>{page}</body></html>", encoding="utf-8"
    )
    # https: a page has no digest, so that only TLS can prove it.
    os.environ["SSL_CERT_FILE"] = str(folder / "certificate.pem")
    with (
        served(functools.partial(QuietFiles, directory=str(folder / "served")), folder) as port,
        proxied(port) as proxy,
    ):

        def attempt(_: Path) -> str:
            with http_session() as session:
                files = project_files(session, f"https://127.0.0.1:{proxy.port}/simple", "t")
            return " ".join(f"{file.name} {file.sha256}" for file in files)

        yield proxy.begin, attempt, 50_000


@contextlib.contextmanager
def _of_an_upload(folder: Path) -> Iterator[Setting]:
    wheel = documented_wheels.built(folder, "1.13.1+cpu")
    (file,) = upload_set.upload_files(finished_wheel.read_wheel(wheel), ())
    login = {
        "TWINE_USERNAME": publishing_servers.USER,
        "TWINE_PASSWORD": publishing_servers.PASSWORD,
    }
    packages = folder / "packages"
    with (
        publishing_servers.pypiserver(packages, overwrite=True, disable_fallback=True) as url,
        contextlib.ExitStack() as stack,
    ):
        proxy: Proxy = stack.enter_context(proxied(int(url.rpartition(":")[2])))

        def attempt(_: Path) -> str:
            target = targets.choose_target(
                f"http://127.0.0.1:{proxy.port}", {**os.environ, **login}
            )
            deliver_files(target, [file])
            return hashlib.sha256((packages / file.name).read_bytes()).hexdigest()

        def begin(fault: Fault) -> None:
            if fault.way:  # a new case: without what the last one uploaded
                for package in packages.iterdir():
                    package.unlink()
            proxy.begin(fault)

        yield begin, attempt, file.size + 2500


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)


_SETTINGS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Setting]]] = {
    "git": _over_git,
    "ssh": _over_ssh,
    "https": _over_https,
    "download": _of_a_download,
    "index": _of_an_index,
    "upload": _of_an_upload,
}
