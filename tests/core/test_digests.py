"""The digest of a file."""

import hashlib
from pathlib import Path

import pytest

from torchmill.core.digests import hash_file


@pytest.mark.parametrize("content", [b"", b"some bytes", bytes(3 << 20)])
def test_the_digest_of_a_file_is_that_of_its_content(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert hash_file(file) == hash_file(str(file)) == hashlib.sha256(content).hexdigest()


def test_a_missing_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hash_file(tmp_path / "gone")
