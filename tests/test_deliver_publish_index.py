"""An index: pypiserver, uploaded to by twine, installed from by pip."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import publishing_servers as servers
import pytest
import told_wheels

from torchwright.deliver import distributions
from torchwright.deliver.publish import orders, parcel, places
from torchwright.deliver.publish.index import Index
from torchwright.deliver.publish.parcel import File
from torchwright.errors import ConfigError, DeliveryError, NetworkError

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


def files(wheel: Path) -> list[File]:
    return list(parcel.of(distributions.read(wheel), ()))


def publish(wheel: Path, to: str, environ: Mapping[str, str], simple: str = "") -> list[str]:
    outcome = orders.delivered(places.chosen(to, environ, simple), files(wheel), rehearsed=False)
    return [said for _, said in outcome.files]


def test_a_wheel_goes_up_once_and_pip_installs_it(
    wheel: Path, url: str, environ: dict[str, str], tmp_path: Path
) -> None:
    assert publish(wheel, url, environ) == [parcel.UPLOADED]
    assert (tmp_path / "packages" / WHEEL).read_bytes() == wheel.read_bytes()
    assert publish(wheel, url, environ) == [parcel.THERE]
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
    target = ["--target", str(tmp_path / "site"), "--index-url", f"{url}/simple", "tinytorch==1.13.1+cpu"]
    subprocess.run([*pip, *target], check=True, capture_output=True, env=environ)
    assert (tmp_path / "site" / "tinytorch" / "__init__.py").is_file()


def test_another_wheel_of_the_name_is_refused(
    wheel: Path, url: str, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "packages" / WHEEL).write_bytes(b"another")
    with pytest.raises(DeliveryError, match="never replaced"):
        publish(wheel, url, environ)
    # where the index is read is not where it is written: its own refusal holds
    with pytest.raises(DeliveryError, match="--simple where it is read"):
        publish(wheel, url, environ, f"{url}/nowhere")
    assert (tmp_path / "packages" / WHEEL).read_bytes() == b"another"


def test_a_wrong_password_is_said_and_never_shown(wheel: Path, url: str, environ: dict[str, str]) -> None:
    with pytest.raises(DeliveryError, match="403") as error:
        publish(wheel, url, environ | {"TWINE_PASSWORD": "wrong secret"})
    assert "wrong secret" not in str(error.value)


def test_a_section_of_pypirc_names_the_index_and_the_user(
    wheel: Path, url: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / ".pypirc").write_text(
        "[distutils]\nindex-servers = mine\n"
        f"[mine]\nrepository: {url}\nusername: {servers.USER}\npassword: {servers.PASSWORD}\n"
    )
    said = {name: value for name, value in environ.items() if not name.startswith("TWINE_")}
    said["TWINE_REPOSITORY_URL"] = "http://127.0.0.1:9"  # twine would go there in any case
    assert publish(wheel, "pypirc:mine", said) == [parcel.UPLOADED]
    with pytest.raises(ConfigError, match="knows mine, pypi, testpypi"):
        places.chosen("pypirc:other", said)


def test_an_index_that_is_gone_is_a_matter_of_the_network(wheel: Path, environ: dict[str, str]) -> None:
    gone = "http://127.0.0.1:9"  # the port of discard, which nobody serves
    with pytest.raises(NetworkError):
        publish(wheel, gone, environ)
    with pytest.raises(NetworkError, match="run the command again"):
        places.chosen(gone, environ).put(files(wheel)[0])


@pytest.mark.parametrize(
    "to", ["https://upload.pypi.org/legacy/", "https://test.pypi.org/legacy/", "pypirc:pypi"]
)
def test_the_public_index_takes_no_local_version_and_no_plain_linux(
    to: str, wheel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    place = places.chosen(to, environ)
    assert isinstance(place, Index)
    assert "no local versions" in str(place.complaint(files(wheel)[0]))
    plain = told_wheels.built(tmp_path / "dist", "1.13.1", tag="cp310-cp310-linux_x86_64")
    assert "only for manylinux" in str(place.complaint(files(plain)[0]))
    many = told_wheels.built(tmp_path / "dist", "1.13.1", tag="cp310-cp310-manylinux_2_28_x86_64")
    assert place.complaint(files(many)[0]) is None
    with pytest.raises(DeliveryError, match="nothing is published"):
        publish(wheel, to, environ)
    assert places.chosen("https://mine.example/legacy/", environ).complaint(files(wheel)[0]) is None
