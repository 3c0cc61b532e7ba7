"""The digest of a file, by which what came, or was made, is known again."""

import hashlib
from pathlib import Path


def sha256(file: Path | str) -> str:
    """Return the sha256 of what a file holds, in hexadecimal. Raise OSError where it cannot be read."""
    with open(file, "rb") as content:  # noqa: PTH123 (a thousand times)
        return hashlib.file_digest(content, "sha256").hexdigest()
