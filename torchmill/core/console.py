"""Text for people: progress bars, tables, folded lines, colours.

Progress bars move on a terminal; in a log they are a line now and then.
"""

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

if TYPE_CHECKING:  # rich is slow to import, and most commands show no bar
    from rich.progress import Progress

SCREEN_WIDTH = 80  # columns of folded text
_NARROWEST = 12  # characters; a column of a table is not made narrower than this
_COLUMN_GAP = 2  # characters between two columns of a table
# The beginning of a line with a command, which must stay whole so that it can be copied. A command
# begins with a variable ("CC=gcc pip install .", "${kit}/bin/cmake"), or with one of these
# programs, which a label may precede ("install:  pip install torch"). A line such as
# "error: invoke toolkit: name one of" is a sentence: a word with a colon follows the program.
_COMMAND_LINE = re.compile(
    r" *(\w+=|'?\$\{|(\w+( it)?: +)?(\$ )?"
    r"(\S*/)?(invoke|nox|torchmill|pip|uv|python3?|bash|git|sudo|apt-get|dnf|yum|brew|conda|docker)"
    r" (?!\w+:))"
)
_ROW = re.compile(r" *\S.*?  +")  # the beginning of "name    value"
_CODE = re.compile("`[^`]+`")
# https://ecma-international.org/publications-and-standards/standards/ecma-48/ (SGR)
_RED = "31"
_GREEN = "32"
_YELLOW = "33"
_CYAN = "36"
_COLOURS = {
    # Verdicts of the doctor.
    "ok": _GREEN,
    "warning": _YELLOW,
    "failure": _RED,
    "unknown": _CYAN,
    # Judgements of a build.
    "note": _CYAN,
    "does not run here": _RED,
    "impossible": _RED,
    # Marks of the matrix.
    "wheel": _GREEN,
    "tried": _CYAN,
    "?": _YELLOW,
    "no": _RED,
}
_VERDICT = re.compile(
    r"(?m)^(?:ok|warning|failure|unknown)(?=  )"
    r"|(?:^|(?<=: ))(?:note|warning|does not run here|impossible)(?=: )"
)
# A row of the matrix, or a line of its legend.
_MATRIX_ROW = re.compile(
    r"(?m)^  (?:cpu|cu\d+) +(?:(?:wheel|tried|\?|no) *)+$|^(?:wheel|tried|\?|no) +(?=can|may)"
)
_MARK = re.compile(r"\b(?:wheel|tried|no)\b|\?")
INTERVAL_SECONDS = 30.0  # between lines of progress in a log
Clock = Callable[[], float]


class ThrottledOutput:
    """A file, such as the log of a CI job, that gets a line of progress only now and then."""

    def __init__(self, file: TextIO, clock: Clock = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._written_at = clock()

    def write(self, text: str) -> None:
        """Write a line at once; the interval to the next line of progress begins anew."""
        self._written_at = self._clock()
        self._file.write(f"{as_plain_text(text)}\n")
        self._file.flush()

    def write_throttled(self, text: Callable[[], str]) -> None:
        """Write the line that `text` returns if the last line is INTERVAL_SECONDS old.

        Before the first line, the age is that of this object.
        """
        if self._clock() - self._written_at >= INTERVAL_SECONDS:
            self.write(text())


class ProgressDisplay:
    """The screen or file on which progress bars are shown.

    `live` is the display of rich on which bars move. Without it, progress is written to `file`, a
    line now and then.
    """

    def __init__(
        self, file: TextIO, clock: Clock = time.monotonic, live: "Progress | None" = None
    ) -> None:
        self._file = file
        self._clock = clock
        self._live = live

    def start_bar(self, title: str, total: int | None = None) -> "ProgressBar":
        """Show a new bar with a title; `total` is the number of units to do, None if unknown."""
        return ProgressBar(ThrottledOutput(self._file, self._clock), title, total, self._live)


class ProgressBar:
    """The progress of one long piece of work: a bar that moves, or lines in a log.

    The lines are written at the beginning, now and then, and at the end.
    """

    def __init__(
        self, out: ThrottledOutput, title: str, total: int | None, live: "Progress | None"
    ) -> None:
        self._out = out
        self._title = title
        self._total = total
        self._live = live
        self._last_text = ""
        if live is not None:
            self._number = live.add_task(title, total=total, count="", note="")
        else:
            out.write(title)

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show the progress.

        `done` and `total` count units of any kind, such as files or percent. `done` is 0 if it is
        unknown; without a `total`, an earlier one stays. `note` is shown beside them, such as the
        name of a file.
        """
        self._total = total or self._total
        if self._total:
            count = f"{done}/{self._total}"
        else:
            count = str(done) if done else ""
        parts = [part for part in (count, note) if part]
        self._last_text = ", ".join(parts)
        if self._live is not None:
            self._live.update(
                self._number, completed=done, total=self._total, count=count, note=note
            )
        else:
            self._out.write_throttled(lambda: f"{self._title}: {self._last_text}")

    def close(self) -> None:
        """End the bar, and leave a line with the last progress in its place.

        To be called whether the work succeeded or not.
        """
        line = f"{self._title}: {self._last_text}" if self._last_text else self._title
        if self._live is not None:
            from rich.text import Text

            self._live.remove_task(self._number)
            self._live.console.print(Text(as_plain_text(line)))
        elif self._last_text:
            self._out.write(line)


@contextmanager
def show_progress(file: TextIO | None = None) -> Iterator[ProgressDisplay]:
    """Yield a display of progress bars on a file, by default standard error."""
    file = file or sys.stderr
    if not is_live_terminal(file):
        yield ProgressDisplay(file)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        # Without markup, because a title may be a path with brackets.
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(file=file),
        transient=True,  # `ProgressBar.close` leaves a line in place of the bar
    ) as live:
        yield ProgressDisplay(file, live=live)


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with aligned columns as text; each row has as many cells as `headers`.

    If standard output is a terminal that is narrower than the table, the cells of the widest
    columns are folded onto several lines.
    """
    table_rows = [list(headers), *(list(row) for row in rows)]
    columns = zip(*table_rows, strict=True)
    widths = [max(len(cell) for cell in column) for column in columns]
    if sys.stdout.isatty():
        _narrow(widths, shutil.get_terminal_size().columns)
    lines = []
    for row in table_rows:
        cells = []
        for cell, width in zip(row, widths, strict=True):
            cells.append(wrap(cell, width) if len(cell) > width else [cell])
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
            lines.append((" " * _COLUMN_GAP).join(padded).rstrip())
    return "\n".join(lines)


def _narrow(widths: list[int], screen_columns: int) -> None:
    """Reduce `widths`, in place, until the table fits a screen; columns keep _NARROWEST."""
    available = screen_columns - _COLUMN_GAP * (len(widths) - 1)
    while sum(widths) > available and max(widths) > _NARROWEST:
        widest = widths.index(max(widths))
        widths[widest] -= 1


def fold_text(text: str, columns: int = SCREEN_WIDTH) -> str:
    """Return a text whose lines longer than `columns` are folded at spaces.

    Lines that begin with a command stay whole. The rest of a folded line is indented: below the
    value if the line has the form "name    value", else by two more spaces than its beginning.
    """
    lines = []
    for line in text.split("\n"):
        if len(line) > columns and not _COMMAND_LINE.match(line):
            lines.append(_fold_line(line, columns))
        else:
            lines.append(line)
    return "\n".join(lines)


def _fold_line(line: str, columns: int) -> str:
    """Return a line, folded as `fold_text` says."""
    stripped = line.lstrip()
    indent = len(line) - len(stripped)
    row = _ROW.match(line)
    hanging_indent = indent + 2
    # Below a value that begins farther right, too little room would be left for it.
    if row is not None and row.end() <= columns // 2:
        hanging_indent = row.end()
    wrapper = TextWrapper(
        width=max(columns, hanging_indent + 1),
        initial_indent=" " * indent,
        subsequent_indent=" " * hanging_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    # Commands in backticks stay in one piece: their spaces are NULs while the line is folded, and
    # the wrapper breaks lines at spaces only.
    protected = _CODE.sub(lambda code: code[0].replace(" ", "\0"), stripped)
    return wrapper.fill(protected).replace("\0", " ")


def format_for_user(text: str, file: TextIO | None = None) -> str:
    """Return a text as a user sees it in a file, by default standard output.

    Its commands are rewritten to those that work in the user's shell (`name_programs`). For a
    terminal, its lines are then folded to the terminal's width.
    """
    # Before the folding, because the rewritten commands are longer.
    text = name_programs(text)
    if (file or sys.stdout).isatty():
        return fold_text(text, shutil.get_terminal_size().columns)
    return text


def colour_words(text: str, file: TextIO | None = None) -> str:
    """Return a text with the words of `_COLOURS` in colour.

    A word is coloured only if it stands as a verdict of the doctor, as a judgement of a build or as
    a mark of the matrix. The text stays as it is if the file, by default standard output, is not a
    terminal, or if NO_COLOR is set (https://no-color.org).
    """
    has_colours = is_live_terminal(file or sys.stdout) and "NO_COLOR" not in os.environ
    if not has_colours:
        return text
    text = _VERDICT.sub(_colour, text)
    return _MATRIX_ROW.sub(lambda row: _MARK.sub(_colour, row[0]), text)


def _colour(word: re.Match[str]) -> str:
    """Return a matched word between the sequences that set and reset its colour."""
    return f"\x1b[{_COLOURS[word[0]]}m{word[0]}\x1b[0m"


def is_live_terminal(file: TextIO) -> bool:
    """Tell whether a file is a terminal on which a line can be overwritten."""
    # Not rich's `is_terminal`: in CI, FORCE_COLOR makes it say yes.
    return file.isatty() and os.environ.get("TERM") != "dumb"
