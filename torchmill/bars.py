"""Bars for what takes long: moving ones for a terminal, lines for everything else."""

import time
from typing import Protocol, TextIO

from rich.progress import Progress, TaskID
from rich.text import Text

from torchmill.sparse import Clock, Sparse


class Bar(Protocol):
    """One thing that takes long."""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how much is done, of how much where that is known, and of what."""

    def close(self) -> None:
        """Say that it is over, well or not."""


class Bars(Protocol):
    """Where bars are shown."""

    def task(self, title: str, total: int | None = None) -> Bar:
        """Begin a bar."""


class LiveBars:
    """Bars that move."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def task(self, title: str, total: int | None = None) -> Bar:
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
        self._shown.console.print(Text(_titled(self._title, self._last)))


class PlainBars:
    """Bars where nothing can move."""

    def __init__(self, file: TextIO, clock: Clock = time.monotonic) -> None:
        self._file, self._clock = file, clock

    def task(self, title: str, total: int | None = None) -> Bar:
        """Begin a bar with a line."""
        return PlainBar(Sparse(self._file, self._clock), title, total)


class PlainBar:
    """A bar as a line at the beginning, one now and then, and one at the end."""

    def __init__(self, out: "Sparse", title: str, total: int | None) -> None:
        self._out, self._title, self._total = out, title, total
        self._last = ""
        out.always(title)

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say so, unless something was said a moment ago."""
        self._total = total or self._total
        self._last = _counted(done, self._total, note)
        self._out.sometimes(lambda: _titled(self._title, self._last))

    def close(self) -> None:
        """Say what was reached."""
        if self._last:
            self._out.always(_titled(self._title, self._last))


def _count(done: int, total: int | None) -> str:
    return f"{done}/{total}" if total else str(done) if done else ""


def _counted(done: int, total: int | None, note: str) -> str:
    return ", ".join(part for part in (_count(done, total), note) if part)


def _titled(title: str, rest: str) -> str:
    return f"{title}: {rest}" if rest else title
