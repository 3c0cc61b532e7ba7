"""Progress bars and tables: moving on a terminal, a line now and then in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

INTERVAL_SECONDS = 30.0  # seconds between lines that say how far something is
Clock = Callable[[], float]


class ThrottledOutput:
    """A file that gets few lines."""

    def __init__(self, file: TextIO, clock: Clock = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._at = clock()

    def write(self, text: str) -> None:
        """Write a line."""
        self._at = self._clock()
        self._file.write(f"{text}\n")
        self._file.flush()

    def write_throttled(self, text: Callable[[], str]) -> None:
        """Write a line if the last one is old."""
        if self._clock() - self._at >= INTERVAL_SECONDS:
            self.write(text())


class ProgressBar(Protocol):
    """One thing that takes long."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how much is done, of how much where that is known, and of what."""

    def close(self) -> None:
        """Say that it is over, well or not."""


class ProgressDisplay(Protocol):
    """Where bars are shown."""

    def task(self, title: str, total: int | None = None) -> ProgressBar:
        """Begin a bar."""


class LiveDisplay:
    """Bars that move."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def task(self, title: str, total: int | None = None) -> ProgressBar:
        """Begin a bar."""
        return LiveBar(self._shown, title, self._shown.add_task(title, total=total, count="", note=""))


class LiveBar:
    """A bar that moves, and leaves a line behind."""

    def __init__(self, shown: Progress, title: str, number: TaskID) -> None:
        self._shown, self._title, self._number = shown, title, number
        self._total: int | None = None
        self._last = ""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Move it."""
        self._total = total or self._total
        self._last = _counted(done, self._total, note)
        self._shown.update(
            self._number, completed=done, total=self._total, count=_count(done, self._total), note=note
        )

    def close(self) -> None:
        """Replace it by what it said last."""
        self._shown.remove_task(self._number)
        from rich.text import Text

        self._shown.console.print(Text(_titled(self._title, self._last)))


class PlainDisplay:
    """Bars where nothing can move."""

    def __init__(self, file: TextIO, clock: Clock = time.monotonic) -> None:
        self._file, self._clock = file, clock

    def task(self, title: str, total: int | None = None) -> ProgressBar:
        """Begin a bar with a line."""
        return PlainBar(ThrottledOutput(self._file, self._clock), title, total)


class PlainBar:
    """A bar as a line at the beginning, one now and then, and one at the end."""

    def __init__(self, out: ThrottledOutput, title: str, total: int | None) -> None:
        self._out, self._title, self._total = out, title, total
        self._last = ""
        out.write(title)

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say so, unless something was said a moment ago."""
        self._total = total or self._total
        self._last = _counted(done, self._total, note)
        self._out.write_throttled(lambda: _titled(self._title, self._last))

    def close(self) -> None:
        """Say what was reached."""
        if self._last:
            self._out.write(_titled(self._title, self._last))


def _count(done: int, total: int | None) -> str:
    return f"{done}/{total}" if total else str(done) if done else ""


def _counted(done: int, total: int | None, note: str) -> str:
    return ", ".join(part for part in (_count(done, total), note) if part)


def _titled(title: str, rest: str) -> str:
    return f"{title}: {rest}" if rest else title


@contextmanager
def show_progress(file: TextIO | None = None) -> Iterator[ProgressDisplay]:
    """Show bars for as long as the context lasts."""
    file = file or sys.stderr
    if not is_live_terminal(file):
        yield PlainDisplay(file)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(file=file),
        transient=True,
    ) as shown:
        yield LiveDisplay(shown)


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned table, a row a line, never wrapped: it may go through a pipe."""
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded)


def is_live_terminal(file: TextIO) -> bool:
    """Tell whether a line can be drawn over; rich is not asked, for FORCE_COLOR makes it say yes in CI."""
    return file.isatty() and os.environ.get("TERM") != "dumb"
