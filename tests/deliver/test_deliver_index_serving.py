"""`invoke serve`: real clients, and requests for what it must not give."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from tests.support.commands import ROOT, environment
from tests.support.made_index import Home, ask, install, installed, served
from tests.support.paper_wheels import made
from tests.support.refusals import refused
from torchmill.commands.clean import in_use
from torchmill.config.model import Facts
from torchmill.core.errors import HostError
from torchmill.core.paths import Layout
from torchmill.deliver.index import folder
from torchmill.deliver.index.server import create_server, serve_greeting, serve_index

JSON, HTML = "application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+html"
EVERYBODY = "0.0.0.0"  # noqa: S104 - for a moment
WHEEL = "/cpu/tinytorch-1.0%2Bcpu-py3-none-any.whl"


@pytest.fixture
def home(tmp_path: Path, known: Facts) -> Home:
    """Return a checkout with an index, and a secret beside it."""
    home = Home(tmp_path, known)
    made(home.dist)
    made(home.dist, "tinyvision", "0.5+cpu", requires=["tinytorch==1.0+cpu"])
    home.index()
    (tmp_path / "secret.html").write_text("hidden words")
    return home


@pytest.fixture
def port(home: Home) -> Iterator[int]:
    """Serve the index."""
    with served(home.out) as port:
        yield port


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_clients_fetch_metadata_and_only_then_the_wheels_they_install(
    home: Home, port: int, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "--index-url" if client == "pip" else "--default-index"
    install(client, home.path / client, [option, f"http://127.0.0.1:{port}/cpu/", "tinyvision"])
    assert installed(home.path / client) == {"tinyvision-0.5+cpu", "tinytorch-1.0+cpu"}
    asked = re.findall(r'"GET (\S+) HTTP/1.1" 200', capsys.readouterr().err)
    vision = WHEEL.replace("tinytorch-1.0", "tinyvision-0.5")
    assert set(asked) == {
        "/cpu/tinyvision/",
        "/cpu/tinytorch/",
        *(f"{wheel}{end}" for wheel in (WHEEL, vision) for end in ("", ".metadata")),
    }
    for wheel in (WHEEL, vision):
        assert asked.index(f"{wheel}.metadata") < asked.index(wheel)
    assert asked.index(f"{WHEEL}.metadata") < asked.index(vision), "all is resolved before anything is fetched"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (JSON, JSON),
        (f"{HTML}, text/html; q=0.01", "text/html"),
        ("text/html", "text/html"),
        ("", "text/html"),
        ("*/*", "text/html"),
        (f"{JSON}, {HTML};q=0.2, text/html;q=0.01", JSON),
        (f"{JSON};q=0, */*;q=0.1", "text/html"),
        (JSON.replace(".v1", ".latest"), JSON),
    ],
)
def test_pages_are_of_the_kind_that_is_wanted(port: int, accept: str, kind: str) -> None:
    response, content = ask(port, "/cpu/tinytorch/", {"Accept": accept})
    assert (response.status, response.headers["Content-Type"]) == (200, kind)
    assert response.headers["Vary"] == "Accept"
    if kind == JSON:
        assert json.loads(content)["name"] == "tinytorch"
    else:
        assert content.startswith(b"<!DOCTYPE html>")


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.html",
        "/cpu/../../secret.html",
        "/%2e%2e/secret.html",
        "/..%2fsecret.html",
        "/cpu/..%5c..%5csecret.html",
        "//secret.html",
        "secret.html",
        "http://127.0.0.1/secret.html",
        "/link.html",
        "/linked/secret.html",
        "/linked/",
        "/cpu/linkedpage/",
        "/.torchmill/index.json",
        "/%00",
        "/circle",
        "/" + "x" * 5000,
        "/nowhere/",
    ],
)
def test_nothing_outside_the_index_is_given(home: Home, port: int, path: str) -> None:
    (home.out / "link.html").symlink_to("../secret.html")
    (home.out / "linked").symlink_to(home.path)
    (home.out / "circle").symlink_to("circle")
    (home.out / "cpu/linkedpage").mkdir()
    (home.out / "cpu/linkedpage/index.html").symlink_to("../../../secret.html")
    response, content = ask(port, path)
    assert response.status == 404
    assert b"hidden words" not in content


def test_a_folder_without_its_slash_leads_to_the_one_with_it(port: int) -> None:
    response, _ = ask(port, "/cpu/tinytorch?x=1")
    assert (response.status, response.headers["Location"]) == (301, "/cpu/tinytorch/?x=1")


def test_a_wheel_that_a_client_has_is_not_sent_again_but_a_page_is(port: int) -> None:
    when = ask(port, WHEEL)[0].headers["Last-Modified"]
    response, content = ask(port, WHEEL, {"If-Modified-Since": when})
    assert (response.status, content) == (304, b"")
    for other in ("Thu, 01 Jan 1970 00:00:00 GMT", "yesterday"):
        assert ask(port, WHEEL, {"If-Modified-Since": other})[0].status == 200
    when = ask(port, "/cpu/tinytorch/")[0].headers["Last-Modified"]
    assert ask(port, "/cpu/tinytorch/", {"If-Modified-Since": when})[0].status == 200


def test_what_is_not_there_is_not_found(home: Home, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(port, "/cpu/<b>/")[0].status == 404
    assert '"GET /cpu/<b>/ HTTP/1.1" 404' in capsys.readouterr().err
    assert ask(port, "/nowhere/", method="HEAD")[1] == b""
    os.mkfifo(home.out / "cpu" / "pipe.whl")
    assert ask(port, "/cpu/pipe.whl")[0].status == 404, "nobody waits for who writes to a pipe"


def test_what_is_no_request_is_refused_without_a_traceback(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    for sent in (
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /\x1b[31mred HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(sent)
            assert client.recv(65536).split(b"\r\n")[0] != b""
    log = capsys.readouterr().err
    assert "Traceback" not in log
    assert "\x1b" not in log


def test_many_clients_are_served_at_once(home: Home, port: int) -> None:
    content = (home.dist / "tinytorch-1.0+cpu-py3-none-any.whl").read_bytes()
    silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(60)]
    try:
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: ask(port, WHEEL), range(60)))
    finally:
        for one in silent:
            one.close()
    assert all((response.status, found) == (200, content) for response, found in answers)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", EVERYBODY])
def test_others_are_served_only_where_that_is_asked(home: Home, host: str) -> None:
    try:
        server = create_server(home.out, "0", host)
    except HostError:
        pytest.skip(f"this machine has no {host}")
    with server:
        known = folder.load_state(home.out)
        assert known is not None
        first, *_ = serve_greeting(home.out, host, 80, known)
        assert ("for this machine alone" in first) == (host != EVERYBODY)
        assert server.server_address[0] == host
        thread = Thread(target=server.handle_request)
        thread.start()
        with socket.create_connection((host, server.server_address[1]), timeout=10) as client:
            client.sendall(b"GET /cpu/ HTTP/1.0\r\n\r\n")
            assert b" 200 OK" in client.recv(100)
        thread.join()


def test_head_tells_without_giving(home: Home, port: int) -> None:
    response, content = ask(port, WHEEL, method="HEAD")
    assert (response.status, content) == (200, b"")
    size = (home.dist / "tinytorch-1.0+cpu-py3-none-any.whl").stat().st_size
    assert response.headers["Content-Length"] == str(size)


def test_only_an_index_is_served(tmp_path: Path, known: Facts) -> None:
    with refused("no-index"):
        serve_index(known, Layout(tmp_path, tmp_path), folder=str(tmp_path))


def test_ports_that_cannot_be_are_refused(home: Home) -> None:
    for wrong in ("http", "-1", "65536", "²"):
        with refused("invalid-port"):
            create_server(home.out, wrong)
    for wrong in ("example.org", "", "127.0.0.1:80"):
        with refused("invalid-host"):
            create_server(home.out, "0", wrong)
    with refused("cannot-listen"):
        create_server(home.out, "", "192.0.2.1")  # nobody's (RFC 5737)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with refused("cannot-listen"):
            create_server(home.out, str(other.getsockname()[1]))


def test_the_task_serves_to_this_machine_alone_until_it_is_interrupted(home: Home) -> None:
    argv = [sys.executable, "-m", "invoke", "serve", "--port", "0"]
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment(home.path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as task:
        try:
            assert task.stdout is not None
            first, *lines = [task.stdout.readline() for _ in range(3)]
            match = re.fullmatch(rf"{home.out} is at http://127\.0\.0\.1:(\d+)/ .*Ctrl-C ends it\n", first)
            assert match, first
            assert ask(int(match[1]), "/cpu/")[0].status == 200
            assert task.stderr is not None
            assert '"GET /cpu/ HTTP/1.1" 200' in task.stderr.readline()
            task.stderr.close()  # as `head` does, and the next requests are answered all the same
            assert [ask(int(match[1]), "/cpu/")[0].status for _ in range(2)] == [200, 200]
            user = in_use.list_processes().within(home.out)
            assert user.startswith(f"in use by process {task.pid} ("), "nobody sees that it is served"
        finally:
            task.send_signal(signal.SIGINT)
            task.wait(60)
    assert task.returncode == 0
    assert f"  uv pip install --index http://127.0.0.1:{match[1]}/cpu/ tinyvision==0.5+cpu\n" in lines
