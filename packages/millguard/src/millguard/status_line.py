"""One line at the bottom of a terminal, below the output of a command that knows nothing of it.

The terminal scrolls all rows but the last one while the line is there: the control sequence DECSTBM
sets that region, and apt uses it for its progress bar. So the command writes to the terminal as it
would without the line, colours and progress bars included.
"""

import os
import sys
from collections.abc import Callable
from typing import TextIO

from millguard.quantities import format_bytes, printable
from millguard.timeline import BuildAccount

_SAVE, _RESTORE, _CLEAR_ROW = "\x1b7", "\x1b8", "\x1b[2K"
_UP = "\x1b[1A"
# IND: the cursor goes down by a row and keeps its column, and in the last row the terminal scrolls.
_DOWN = "\x1bD"
_FEWEST_ROWS = 5  # of a terminal that can spare a row


def describe_account(account: BuildAccount) -> str:
    """Return the state of a build in a few words."""
    now = account.now
    parts = [f"{now.running} compiling"]
    if now.waiting:
        parts.append(f"{now.waiting} waiting")
    if now.paused:
        parts.append(f"{now.paused} paused")
    if now.allowed:
        parts.append(f"{format_bytes(now.used)} of {format_bytes(now.allowed)}")
    parts.append(f"{account.units} done")
    return "millguard: " + ", ".join(parts)


def is_live(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal that understands more than plain text."""
    try:
        return stream.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb"}
    except ValueError:  # closed
        return False


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return the rows and columns of a terminal; 0 and 0 if the stream is none."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0
    return size.lines, size.columns


class StatusLine:
    """Messages for the user, and on a terminal one line with the state of the build.

    Nothing is drawn before the first call of `draw`, so that a command without compilers has its
    terminal as it was.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        size: Callable[[TextIO], tuple[int, int]] = _terminal_size,
        *,
        live: bool | None = None,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._size = size
        self._is_live = is_live(self._stream) if live is None else live
        self._rows = 0  # of the terminal while a row is reserved, else 0

    def report(self, message: str) -> None:
        """Write a message as a line of its own."""
        self._write(f"millguard: {printable(message)}\n")

    def draw(self, text: str) -> None:
        """Show a text in the last row."""
        if not self._is_live:
            return
        rows, columns = self._size(self._stream)  # each time: the user may resize the window
        if rows < _FEWEST_ROWS:
            return
        if rows != self._rows:
            self._reserve(rows)
        # In the last column many terminals wrap, and would scroll the line away.
        line = text[: max(1, columns - 1)]
        self._write(f"{_SAVE}\x1b[{rows};1H{_CLEAR_ROW}{line}{_RESTORE}")

    def close(self) -> None:
        """Give the last row back."""
        if self._rows:
            rows, self._rows = self._rows, 0
            self._write(f"{_SAVE}\x1b[r\x1b[{rows};1H{_CLEAR_ROW}{_RESTORE}")

    def _reserve(self, rows: int) -> None:
        """Take the last row off the region that scrolls."""
        # The move down makes room if the cursor is in the last row; a line feed would lose the column
        # in a line that the command has begun. Setting the region moves the cursor to the first
        # row, so its place is saved and restored.
        self._write(f"{_DOWN}{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}{_UP}")
        self._rows = rows

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone
            self._is_live = False
