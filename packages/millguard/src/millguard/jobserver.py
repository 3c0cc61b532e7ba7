"""GNU make's jobserver: a fifo whose bytes are permissions to run one more job.

A client may always run one job. It takes a byte (a token) before each further one, and writes it
back at its end. Clients are make since 4.4, ninja since 1.13 without -j, GCC's link-time
optimisation since 13, and nvcc --jobserver; each goes on with its one job if there is no token. The
policy decides how many are offered (`policy.spare_tokens`).

https://www.gnu.org/software/make/manual/html_node/POSIX-Jobserver.html
"""

import contextlib
import glob
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.version import Version

from millguard.processes import ProgramError, run_program

# Not when they are used: no descriptor may be left then, to load them by.
if sys.platform != "win32":
    import fcntl
    import termios

# An older make ends with an error if MAKEFLAGS names a fifo.
FIFO_SINCE_MAKE = Version("4.4")
SEARCH_INTERVAL_SECONDS = 10.0  # between two searches for clients, while tokens are held
_NAME = "jobs"
_TOKEN = b"+"
_VERSION = re.compile(r"GNU Make (\d+(?:\.\d+)+)")


class TokenPool:
    """The tokens of one build, in a fifo below `folder`.

    No method blocks or raises OSError: without a fifo there is no client to hold a token, and the
    system can always count the bytes of an open fifo.
    """

    def __init__(self, folder: Path) -> None:
        self._fifo = folder / _NAME
        self._file = _make_fifo(self._fifo)
        self._total = 0  # tokens in the fifo, or held by clients
        self._searched_at = time.monotonic()

    @property
    def held(self) -> int:
        """Return how many tokens clients have taken and not written back."""
        return max(0, self._total - _waiting_bytes(self._file))

    def offer(self, free: int) -> None:
        """Let `free` tokens lie in the fifo, in addition to those that are held."""
        if self._file is None:
            return
        waiting = _waiting_bytes(self._file)
        # More lie in the fifo than were offered if a client has written back tokens that were given
        # up as lost. They count again, and the surplus is taken out below.
        self._total = max(self._total, waiting)
        search_is_due = time.monotonic() - self._searched_at > SEARCH_INTERVAL_SECONDS
        if waiting < self._total and search_is_due:
            self.forget_lost()
        with contextlib.suppress(OSError):
            if waiting < free:
                self._total += os.write(self._file, _TOKEN * (free - waiting))
            elif waiting > free:
                self._total -= len(os.read(self._file, waiting - free))

    def forget_lost(self) -> None:
        """Give up the held tokens if no client lives: a killed one writes nothing back."""
        self._searched_at = time.monotonic()
        if not _in_use(self._fifo):
            self._total = _waiting_bytes(self._file)

    def close(self) -> None:
        """Close the fifo."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@contextlib.contextmanager
def hold_open(folder: Path) -> Iterator[Path | None]:
    """Keep a fifo open for as long as the context lasts; None if there can be no fifo in `folder`.

    make waits for ever on a fifo that nobody has open. So the process that starts the build holds it
    open, too: the guard's own process may die. At the end of the context the fifo is emptied first, so
    that no new job starts.
    """
    fifo = folder / _NAME
    file = _make_fifo(fifo)
    if file is None:
        yield None
        return
    try:
        yield fifo
    finally:
        withdraw_tokens(fifo)
        os.close(file)


def withdraw_tokens(fifo: Path) -> None:
    """Take back the tokens in a fifo: clients go on with one job each."""
    file = _open_fifo(fifo)
    if file is None:
        return
    with contextlib.suppress(OSError):
        os.read(file, _waiting_bytes(file))
    os.close(file)


def jobserver_environment(fifo: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a build's programs clients of `fifo`, to add to `environ`.

    There are none if the make on the PATH of `environ` would not understand them.
    """
    flags = makeflags(environ.get("MAKEFLAGS", ""), fifo)
    if flags is None or not _takes_fifo(shutil.which("make", path=environ.get("PATH"))):
        return {}
    return {"MAKEFLAGS": flags}


def _takes_fifo(make: str | None) -> bool:
    """Tell whether a make understands a fifo: True if there is no make, False if it is not GNU's."""
    if make is None:
        return True
    try:
        output = run_program([make, "--version"])
    except ProgramError:
        return False
    match = _VERSION.search(output)
    return match is not None and Version(match[1]) >= FIFO_SINCE_MAKE


def makeflags(user_flags: str, fifo: Path) -> str | None:
    """Return a user's MAKEFLAGS with the fifo in them; None if it cannot be added.

    A user's own jobserver is left as it is. No client accepts a path with white space.
    """
    if "--jobserver" in user_flags or re.search(r"\s", str(fifo)):
        return None
    # Behind the dashes make expects variables only. They may be the end of the text.
    options, dashes, variables = f"{user_flags} ".partition("-- ")
    return f"{options.rstrip()} --jobserver-auth=fifo:{fifo} {dashes}{variables}".strip(" ")


def _make_fifo(fifo: Path) -> int | None:
    """Make a fifo unless it exists, and open it; None if that fails."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(fifo, 0o600)
    except OSError:
        return None
    return _open_fifo(fifo)


def _open_fifo(fifo: Path) -> int | None:
    """Open a fifo; None if that fails, or if it is another kind of file.

    It is opened for both directions, because it keeps its content only while there is a reader.
    """
    try:
        file = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISFIFO(os.fstat(file).st_mode):
        os.close(file)
        return None
    return file


def _waiting_bytes(file: int | None) -> int:
    if file is None:
        return 0
    count = bytearray(4)  # an int of C
    fcntl.ioctl(file, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def _in_use(fifo: Path) -> bool:
    """Tell whether a client has a fifo open.

    This process and its parent, which keep it open, do not count. psutil does not help: of the open
    files of a process, it lists regular ones only.
    """
    if sys.platform != "linux":
        # No other system has /proc. Tokens of a killed client are lost there, which costs only
        # speed; giving up tokens of a living one would start too many jobs.
        return True
    path = str(fifo.resolve())
    own_pids = {str(os.getpid()), str(os.getppid())}
    for link in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - only names, and fast
        pid = link.split("/")[2]
        # It was closed meanwhile, or belongs to another user, who is no client: clients are
        # programs of the build, and nobody else may open the fifo.
        with contextlib.suppress(OSError):
            if pid not in own_pids and os.readlink(link) == path:  # noqa: PTH115
                return True
    return False
