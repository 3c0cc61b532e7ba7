"""Digests of files."""

import hashlib
from pathlib import Path


def hash_file(file: Path | str) -> str:
    """Return the sha256 of a file's content, in hexadecimal.

    Raises OSError if the file cannot be read.
    """
    with open(file, "rb") as content:  # noqa: PTH123 - called a thousand times in a row
        return hashlib.file_digest(content, "sha256").hexdigest()
