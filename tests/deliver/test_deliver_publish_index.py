"""An index as a target: twine uploads to pypiserver, and pip installs from it."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from tests.support import documented_wheels
from tests.support import publishing_servers as servers
from tests.support.refusals import refused
from torchmill.commands.publish import deliver_files
from torchmill.core.errors import DeliveryError, NetworkError
from torchmill.deliver.publish import targets, upload_set
from torchmill.deliver.publish.index import IndexTarget
from torchmill.deliver.publish.upload_set import UploadFile
from torchmill.wheel import finished_wheel

WHEEL = "tinytorch-1.13.1+cpu-py3-none-any.whl"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documented_wheels.built(tmp_path_factory.mktemp("dist"), "1.13.1+cpu")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with servers.pypiserver(tmp_path / "packages") as url:
        yield url


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return a user's environment without a configuration of twine."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TWINE_USERNAME": servers.USER,
        "TWINE_PASSWORD": servers.PASSWORD,
    }


def files(wheel: Path) -> list[UploadFile]:
    return list(upload_set.upload_files(finished_wheel.read_wheel(wheel), ()))


def publish(wheel: Path, to: str, environ: Mapping[str, str], simple: str = "") -> list[str]:
    outcome = deliver_files(targets.choose_target(to, environ, simple), files(wheel))
    return [text for _, text in outcome]


def test_a_wheel_is_uploaded_once_and_pip_installs_it(
    wheel: Path, url: str, environ: dict[str, str], tmp_path: Path
) -> None:
    assert publish(wheel, url, environ) == [upload_set.UPLOADED]
    assert (tmp_path / "packages" / WHEEL).read_bytes() == wheel.read_bytes()
    assert publish(wheel, url, environ) == [upload_set.PRESENT]
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
    pip += ["--target", str(tmp_path / "site"), "--index-url", f"{url}/simple"]
    argv = [*pip, "tinytorch==1.13.1+cpu"]
    subprocess.run(argv, check=True, capture_output=True, env=environ)
    assert (tmp_path / "site" / "tinytorch" / "__init__.py").is_file()


def test_a_wheel_that_the_index_that_is_read_does_not_list_is_not_replaced(
    wheel: Path, url: str, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "packages" / WHEEL).write_bytes(b"another")
    with refused("simple-differs"):
        publish(wheel, url, environ, f"{url}/nowhere")
    assert (tmp_path / "packages" / WHEEL).read_bytes() == b"another"


def test_without_a_hash_of_the_index_the_bytes_are_compared(
    wheel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    protected = ["update", "list", "download"]
    with servers.pypiserver(packages, hash_algo=None, authenticate=protected) as url:
        assert publish(wheel, url, environ) == [upload_set.UPLOADED]
        assert publish(wheel, url, environ) == [upload_set.PRESENT]
        (packages / WHEEL).write_bytes(b"another")
        with refused("file-exists"):
            publish(wheel, url, environ)
        with refused("index-unreadable"):
            publish(wheel, url, environ | {"TWINE_PASSWORD": ""})


class Pages(BaseHTTPRequestHandler):
    """A page that links to a wheel on another server, and an answer that is no page."""

    other_server = ""
    requests: ClassVar[list[tuple[str, str | None]]] = []

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        """Print nothing."""

    def do_GET(self) -> None:
        self.requests.append((self.headers["Host"], self.headers["Authorization"]))
        link = f'<a href="{self.other_server}/{WHEEL}">{WHEEL}</a>'
        content = b"another" if self.path.endswith(".whl") else link.encode()
        self.send_response(200)
        if "json" in self.path:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def test_a_password_goes_to_the_index_alone(wheel: Path, environ: dict[str, str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        Pages.other_server = url.replace("127.0.0.1", "localhost")
        with refused("file-exists"):
            publish(wheel, f"{url}/", environ)
        with refused("index-unreadable"):
            publish(wheel, f"{url}/", environ, f"{url}/json")
        server.shutdown()
    page, file, *_ = Pages.requests
    page_host, page_login = page
    file_host, file_login = file
    assert page_host.split(":")[0] == "127.0.0.1"
    assert file_host.split(":")[0] == "localhost"
    assert page_login
    assert file_login is None


def test_a_wrong_password_is_reported_without_the_password(
    wheel: Path, url: str, environ: dict[str, str]
) -> None:
    with refused("upload-refused") as error:
        publish(wheel, url, environ | {"TWINE_PASSWORD": "wrong secret"})
    assert "wrong secret" not in str(error.value)


@pytest.mark.parametrize("size", [0, 1, 700])
def test_a_partial_upload_is_completed_if_the_index_allows_it(
    wheel: Path, environ: dict[str, str], tmp_path: Path, size: int
) -> None:
    file = tmp_path / "packages" / WHEEL
    with servers.pypiserver(tmp_path / "packages") as url:
        file.write_bytes(wheel.read_bytes()[:size])
        with refused("half-upload"):
            publish(wheel, url, environ)
        assert file.stat().st_size == size
    with servers.pypiserver(tmp_path / "packages", overwrite=True) as url:
        assert publish(wheel, url, environ) == [upload_set.UPLOADED]
        assert publish(wheel, url, environ) == [upload_set.PRESENT]
    assert file.read_bytes() == wheel.read_bytes()


def test_a_password_of_one_letter_hides_the_words_of_the_index(
    wheel: Path, url: str, environ: dict[str, str]
) -> None:
    with refused("upload-refused") as error:
        publish(wheel, url, environ | {"TWINE_PASSWORD": "e"})
    assert "***" not in str(error.value)
    assert "403" in str(error.value)


def test_an_upload_that_the_index_does_not_list_is_not_proven(
    wheel: Path, url: str, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHMILL_SILENCE", "1")
    (tmp_path / "other").mkdir()
    with (
        servers.pypiserver(tmp_path / "other", disable_fallback=True) as other,
        refused("upload-unproved"),
    ):
        publish(wheel, url, environ, f"{other}/simple")


def test_a_section_of_pypirc_names_the_index_and_the_user(
    wheel: Path, url: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / ".pypirc").write_text(
        "[distutils]\nindex-servers = own\n"
        f"[own]\nrepository: {url}\nusername: {servers.USER}\npassword: {servers.PASSWORD}\n"
    )
    variables = {name: value for name, value in environ.items() if not name.startswith("TWINE_")}
    variables["TWINE_REPOSITORY_URL"] = "http://127.0.0.1:9"  # twine prefers it to a section
    assert publish(wheel, "pypirc:own", variables) == [upload_set.UPLOADED]
    with refused("unknown-repository"):
        targets.choose_target("pypirc:other", variables)
    secret = url.replace("://", "://me:s3cret@")
    (tmp_path / ".pypirc").write_text(
        f"[own]\nrepository: {secret}\n[wrong]\nrepository: {secret}:x/\n"
    )
    login = {"TWINE_USERNAME": "me", "TWINE_PASSWORD": "wrong"}
    target = targets.choose_target("pypirc:own", {**variables, **login})
    assert target.name == url
    with pytest.raises(DeliveryError) as refusal:
        target.upload(files(wheel)[0])
    with refused("invalid-url") as caught:
        targets.choose_target("pypirc:wrong", variables)
    assert "s3cret" not in f"{refusal.value} {caught.value}"


def test_an_unreachable_index_is_an_error_of_the_network(
    wheel: Path, environ: dict[str, str]
) -> None:
    unreachable = "http://127.0.0.1:9"  # the port of discard, which nobody serves
    with pytest.raises(NetworkError):
        publish(wheel, unreachable, environ)
    with refused("host-unreachable"):
        targets.choose_target(unreachable, environ).upload(files(wheel)[0])


class Refusing(BaseHTTPRequestHandler):
    """An index that refuses uploads with truncated JSON that looks like a report."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited
        """Print nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(400, "No room")
        self.end_headers()
        self.wfile.write(b'{"kind": "Status", "status')


def test_json_of_an_index_is_not_read_as_the_report(wheel: Path, environ: dict[str, str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        target = targets.choose_target(f"http://127.0.0.1:{server.server_port}/", environ)
        with refused("upload-refused") as caught:
            target.upload(files(wheel)[0])
        server.shutdown()
    assert "400 No room" in str(caught.value)


def test_a_file_that_may_be_too_large_for_pypi_has_a_warning(
    url: str, environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = files(documented_wheels.built(tmp_path / "dist", "1.13.1"))
    limit = 100 * 2**20
    fitting = UploadFile(file.path, file.sha256, limit, file.wheel)
    large = UploadFile(file.path, file.sha256, limit + 1, file.wheel)
    pypi = targets.choose_target("https://upload.pypi.org/legacy/", environ, f"{url}/simple")
    assert deliver_files(pypi, [fitting], dry_run=True) == [(fitting, upload_set.ABSENT)]
    deliver_files(targets.choose_target(url, environ), [large], dry_run=True)
    assert capsys.readouterr().err == "", "another index may take more"
    assert deliver_files(pypi, [large], dry_run=True) == [(large, upload_set.ABSENT)]
    assert (
        "has 100.0 MiB: https://upload.pypi.org/legacy/ takes 100.0 MiB a file, unless it granted"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "to", ["https://upload.pypi.org/legacy/", "https://test.pypi.org/legacy/", "pypirc:pypi"]
)
def test_the_public_index_takes_no_local_version_and_no_plain_linux(
    to: str, wheel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    target = targets.choose_target(to, environ)
    assert isinstance(target, IndexTarget)
    assert "no local versions" in str(target.complaint(files(wheel)[0]))
    plain = documented_wheels.built(tmp_path / "dist", "1.13.1", tag="cp310-cp310-linux_x86_64")
    assert "only for manylinux" in str(target.complaint(files(plain)[0]))
    many = documented_wheels.built(
        tmp_path / "dist", "1.13.1", tag="cp310-cp310-manylinux_2_28_x86_64"
    )
    assert target.complaint(files(many)[0]) is None
    with refused("target-refuses"):
        publish(wheel, to, environ)
    other_index = targets.choose_target("https://own.example/legacy/", environ)
    assert other_index.complaint(files(wheel)[0]) is None


def test_a_password_of_pypirc_is_not_shown_if_another_server_is_read(
    wheel: Path, tmp_path: Path
) -> None:
    section = (
        "[distutils]\nindex-servers = x\n[x]\nrepository = https://up.example/\nusername = me\n"
    )
    (tmp_path / ".pypirc").write_text(f"{section}password = hunter2-very-long\n")
    environ = {"HOME": str(tmp_path)}
    target = IndexTarget.from_address("pypirc:x", "https://read.example/simple", environ)
    report = {"kind": "HTTPError", "status": 403, "text": "invalid login me:hunter2-very-long"}
    error = target._upload_error(files(wheel)[0], json.dumps(report))
    assert "hunter2" not in str(error)
