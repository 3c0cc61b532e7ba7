"""Downloads: logins, limits, and the certificates that are trusted."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.refusals import refused
from tests.support.repeated_steps import downloaded_names
from tests.support.silent_progress import SilentBar
from torchmill.fetch.download import download_file, http_session


class Server(http.server.ThreadingHTTPServer):
    """Redirects to `target` if there is one, else serves four bytes; records the logins it got."""

    target = ""
    users: list[str | None]


class Answer(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.users.append(self.headers.get("Authorization"))
        self.send_response(302 if self.server.target else 200)
        if self.server.target:
            self.send_header("Location", self.server.target)
        self.send_header("Content-Length", "0" if self.server.target else "4")
        self.end_headers()
        if not self.server.target:
            self.wfile.write(b"file")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (http.server's name)
        """Say nothing."""


@contextmanager
def running() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answer) as server:
        server.users = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


def download(url: str, folder: Path) -> Path:
    return download_file(url, folder, SilentBar(), network_hint="wait", refusal_hint="check it")


def test_a_login_is_sent_to_its_host_but_not_after_a_redirect(
    tmp_path: Path,
) -> None:
    with running() as first, running() as other:
        first.target = f"http://localhost:{other.server_port}/a.zip"
        file = download(f"http://me:p%40ss@127.0.0.1:{first.server_port}/a.zip", tmp_path)
    assert file.read_bytes() == b"file"
    assert first.users == ["Basic bWU6cEBzcw=="]
    assert other.users == [None]


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    with running() as server:
        port = server.server_port
    with refused("host-unreachable") as raised:
        download(f"http://me:s3cret@127.0.0.1:{port}/a.zip", tmp_path)
    assert "s3cret" not in str(raised.value)


def test_a_download_longer_than_listed_is_refused(tmp_path: Path) -> None:
    """A host may send without end: nothing of that is kept."""
    sha256 = hashlib.sha256(b"file").hexdigest()
    with running() as server:
        url = f"http://127.0.0.1:{server.server_port}/a.zip"
        with refused("download-too-long"):
            download_file(
                url,
                tmp_path,
                SilentBar(),
                network_hint="wait",
                refusal_hint="check it",
                sha256=sha256,
                size=3,
            )
        assert downloaded_names(tmp_path) == []
        file = download_file(
            url,
            tmp_path,
            SilentBar(),
            network_hint="wait",
            refusal_hint="check it",
            sha256=sha256,
            size=4,
        )
    assert file.read_bytes() == b"file"


def test_the_certificate_file_of_the_system_is_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    company = tmp_path / "company.pem"
    company.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(company))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    with http_session() as session:
        settings = session.merge_environment_settings("https://example.org", {}, False, None, None)
    assert settings["verify"] == str(company)


def test_a_certificate_folder_is_trusted_if_openssl_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL needs hashed names; without them, as on RHEL, requests' own certificates are used."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    (tmp_path / "ca-bundle.crt").touch()
    with http_session() as session:
        assert session.verify is True
    (tmp_path / "3513523f.0").touch()
    with http_session() as session:
        assert session.verify == str(tmp_path)


def test_a_file_that_begins_anew_without_a_validator_cannot_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validator of an earlier try is of another version than the new part."""

    def interrupt(*_: object) -> None:
        raise OSError("interrupted")

    bar = SilentBar()
    monkeypatch.setattr(bar, "update", interrupt)
    (tmp_path / "a.zip.part").write_bytes(b"fi")
    (tmp_path / "a.zip.validator").write_text('"1"')
    with running() as server, pytest.raises(OSError, match="interrupted"):
        download_file(
            f"http://127.0.0.1:{server.server_port}/a.zip",
            tmp_path,
            bar,
            network_hint="wait",
            refusal_hint="check it",
        )
    assert downloaded_names(tmp_path) == ["a.zip.part"]


def test_an_invalid_address_is_refused(tmp_path: Path) -> None:
    with refused("invalid-redirect"):
        download("http://*.example.org/a.zip", tmp_path)
