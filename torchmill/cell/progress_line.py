"""The progress of a build: edges, time and memory, on one moving line or in log lines.

An edge is one command of ninja, such as the compile of one file.
"""

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TextIO

from millguard.timeline import BuildAccount, TimelineMoment
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchmill.core.console import Clock, ThrottledOutput, is_live_terminal
from torchmill.core.ninja import Edge, EdgePace, made_path, parse_edge, parse_failure, strip_colours
from torchmill.core.plain_text import as_plain_text
from torchmill.core.units import format_share

# setuptools prints this before it runs ninja for an extension module.
_EXTENSION = re.compile(r"building '([^']+)' extension")
_WIDEST_CHARACTERS = 100  # of a line of output that is shown
# A log gets a line at least this often, even if no file is finished: CI services end jobs that
# print nothing for ten minutes.
REPEAT_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """The progress of a build at one moment; times in seconds."""

    edge: Edge | None  # the latest one; None before the first
    share: float | None  # of the work that is done; None if it is unknown which edges take long
    title: str  # the file that is made, or another word on what happens
    elapsed: float
    remaining: float | None  # None while there is too little to estimate by
    now: TimelineMoment  # compilers and memory, as the guard sees them
    extension: str = ""  # the extension being compiled, if a package has several
    failed: int = 0  # edges that ninja counts as finished and that failed

    def __str__(self) -> str:
        """Return the status as one line, the most important part first."""
        progress = f"{self.pace}, {self.load}" if self.load else self.pace
        return f"{progress}: {self.title}"

    @property
    def done(self) -> float:
        """Return the share that is done, from 0 to 1: of the work, or else of the edges."""
        if self.edge is None:
            return 0.0
        if self.share is None:
            return self.edges_made / self.edge.total
        return self.share

    @property
    def edges_made(self) -> int:
        """Return how many edges have succeeded."""
        if self.edge is None:
            return 0
        return max(0, self.edge.done - self.failed)

    @property
    def pace(self) -> str:
        """Return edges and time as text: "3/12 (25 %), 0:40 so far, about 2:00 left"."""
        parts = []
        if self.edge is not None:
            prefix = f"{self.extension}: " if self.extension else ""
            percent = int(100 * self.done)
            unit = "" if self.share is None else " of the work"
            parts.append(f"{prefix}{self.edges_made}/{self.edge.total} ({percent} %{unit})")
        parts.append(f"{format_clock(self.elapsed)} so far")
        if self.failed:
            parts.append("failed, and waiting for the compilers that still run")
        elif self.remaining is not None:
            parts.append(f"about {format_clock(self.remaining)} left")
        return ", ".join(parts)

    @property
    def load(self) -> str:
        """Return compilers and memory as text; "" if nothing is known of them."""
        counts = {
            "running": self.now.running,
            "waiting": self.now.waiting,
            "paused": self.now.paused,
        }
        parts = [f"{count} {state}" for state, count in counts.items() if count]
        if self.now.allowed:
            parts.append(f"memory {format_share(self.now.used, self.now.allowed)}")
        return ", ".join(parts)


class BuildTrack:
    """The progress of a build, as far as the lines of its output have told."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self.pace = EdgePace()
        self._title = "starting"
        self._extension = ""
        self._next_extension = ""  # announced, before its first edge
        self._failed = 0

    def read(self, line: str) -> None:
        """Take in one line of the output; before the first edge, the line itself is the title."""
        extension = _EXTENSION.match(line)
        if extension is not None:
            self._next_extension = extension[1]
        if parse_failure(line) is not None:
            self._failed += 1
        edge = parse_edge(line)
        if edge is not None:
            self._read_edge(edge)
        elif self.pace.edge is None and line.strip():
            self._title = strip_colours(line).strip()[:_WIDEST_CHARACTERS]

    def _read_edge(self, edge: Edge) -> None:
        """Take in an edge; its title is the name of the file that it makes."""
        if self.pace.edge is None or edge.done < self.pace.edge.done:
            self._failed = 0  # a further run of ninja began
        self._extension = self._next_extension
        self.pace.record(edge, self._clock())
        # Without its folders, which are long and say little. A code generator that makes many files
        # has a title that lists them all.
        name = PurePosixPath(made_path(edge.title)).name
        self._title = name or edge.title[:_WIDEST_CHARACTERS]

    def status(self, account: BuildAccount) -> BuildStatus:
        """Return the progress at this moment; `account` is the guard's."""
        now = self._clock()
        return BuildStatus(
            edge=self.pace.edge,
            share=self.pace.share if self.pace.weighed else None,
            title=self._title,
            elapsed=now - self._begun,
            remaining=self.pace.seconds_left(now),
            now=account.now,
            extension=self._extension,
            failed=self._failed,
        )


@dataclass(frozen=True, slots=True)
class _Shown:
    """The status that is shown, and what brings it up to date."""

    status: BuildStatus
    at: float  # seconds on the clock, when the status was computed
    account: BuildAccount  # whose latest moment is shown


class ProgressLine:
    """The progress of a build: a moving line on a terminal, or else a line of a log now and then.

    `console` is the terminal, None for a log. The moving line appears with the first output of the
    build, and gives way to a note.
    """

    def __init__(
        self, file: TextIO, clock: Clock = time.monotonic, console: Console | None = None
    ) -> None:
        self._clock = clock
        self._out = ThrottledOutput(file, clock)
        self._console = console
        # In a log, time counts from now; on a terminal, from the first call of `expect` or `read`.
        self._track = None if console else BuildTrack(clock)
        self._live: Live | None = None
        self._shown: _Shown | None = None

    def note(self, text: str) -> None:
        """Write a line that stays. A moving line ends, because other output may follow."""
        if self._console is None:
            # The last status stays: a build that goes on is silent while it compiles a large file.
            self._out.write(text)
        else:
            self.settle()
            self._console.print(Text(as_plain_text(text)), soft_wrap=True)

    def expect(self, pace: EdgePace) -> None:
        """Estimate the remaining time by this pace from now on."""
        self._started_track().pace = pace

    def read(self, line: str, account: BuildAccount) -> None:
        """Take one line of the build's output; `account` is the guard's."""
        track = self._started_track()
        track.read(line)
        self._shown = _Shown(track.status(account), self._clock(), account)
        if self._console is None:
            self.repeat()
        elif self._live is None:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                transient=True,
                refresh_per_second=4,
            )
            self._live.start(refresh=True)

    def _started_track(self) -> BuildTrack:
        """Return the track; the time of the build counts from the first call."""
        if self._track is None:
            self._track = BuildTrack(self._clock)
        return self._track

    def repeat(self) -> None:
        """Write the last status, brought up to date, into the log, if its last line is old.

        Nothing is written before the first line of output, and after `settle`.
        """
        status = self._current_status()
        if status is not None:
            self._out.write_throttled(lambda: str(status))

    def settle(self) -> None:
        """End a build's progress: a moving line leaves its last status as a line that stays.

        A log gets nothing more, until the next line of output.
        """
        if self._live is not None and self._console is not None:
            self._live.stop()
            status = self._current_status()
            if status is not None:
                self._console.print(Text(as_plain_text(str(status))), soft_wrap=True)
        self._live = None
        self._shown = None

    def _current_status(self) -> BuildStatus | None:
        """Return the last status, brought up to date: a large file is silent for minutes."""
        shown = self._shown  # read once, because another thread replaces it
        if shown is None:
            return None
        passed = self._clock() - shown.at
        remaining = shown.status.remaining
        if remaining is not None:
            remaining = max(0.0, remaining - passed)
        elapsed = shown.status.elapsed + passed
        return replace(shown.status, elapsed=elapsed, remaining=remaining, now=shown.account.now)

    def _render(self) -> Group:
        """Return the status as two lines: one would not fit a terminal of 80 columns."""
        status = self._current_status()
        if status is None:
            return Group()
        bar = ProgressBar(total=1 if status.edge else None, completed=status.done, width=20)
        first_line = Table.grid(padding=(0, 1))
        first_line.add_row(bar, _one_line(status.pace))
        parts = [part for part in (status.load, status.title) if part]
        return Group(first_line, _one_line(": ".join(parts)))


@contextmanager
def show_build_progress(file: TextIO | None = None) -> Iterator[ProgressLine]:
    """Show the progress of a build, by default on stderr, for as long as the context lasts."""
    file = file or sys.stderr
    console = Console(file=file) if is_live_terminal(file) else None
    line = ProgressLine(file, console=console)
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(REPEAT_SECONDS):
            line.repeat()

    if console is None:
        threading.Thread(target=repeat, daemon=True).start()
    try:
        yield line
    finally:
        ended.set()
        line.settle()


def _one_line(text: str) -> Text:
    """Return a text that is not wrapped; one that is too wide ends in an ellipsis."""
    return Text(as_plain_text(text), no_wrap=True, overflow="ellipsis")


def format_clock(seconds: float) -> str:
    """Return seconds as "4:05" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"
