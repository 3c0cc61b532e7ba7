"""Write files as a zip, the same bytes for the same files."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchmill.errors import HostError
from torchmill.guard import limits
from torchmill.pack import deflate, wheel
from torchmill.pack.archive import Archive
from torchmill.pack.content import read
from torchmill.pack.kept import Kept
from torchmill.pack.press import Press

EPOCH = time.gmtime(wheel.EPOCH)


def write(archive: Path, top: str, files: Mapping[str, Path], texts: Mapping[str, str], members: Path) -> str:
    """Write `files` and `texts`, by their place below the folder `top`, and return the archive's sha256.

    Compressed members are kept in the folder `members`, and copied from there. Raises HostError where the
    disk refuses it.
    """
    codec, threads = deflate.best(), limits.cores().count
    pool = ThreadPoolExecutor(threads)
    try:
        with archive.open("wb") as sink:
            whole = Archive(sink, EPOCH)
            press = Press(pool, threads, codec, Kept(members, str(codec)))
            listed = [wheel.file(f"{top}/{name}", path, path.stat()) for name, path in sorted(files.items())]
            deque(press.fill(whole, listed), 0)
            for name, text in sorted(texts.items()):
                press.add(whole, f"{top}/{name}", text.encode())
            whole.close()
    except OSError as error:
        raise HostError(
            f"{archive}: cannot be written ({error.strerror or error}): free some space"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
    return read(archive).sha256.hex()
