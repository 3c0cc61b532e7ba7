"""What a person sees while something takes long: one moving line on a terminal, now and then a line in CI.

All of it goes to stderr: stdout belongs to results.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from torchmill.bars import Bars, LiveBars, PlainBars
from torchmill.buildline import Line, LiveLine, PlainLine


@contextmanager
def progress(file: TextIO | None = None) -> Iterator[Bars]:
    """Show bars for as long as the context lasts."""
    file = file or sys.stderr
    if not _moves(file):
        yield PlainBars(file)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(file=file),
        transient=True,
    ) as shown:
        yield LiveBars(shown)


@contextmanager
def build_line(file: TextIO | None = None) -> Iterator[Line]:
    """Show how far a build is for as long as the context lasts."""
    file = file or sys.stderr
    if _moves(file):
        with LiveLine(Console(file=file)) as line:
            yield line
    else:
        yield PlainLine(file)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned table, a row a line, never wrapped: it may go through a pipe."""
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded)


def _moves(file: TextIO) -> bool:
    """Tell whether a line can be drawn over; rich is not asked, for FORCE_COLOR makes it say yes in CI."""
    return file.isatty() and os.environ.get("TERM") != "dumb"
