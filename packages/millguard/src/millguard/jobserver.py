"""GNU make's jobserver: a fifo whose bytes are permissions to run one more job.

A client has one job for nothing, takes a byte before each further one, and writes it back when that is
done. Clients are make since 4.4, ninja since 1.13 where it is given no -j, GCC's link-time optimisation
since 13, and nvcc --jobserver; each goes on with its one job where there is no byte. What is offered is for
the policy to say (`policy.spare_tokens`).
"""

import contextlib
import glob
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.version import Version

from millguard.processes import ProgramError, run_program

FIFO_SINCE_MAKE = Version(
    "4.4"
)  # of GNU make: an older one ends with an error when MAKEFLAGS names a fifo
LOST_AFTER_SECONDS = 10.0  # seconds between two searches for clients, while tokens are held
_NAME = "jobs"
_TOKEN = b"+"
_VERSION = re.compile(r"GNU Make (\d+(?:\.\d+)+)")


class TokenPool:
    """The tokens of one build, in a fifo below `folder`.

    Nothing here waits, and nothing raises: without a fifo there is nobody to hold a token.
    """

    def __init__(self, folder: Path) -> None:
        self._fifo = folder / _NAME
        self._file = _open_fifo(self._fifo)
        self._total = 0  # in the fifo, or held by clients
        self._searched = time.monotonic()

    @property
    def held(self) -> int:
        """Return the tokens that clients have taken and not brought back."""
        return max(0, self._total - _waiting_bytes(self._file))

    def offer(self, free: int) -> None:
        """Let `free` tokens lie in the fifo, beside those that are held."""
        if self._file is None:
            return
        lying = _waiting_bytes(self._file)
        self._total = max(self._total, lying)  # one that was given up as lost came back
        if lying < self._total and time.monotonic() - self._searched > LOST_AFTER_SECONDS:
            self.replace_lost()
        with contextlib.suppress(OSError):
            if lying < free:
                self._total += os.write(self._file, _TOKEN * (free - lying))
            elif lying > free:
                self._total -= len(os.read(self._file, lying - free))

    def replace_lost(self) -> None:
        """Give up what is held where no client lives: one that was killed brings nothing back."""
        self._searched = time.monotonic()
        if not _in_use(self._fifo):
            self._total = _waiting_bytes(self._file)

    def close(self) -> None:
        """Let go of the fifo."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@contextlib.contextmanager
def hold_open(folder: Path) -> Iterator[Path | None]:
    """Keep a fifo open for as long as the context lasts; None where the folder takes none.

    make waits for ever on one that nobody has open, so it must not depend on the guard's process alone.
    When the context ends it is emptied first: no new job starts.
    """
    fifo = folder / _NAME
    file = _open_fifo(fifo)
    if file is None:
        yield None
        return
    try:
        yield fifo
    finally:
        withdraw_tokens(fifo)
        os.close(file)


def withdraw_tokens(fifo: Path) -> None:
    """Take back the tokens that lie in a fifo: clients go on with one job each."""
    file = _open_fifo(fifo)
    if file is None:
        return
    with contextlib.suppress(OSError):
        os.read(file, _waiting_bytes(file))
    os.close(file)


def jobserver_environment(fifo: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a build's programs clients of `fifo`, to be laid over `environ`.

    There are none where the make on its PATH would not understand them.
    """
    flags, make = (
        makeflags(environ.get("MAKEFLAGS", ""), fifo),
        shutil.which("make", path=environ.get("PATH")),
    )
    match = _VERSION.search(_version_text(make)) if make else None
    takes_fifo = make is None or (match is not None and Version(match[1]) >= FIFO_SINCE_MAKE)
    return {} if flags is None or not takes_fifo else {"MAKEFLAGS": flags}


def _version_text(make: str) -> str:
    try:
        return run_program([make, "--version"])
    except ProgramError:
        return ""


def makeflags(users: str, fifo: Path) -> str | None:
    """Return a user's MAKEFLAGS with the fifo in them; None where there is no place for it.

    A jobserver that is there already stays, and no client takes a path with a blank.
    """
    if "--jobserver" in users or re.search(r"\s", str(fifo)):
        return None
    options, dashes, variables = users.partition("-- ")  # what follows them are no options
    return f"{options.rstrip()} --jobserver-auth=fifo:{fifo} {dashes}{variables}".strip(" ")


def _open_fifo(fifo: Path) -> int | None:
    """Open a fifo for both directions, so that it keeps what is in it; make it where it is not there."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(fifo, 0o600)
        return os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


def _waiting_bytes(file: int | None) -> int:
    if file is None:
        return 0
    import fcntl
    import termios

    count = bytearray(4)
    fcntl.ioctl(file, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def _in_use(fifo: Path) -> bool:
    """Tell whether a process other than this one and its parent, which keeps it open, has a fifo open.

    Not psutil: of what a process has open, it lists plain files alone.
    """
    if sys.platform != "linux":
        return True  # nothing says so
    path = str(fifo.resolve())
    ours = {str(os.getpid()), str(os.getppid())}
    for link in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - names alone, and fast
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if link.split("/")[2] not in ours and os.readlink(link) == path:  # noqa: PTH115
                return True
    return False
