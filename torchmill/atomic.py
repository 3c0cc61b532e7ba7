"""Write files that appear whole: nobody meets half of one, and who has the old one open goes on with that."""

import os
from pathlib import Path


def write(file: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write `content` to a file in one move, with its permissions (0o755) if they are given.

    Its folder is made where that is missing. Raise OSError where it cannot be written: what was there stays.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            fresh.chmod(mode)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)  # there is one only where something failed
