"""What people read: progress bars, on a terminal moving, in a log a line now and then; tables, folded lines."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from textwrap import TextWrapper, wrap
from typing import TYPE_CHECKING, TextIO

from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import name_programs

if TYPE_CHECKING:
    from rich.progress import Progress

SCREEN_WIDTH = 80  # columns, of what is folded
_NARROWEST = 12  # columns that a folded column keeps
_COMMAND_LINE = re.compile(  # also after its name, as in "install:  pip install torch"; the value of a variable, too
    r" *(\w+=|'?\$\{|(\w+( it)?: +)?(\$ )?"
    r"(\S*/)?(invoke|nox|torchmill|pip|uv|python3?|bash|git|sudo|apt-get|dnf|yum|brew|conda|docker) (?!\w+:))"
)
_ROW = re.compile(r" *\S.*?  +")  # the beginning of "name    value"
_GREEN, _YELLOW, _RED, _CYAN = "32", "33", "31", "36"
_COLOURS = {
    "ok": _GREEN,
    "warning": _YELLOW,
    "failure": _RED,
    "unknown": _CYAN,  # verdicts of the doctor
    "note": _CYAN,
    "does not run here": _RED,
    "impossible": _RED,  # judgements of a build
    "wheel": _GREEN,
    "tried": _CYAN,
    "?": _YELLOW,
    "no": _RED,  # marks of the matrix
}
_VERDICT = re.compile(
    r"(?m)^(?:ok|warning|failure|unknown)(?=  )|(?:^|(?<=: ))(?:note|warning|does not run here|impossible)(?=: )"
)
_MATRIX_ROW = re.compile(  # a row of the matrix, or a line of its legend
    r"(?m)^  (?:cpu|cu\d+) +(?:(?:wheel|tried|\?|no) *)+$|^(?:wheel|tried|\?|no) +(?=can|may)"
)
_MARK = re.compile(r"\b(?:wheel|tried|no)\b|\?")
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
        self._file.write(f"{as_plain_text(text)}\n")
        self._file.flush()

    def write_throttled(self, text: Callable[[], str]) -> None:
        """Write a line if the last one is old."""
        if self._clock() - self._at >= INTERVAL_SECONDS:
            self.write(text())


class ProgressDisplay:
    """Where bars are shown: they move where there is a `live` display, else lines say how far they are."""

    def __init__(
        self, file: TextIO, clock: Clock = time.monotonic, live: "Progress | None" = None
    ) -> None:
        self._file, self._clock, self._live = file, clock, live

    def task(self, title: str, total: int | None = None) -> "ProgressBar":
        """Begin a bar."""
        return ProgressBar(ThrottledOutput(self._file, self._clock), title, total, self._live)


class ProgressBar:
    """One thing that takes long: a bar that moves, or a line at its beginning, now and then, at its end."""

    def __init__(
        self, out: ThrottledOutput, title: str, total: int | None, live: "Progress | None"
    ) -> None:
        self._out, self._title, self._total, self._live = out, title, total, live
        self._last = ""
        if live is not None:
            self._number = live.add_task(title, total=total, count="", note="")
        else:
            out.write(title)

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how much is done, of how much where that is known, and of what."""
        self._total = total or self._total
        count = f"{done}/{self._total}" if self._total else str(done) if done else ""
        self._last = ", ".join(filter(None, (count, note)))
        if self._live is not None:
            self._live.update(
                self._number, completed=done, total=self._total, count=count, note=note
            )
        else:
            self._out.write_throttled(lambda: f"{self._title}: {self._last}")

    def close(self) -> None:
        """Say that it is over, well or not, and what was reached."""
        line = f"{self._title}: {self._last}" if self._last else self._title
        if self._live is not None:
            from rich.text import Text

            self._live.remove_task(self._number)
            self._live.console.print(Text(as_plain_text(line)))
        elif self._last:
            self._out.write(line)


@contextmanager
def show_progress(file: TextIO | None = None) -> Iterator[ProgressDisplay]:
    """Show bars for as long as the context lasts."""
    file = file or sys.stderr
    if not is_live_terminal(file):
        yield ProgressDisplay(file)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(file=file),
        transient=True,
    ) as live:
        yield ProgressDisplay(file, live=live)


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned table, a row a line; on a terminal that is narrower its widest columns are folded."""
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
    while sys.stdout.isatty() and sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    text = []
    for line in lines:
        cells = [
            wrap(cell, width) if len(cell) > width else [cell]
            for cell, width in zip(line, widths, strict=True)
        ]
        parts = (zip(row, widths, strict=True) for row in zip_longest(*cells, fillvalue=""))
        text += ["  ".join(part.ljust(width) for part, width in row).rstrip() for row in parts]
    return "\n".join(text)


def fold_text(text: str, columns: int = SCREEN_WIDTH) -> str:
    """Return a text whose long lines are folded at spaces, below their beginning or value; commands stay whole."""
    lines = []
    for line in text.split("\n"):
        if len(line) > columns and not _COMMAND_LINE.match(line):
            row, whole = (
                _ROW.match(line),
                re.sub("`[^`]+`", lambda one: one[0].replace(" ", "\0"), line.lstrip()),
            )
            begin = len(line) - len(line.lstrip())
            hang = row.end() if row and row.end() <= columns // 2 else begin + 2
            room = max(columns, hang + 1)
            fold = TextWrapper(
                room, " " * begin, " " * hang, break_long_words=False, break_on_hyphens=False
            )
            line = fold.fill(whole).replace("\0", " ")  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines)


def fit_screen(text: str, file: TextIO | None = None) -> str:
    """Return a text as it is written to a file, by default standard output: a terminal gets it folded.

    Its commands name the programs that are here: they are longer, and have their place in the lines.
    """
    text = name_programs(text)
    return (
        fold_text(text, shutil.get_terminal_size().columns)
        if (file or sys.stdout).isatty()
        else text
    )


def colour_words(text: str, file: TextIO | None = None) -> str:
    """Return a text with its verdicts, judgements and marks in colour if a file, by default standard output, shows it.

    That is on a terminal, unless NO_COLOR is set (https://no-color.org).
    """
    shown = (
        (file or sys.stdout).isatty()
        and "NO_COLOR" not in os.environ
        and os.environ.get("TERM") != "dumb"
    )
    return (
        _MATRIX_ROW.sub(lambda row: _MARK.sub(_coloured, row[0]), _VERDICT.sub(_coloured, text))
        if shown
        else text
    )


def _coloured(word: re.Match[str]) -> str:
    return f"\x1b[{_COLOURS[word[0]]}m{word[0]}\x1b[0m"


def is_live_terminal(file: TextIO) -> bool:
    """Tell whether a line can be drawn over; rich is not asked, for FORCE_COLOR makes it say yes in CI."""
    return file.isatty() and os.environ.get("TERM") != "dumb"
