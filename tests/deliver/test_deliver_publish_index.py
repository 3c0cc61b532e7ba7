"""An index: pypiserver, uploaded to by twine, installed from by pip."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from tests.support import publishing_servers as servers
from tests.support import told_wheels
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
    return told_wheels.built(tmp_path_factory.mktemp("dist"), "1.13.1+cpu")


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
    return [said for _, said in outcome]


def test_a_wheel_goes_up_once_and_pip_installs_it(
    wheel: Path, url: str, environ: dict[str, str], tmp_path: Path
) -> None:
    assert publish(wheel, url, environ) == [upload_set.UPLOADED]
    assert (tmp_path / "packages" / WHEEL).read_bytes() == wheel.read_bytes()
    assert publish(wheel, url, environ) == [upload_set.PRESENT]
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
    target = [
        "--target",
        str(tmp_path / "site"),
        "--index-url",
        f"{url}/simple",
        "tinytorch==1.13.1+cpu",
    ]
    subprocess.run([*pip, *target], check=True, capture_output=True, env=environ)
    assert (tmp_path / "site" / "tinytorch" / "__init__.py").is_file()


def test_another_wheel_of_the_name_is_refused(
    wheel: Path, url: str, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "packages" / WHEEL).write_bytes(b"another")
    with refused("file-exists"):
        publish(wheel, url, environ)
    # where the index is read is not where it is written: its own refusal holds
    with refused("simple-differs"):
        publish(wheel, url, environ, f"{url}/nowhere")
    assert (tmp_path / "packages" / WHEEL).read_bytes() == b"another"


def test_where_the_index_tells_no_hash_the_file_is_compared(
    wheel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    every = ["update", "list", "download"]  # all of it needs the password
    with servers.pypiserver(packages, hash_algo=None, authenticate=every) as url:
        assert publish(wheel, url, environ) == [upload_set.UPLOADED]
        assert publish(wheel, url, environ) == [upload_set.PRESENT]
        (packages / WHEEL).write_bytes(b"another")
        with refused("file-exists"):
            publish(wheel, url, environ)
        with refused("index-unreadable"):
            publish(wheel, url, environ | {"TWINE_PASSWORD": ""})


class Pages(BaseHTTPRequestHandler):
    """A page that names a wheel of another server; and what is no page at all."""

    elsewhere = ""
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""

    def do_GET(self) -> None:
        self.asked.append((self.headers["Host"], self.headers["Authorization"]))
        link = f'<a href="{self.elsewhere}/{WHEEL}">{WHEEL}</a>'
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
        Pages.elsewhere = url.replace("127.0.0.1", "localhost")
        with refused("file-exists"):
            publish(wheel, f"{url}/", environ)
        with refused("index-unreadable"):
            publish(wheel, f"{url}/", environ, f"{url}/json")
        server.shutdown()
    (page, said), (file, silent), *_ = Pages.asked
    assert (page.split(":")[0], file.split(":")[0]) == ("127.0.0.1", "localhost")
    assert (bool(said), silent) == (True, None)


def test_a_wrong_password_is_said_and_never_shown(
    wheel: Path, url: str, environ: dict[str, str]
) -> None:
    with refused("upload-refused") as error:
        publish(wheel, url, environ | {"TWINE_PASSWORD": "wrong secret"})
    assert "wrong secret" not in str(error.value)


@pytest.mark.parametrize("kept", [0, 1, 700])
def test_half_an_upload_is_mended_where_the_index_allows(
    wheel: Path, environ: dict[str, str], tmp_path: Path, kept: int
) -> None:
    half = tmp_path / "packages" / WHEEL
    with servers.pypiserver(tmp_path / "packages") as url:
        half.write_bytes(wheel.read_bytes()[:kept])
        with refused("half-upload"):
            publish(wheel, url, environ)
        assert half.stat().st_size == kept
    with servers.pypiserver(tmp_path / "packages", overwrite=True) as url:
        assert publish(wheel, url, environ) == [upload_set.UPLOADED]
        assert publish(wheel, url, environ) == [upload_set.PRESENT]
    assert half.read_bytes() == wheel.read_bytes()


def test_a_password_of_one_letter_spoils_no_message(
    wheel: Path, url: str, environ: dict[str, str]
) -> None:
    with refused("upload-refused") as error:
        publish(wheel, url, environ | {"TWINE_PASSWORD": "e"})
    assert "***" not in str(error.value)
    assert "403" in str(error.value)


def test_an_index_that_does_not_list_what_it_took_proves_nothing(
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
        "[distutils]\nindex-servers = mine\n"
        f"[mine]\nrepository: {url}\nusername: {servers.USER}\npassword: {servers.PASSWORD}\n"
    )
    said = {name: value for name, value in environ.items() if not name.startswith("TWINE_")}
    said["TWINE_REPOSITORY_URL"] = "http://127.0.0.1:9"  # twine would go there in any case
    assert publish(wheel, "pypirc:mine", said) == [upload_set.UPLOADED]
    with refused("unknown-repository"):
        targets.choose_target("pypirc:other", said)
    secret = url.replace("://", "://me:s3cret@")
    (tmp_path / ".pypirc").write_text(
        f"[mine]\nrepository: {secret}\n[wrong]\nrepository: {secret}:x/\n"
    )
    place = targets.choose_target(
        "pypirc:mine", {**said, "TWINE_USERNAME": "me", "TWINE_PASSWORD": "wrong"}
    )
    assert place.name == url
    with pytest.raises(DeliveryError) as unsafe:
        place.upload(files(wheel)[0])
    with refused("invalid-url") as caught:
        targets.choose_target("pypirc:wrong", said)
    assert "s3cret" not in f"{unsafe.value} {caught.value}"


def test_an_index_that_is_gone_is_a_matter_of_the_network(
    wheel: Path, environ: dict[str, str]
) -> None:
    gone = "http://127.0.0.1:9"  # the port of discard, which nobody serves
    with pytest.raises(NetworkError):
        publish(wheel, gone, environ)
    with refused("host-unreachable"):
        targets.choose_target(gone, environ).upload(files(wheel)[0])


class Refusing(BaseHTTPRequestHandler):
    """An index that has nothing and takes nothing, and says so in JSON that is cut off."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(400, "No room")
        self.end_headers()
        self.wfile.write(b'{"kind": "Status", "status')


def test_what_an_index_says_in_json_is_not_taken_for_the_report(
    wheel: Path, environ: dict[str, str]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        place = targets.choose_target(f"http://127.0.0.1:{server.server_port}/", environ)
        with refused("upload-refused") as caught:
            place.upload(files(wheel)[0])
        server.shutdown()
    assert "400 No room" in str(caught.value)


def test_what_pypi_may_find_too_large_is_said_before_it_is_uploaded(
    url: str, environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = files(told_wheels.built(tmp_path / "dist", "1.13.1"))
    large, fitting = (
        UploadFile(one.path, one.sha256, size, one.wheel) for size in (100 * 2**20 + 1, 100 * 2**20)
    )
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
    place = targets.choose_target(to, environ)
    assert isinstance(place, IndexTarget)
    assert "no local versions" in str(place.complaint(files(wheel)[0]))
    plain = told_wheels.built(tmp_path / "dist", "1.13.1", tag="cp310-cp310-linux_x86_64")
    assert "only for manylinux" in str(place.complaint(files(plain)[0]))
    many = told_wheels.built(tmp_path / "dist", "1.13.1", tag="cp310-cp310-manylinux_2_28_x86_64")
    assert place.complaint(files(many)[0]) is None
    with refused("target-refuses"):
        publish(wheel, to, environ)
    assert (
        targets.choose_target("https://mine.example/legacy/", environ).complaint(files(wheel)[0])
        is None
    )


def test_a_password_of_pypirc_is_not_shown_where_another_server_is_read(
    wheel: Path, tmp_path: Path
) -> None:
    section = (
        "[distutils]\nindex-servers = x\n[x]\nrepository = https://up.example/\nusername = me\n"
    )
    (tmp_path / ".pypirc").write_text(f"{section}password = hunter2-very-long\n")
    environ = {"HOME": str(tmp_path)}
    target = IndexTarget.from_address("pypirc:x", "https://read.example/simple", environ)
    said = json.dumps(
        {"kind": "HTTPError", "status": 403, "text": "invalid login me:hunter2-very-long"}
    )
    assert "hunter2" not in str(target._upload_error(files(wheel)[0], said))
