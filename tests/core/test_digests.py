"""The digest of a file."""

import hashlib
from pathlib import Path

import pytest

from torchmill.core.digests import hash_file


@pytest.mark.parametrize("content", [b"", b"some bytes", bytes(3 << 20)])
def test_a_file_has_the_digest_of_what_it_holds(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert hash_file(file) == hash_file(str(file)) == hashlib.sha256(content).hexdigest()


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hash_file(tmp_path / "gone")
