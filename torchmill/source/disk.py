"""A disk without room, told in one sentence."""

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from torchmill.errors import HostError
from torchmill.quantity import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_full(where: Path) -> HostError:
    """Return the error for a disk without room."""
    existing = next(folder for folder in (where, *where.parents) if folder.exists())
    free = format_bytes(shutil.disk_usage(existing).free)
    return HostError(
        f"the disk of {where} is full ({free} free): make room (`invoke status` shows what builds keep, "
        "`invoke clean` removes it), and run the command again to go on"
    )


@contextlib.contextmanager
def disk_full_told(where: Path) -> Iterator[None]:
    """Raise HostError where what is done inside fills the disk of `where`."""
    try:
        yield
    except shutil.Error as error:  # copytree gathers what went wrong, as text
        if "No space left" in str(error) or "quota exceeded" in str(error):
            raise disk_full(where) from None
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(where) from None
        raise
