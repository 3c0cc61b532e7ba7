"""`invoke index --official`: wheels at another index, beside one's own, by reference."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from press_support import written_wheels

from tests.support.index_server import Index, serving, wheel
from tests.support.made_index import Home, install, installed, served
from tests.support.refusals import refused
from torchmill.config.facts import Facts

VISION = "tinyvision-0.5-py3-none-any.whl"
PROVENANCE = "https://index.example/tinyvision/provenance"


def add_wheel(index: Index, name: str, content: bytes, **attributes: object) -> None:
    """Put a wheel and its METADATA on an index, as PyPI has them."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (member,) = (item for item in archive.namelist() if item.endswith("/METADATA"))
        metadata = archive.read(member)
    digest = hashlib.sha256(content).hexdigest()
    fields = {"hashes": {"sha256": digest}, "size": len(content)} | attributes
    index.add(name, content, **fields)
    index.add(f"{name}.metadata", metadata)


def whole_wheel(tmp_path: Path, version: str = "0.5") -> bytes:
    return written_wheels.made(tmp_path / "there", "tinyvision", version).read_bytes()


@pytest.fixture
def home(tmp_path: Path, small_facts: Facts) -> Home:
    written_wheels.made(tmp_path / "dist", "tinytorch", "1.0")
    return Home(tmp_path, small_facts)


def test_official_wheels_stand_beside_ones_own(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index()
    content = whole_wheel(tmp_path)
    add_wheel(index, VISION, content, provenance=PROVENANCE)
    add_wheel(index, "tinyvision-0.6-py3-none-any.whl", whole_wheel(tmp_path, "0.6"))
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        home.index(official=["tinyvision==0.5"])
        (file,) = home.page("tinyvision")["files"]
        assert file["filename"] == VISION
        assert file["url"].startswith(f"{index.url.removesuffix('/simple')}/files/")
        assert file["hashes"] == {"sha256": hashlib.sha256(content).hexdigest()}
        assert file["size"] == len(content)
        assert file["provenance"] == PROVENANCE
        metadata = index.files[f"{VISION}.metadata"]
        assert file["core-metadata"] == {"sha256": hashlib.sha256(metadata).hexdigest()}
        assert not list(home.out.rglob("tinyvision*.whl"))
        with served(home.out) as port:
            url = f"http://127.0.0.1:{port}/"
            for client in ("pip", "uv"):
                into = tmp_path / client
                install(client, into, ["--index-url", url, "tinyvision==0.5", "tinytorch==1.0"])
                assert installed(into) == {"tinyvision-0.5", "tinytorch-1.0"}
        again = home.told(official=["tinyvision==0.5"])
        assert (again["written"], again["removed"]) == ([], [])
        removed = home.told()["removed"]
        assert "tinyvision/index.html" in removed


def test_ones_own_wheel_may_be_older_than_the_official_ones_that_are_kept(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index()
    content = written_wheels.made(tmp_path / "there", "tinytorch", "2.0").read_bytes()
    add_wheel(index, "tinytorch-2.0-py3-none-any.whl", content)
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        text = home.index(official=["tinytorch==2.0"], keep="1")
    assert "no wheels of its own" in text
    assert "left out, not of the newest 1: tinytorch-1.0-py3-none-any.whl" in text
    assert home.names("tinytorch") == ["tinytorch-2.0-py3-none-any.whl"]


def test_metadata_is_read_in_the_wheel_if_it_is_not_beside_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyPI has none beside torchvision's wheels, whose WHEEL names another tag than the file."""
    index = Index()
    add_wheel(index, VISION, whole_wheel(tmp_path))
    del index.files[f"{VISION}.metadata"]
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        home.index(official=["tinyvision==0.5"])
    (file,) = home.page("tinyvision")["files"]
    assert file["filename"] == VISION
    assert "core-metadata" not in file


def test_what_cannot_be_referred_to_is_refused(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index()
    content = whole_wheel(tmp_path)
    add_wheel(index, VISION, content)
    index.add("bare-1.0-py3-none-any.whl", wheel("bare", "1.0"))
    add_wheel(index, "renamed-2.0-py3-none-any.whl", wheel("other", "1.0"))
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        for pin, error in (
            ("tinyvision==9.9", "no-such-wheel"),
            ("tinyvision", "invalid-yank"),
            ("bare==1.0", "no-digest"),
            ("renamed==2.0", "renamed-wheel"),
        ):
            with refused(error):
                home.index(official=[pin])
        (home.dist / VISION).write_bytes(content)
        with refused("same-wheel-twice"):
            home.index(official=["tinyvision==0.5"])
