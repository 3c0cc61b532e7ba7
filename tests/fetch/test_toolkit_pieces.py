"""A file of a provider, downloaded and checked."""

import hashlib
from dataclasses import replace
from pathlib import Path

from tests.support.index_server import Index, serving
from tests.support.refusals import refused
from tests.support.silent_progress import SilentBar
from torchmill.config.delivery_model import ProviderPackage
from torchmill.fetch.toolkit.store import fetch_piece

CONTENT = b"a wheel, say"


def piece(url: str, content: bytes = CONTENT) -> ProviderPackage:
    digest = hashlib.sha256(content).hexdigest()
    return ProviderPackage(
        "pypi", "nvcc", "13.0", "nvcc.whl", url.replace("/simple", "/files/nvcc.whl"), digest, len(content)
    )


def test_a_piece_is_downloaded_once(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        for _ in range(2):
            file = fetch_piece(piece(index.url), tmp_path, SilentBar())
            assert file == tmp_path / "downloads/pypi/nvcc.whl"
            assert file.read_bytes() == CONTENT
        assert len(index.asked) == 1


def test_a_piece_that_is_not_what_the_index_says_goes(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        with refused("wrong-digest"):
            fetch_piece(piece(index.url, b"something else"), tmp_path, SilentBar())
        assert list((tmp_path / "downloads/pypi").iterdir()) == []
        assert fetch_piece(piece(index.url), tmp_path, SilentBar()).is_file()


def test_what_is_not_there_or_not_reached_is_told(tmp_path: Path) -> None:
    with serving(Index()) as index:
        with refused("download-refused"):
            fetch_piece(piece(index.url), tmp_path, SilentBar())
        url = index.url
    with refused("host-unreachable"):
        fetch_piece(piece(url), tmp_path, SilentBar())


def test_what_lies_there_already_is_checked_too(tmp_path: Path) -> None:
    folder = tmp_path / "downloads/pypi"
    folder.mkdir(parents=True)
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        (folder / "nvcc.whl").write_bytes(CONTENT[:-1])
        with refused("wrong-digest"):
            fetch_piece(piece(index.url), tmp_path, SilentBar())
        assert fetch_piece(piece(index.url), tmp_path, SilentBar()).read_bytes() == CONTENT


def test_a_piece_of_which_no_digest_is_known_is_not_taken(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        with refused("wrong-digest"):
            fetch_piece(replace(piece(index.url), sha256=""), tmp_path, SilentBar())
        assert list((tmp_path / "downloads/pypi").iterdir()) == []
