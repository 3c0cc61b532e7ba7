"""A file of a provider, downloaded and checked."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from index_server import Index, serving

from torchmill.errors import NetworkError, SourceError
from torchmill.source.request import SilentBar
from torchmill.toolkit.pieces import Piece, fetched

CONTENT = b"a wheel, say"


def piece(url: str, content: bytes = CONTENT) -> Piece:
    digest = hashlib.sha256(content).hexdigest()
    return Piece(
        "pypi", "nvcc", "13.0", "nvcc.whl", url.replace("/simple", "/files/nvcc.whl"), digest, len(content)
    )


def test_a_piece_is_downloaded_once(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        for _ in range(2):
            file = fetched(piece(index.url), tmp_path, SilentBar())
            assert file == tmp_path / "downloads/pypi/nvcc.whl"
            assert file.read_bytes() == CONTENT
        assert len(index.asked) == 1


def test_a_piece_that_is_not_what_the_index_says_goes(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        with pytest.raises(SourceError, match=r"nvcc\.whl is not what the index says .* it was deleted"):
            fetched(piece(index.url, b"something else"), tmp_path, SilentBar())
        assert list((tmp_path / "downloads/pypi").iterdir()) == []
        assert fetched(piece(index.url), tmp_path, SilentBar()).is_file()


def test_what_is_not_there_or_not_reached_is_told(tmp_path: Path) -> None:
    with serving(Index()) as index:
        with pytest.raises(SourceError, match=r"404 .* the index names a file that is not there"):
            fetched(piece(index.url), tmp_path, SilentBar())
        url = index.url
    with pytest.raises(NetworkError, match="name another provider"):
        fetched(piece(url), tmp_path, SilentBar())


def test_what_lies_there_already_is_checked_too(tmp_path: Path) -> None:
    folder = tmp_path / "downloads/pypi"
    folder.mkdir(parents=True)
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        (folder / "nvcc.whl").write_bytes(CONTENT[:-1])
        with pytest.raises(
            SourceError, match=r"nvcc\.whl is not what the index says .*name another provider"
        ):
            fetched(piece(index.url), tmp_path, SilentBar())
        assert fetched(piece(index.url), tmp_path, SilentBar()).read_bytes() == CONTENT


def test_a_piece_of_which_no_digest_is_known_is_not_taken(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        with pytest.raises(SourceError, match=r"is not what the index says .*expected \)"):
            fetched(replace(piece(index.url), sha256=""), tmp_path, SilentBar())
        assert list((tmp_path / "downloads/pypi").iterdir()) == []
