"""The digest of a file."""

import hashlib
from pathlib import Path

import pytest

from torchmill.digests import sha256


@pytest.mark.parametrize("content", [b"", b"some bytes", bytes(3 << 20)])
def test_a_file_has_the_digest_of_what_it_holds(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert sha256(file) == sha256(str(file)) == hashlib.sha256(content).hexdigest()


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sha256(tmp_path / "gone")
