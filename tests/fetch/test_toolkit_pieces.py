"""A file of a provider, downloaded and checked."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.index_server import Index, serving
from torchmill.config.delivery_model import ProviderPackage
from torchmill.core.errors import NetworkError, SourceError
from torchmill.fetch.source.request import SilentFetchBar
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
            file = fetch_piece(piece(index.url), tmp_path, SilentFetchBar())
            assert file == tmp_path / "downloads/pypi/nvcc.whl"
            assert file.read_bytes() == CONTENT
        assert len(index.asked) == 1


def test_a_piece_that_is_not_what_the_index_says_goes(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        with pytest.raises(SourceError, match=r"nvcc\.whl is not what the index says .* it was deleted"):
            fetch_piece(piece(index.url, b"something else"), tmp_path, SilentFetchBar())
        assert list((tmp_path / "downloads/pypi").iterdir()) == []
        assert fetch_piece(piece(index.url), tmp_path, SilentFetchBar()).is_file()


def test_what_is_not_there_or_not_reached_is_told(tmp_path: Path) -> None:
    with serving(Index()) as index:
        with pytest.raises(SourceError, match=r"404 .* the index names a file that is not there"):
            fetch_piece(piece(index.url), tmp_path, SilentFetchBar())
        url = index.url
    with pytest.raises(NetworkError, match="name another provider"):
        fetch_piece(piece(url), tmp_path, SilentFetchBar())


def test_what_lies_there_already_is_checked_too(tmp_path: Path) -> None:
    folder = tmp_path / "downloads/pypi"
    folder.mkdir(parents=True)
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        (folder / "nvcc.whl").write_bytes(CONTENT[:-1])
        with pytest.raises(
            SourceError, match=r"nvcc\.whl is not what the index says .*name another provider"
        ):
            fetch_piece(piece(index.url), tmp_path, SilentFetchBar())
        assert fetch_piece(piece(index.url), tmp_path, SilentFetchBar()).read_bytes() == CONTENT


def test_a_piece_of_which_no_digest_is_known_is_not_taken(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        with pytest.raises(SourceError, match=r"is not what the index says .*expected \)"):
            fetch_piece(replace(piece(index.url), sha256=""), tmp_path, SilentFetchBar())
        assert list((tmp_path / "downloads/pypi").iterdir()) == []
