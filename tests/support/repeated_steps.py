"""How often steps of the network are tried in a test, and what downloads leave."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchmill.core.retries import TRIES_VARIABLE


@contextmanager
def one_try() -> Iterator[None]:
    """Repeat nothing in the block, so that the first failure shows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(TRIES_VARIABLE, "1")
        yield


def downloaded_names(folder: Path) -> list[str]:
    """Return the names in a folder of downloads, without the locks, which are never removed."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")
