"""The progress of a build: edges, time and memory, on one moving line or in log lines."""

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

_EXTENSION = re.compile(
    r"building '([^']+)' extension"
)  # what setuptools says before it runs ninja for one
_WIDEST_CHARACTERS = 100  # of a line of output that is shown
REPEAT_SECONDS = 240.0  # between lines while no file is done: services end jobs that print nothing for ten minutes


@dataclass(frozen=True, slots=True)
class BuildStatus:
    """How far a build is at one moment; times in seconds."""

    edge: Edge | None
    share: float | None  # of the work that is done, where it is known what takes long
    title: str
    elapsed: float
    left: float | None
    now: TimelineMoment
    extension: str = ""  # of several that a package has, the one that all of this is of
    failed: int = 0  # edges that ninja counts as finished and that failed

    def __str__(self) -> str:
        """Return it as one line, what matters most first."""
        return f"{', '.join(filter(None, (self.pace, self.load)))}: {self.title}"

    @property
    def done(self) -> float:
        """Return how much is done, from 0 to 1: of the work, or else of the edges."""
        if self.edge is None:
            return 0.0
        return self.edges_made / self.edge.total if self.share is None else self.share

    @property
    def edges_made(self) -> int:
        """Return how many edges have succeeded."""
        return max(0, self.edge.done - self.failed) if self.edge else 0

    @property
    def pace(self) -> str:
        """Return what there is of edges and time."""
        parts = [f"{format_clock(self.elapsed)} so far"]
        if self.edge is not None:
            percent = int(100 * self.done)
            of_work = "" if self.share is None else " of the work"
            name = f"{self.extension}: " if self.extension else ""
            parts.insert(0, f"{name}{self.edges_made}/{self.edge.total} ({percent} %{of_work})")
        if self.failed:
            parts.append("failed, and waiting for the compilers that still run")
        elif self.left is not None:
            parts.append(f"about {format_clock(self.left)} left")
        return ", ".join(parts)

    @property
    def load(self) -> str:
        """Return what there is of units and memory; "" where nobody knows."""
        units = {
            "running": self.now.running,
            "waiting": self.now.waiting,
            "paused": self.now.paused,
        }
        parts = [f"{count} {doing}" for doing, count in units.items() if count]
        if self.now.allowed:
            parts.append(f"memory {format_share(self.now.used, self.now.allowed)}")
        return ", ".join(parts)


class BuildTrack:
    """What the lines of a build said so far."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self.pace = EdgePace()
        self._title = "starting"
        self._next = self._extension = ""
        self._failed = 0

    def see(self, line: str) -> None:
        """Take note of a line; before the first edge it is itself what goes on."""
        edge = parse_edge(line)
        if found := _EXTENSION.match(line):
            self._next = found[1]
        self._failed += parse_failure(line) is not None
        if edge is not None:
            if self.pace.edge is None or edge.done < self.pace.edge.done:
                self._failed = 0  # another run of ninja
            self._extension = self._next
            self.pace.record(edge, self._clock())
            # folders are long and say little; generators list all that they make
            self._title = (
                PurePosixPath(made_path(edge.title)).name or edge.title[:_WIDEST_CHARACTERS]
            )
        elif self.pace.edge is None and line.strip():
            self._title = strip_colours(line).strip()[:_WIDEST_CHARACTERS]

    def status(self, account: BuildAccount) -> BuildStatus:
        """Return how far the build is now."""
        at, pace = self._clock(), self.pace
        share = pace.share if pace.weighed else None
        left = pace.seconds_left(at)
        begun = at - self._begun
        return BuildStatus(
            pace.edge, share, self._title, begun, left, account.now, self._extension, self._failed
        )


class ProgressLine:
    """How far a build is: one moving line on a terminal (with a console), elsewhere a line now and then.

    On a terminal it appears with the first output, and goes with a note.
    """

    def __init__(
        self, file: TextIO, clock: Clock = time.monotonic, console: Console | None = None
    ) -> None:
        self._out, self._clock, self._console = ThrottledOutput(file, clock), clock, console
        self._track = None if console else BuildTrack(clock)
        self._live: Live | None = None
        self._shown: tuple[BuildStatus, float, BuildAccount] | None = None

    def note(self, text: str) -> None:
        """Write a line that stays; whatever comes next has the terminal to itself."""
        self.settle()
        if self._console is None:
            self._out.write(text)
        else:
            self._console.print(Text(as_plain_text(text)), soft_wrap=True)

    def expect(self, pace: EdgePace) -> None:
        """Let edges that are paced in this way come."""
        self._track = self._track or BuildTrack(self._clock)
        self._track.pace = pace

    def edge(self, line: str, account: BuildAccount) -> None:
        """Take one line of the build's output."""
        track = self._track = self._track or BuildTrack(self._clock)
        track.see(line)
        self._shown = track.status(account), self._clock(), account
        if self._console is None:
            self.repeat()
        elif self._live is None:
            self._live = Live(
                console=self._console,
                get_renderable=self._drawn,
                transient=True,
                refresh_per_second=4,
            )
            self._live.start(refresh=True)

    def repeat(self) -> None:
        """Write the last status as it is by now, where the last line is old."""
        if (status := self._now()) is not None:
            self._out.write_throttled(lambda: str(status))

    def settle(self) -> None:
        """Take the moving line away and leave what it said last."""
        if self._live is not None and self._console is not None:
            self._live.stop()
            if (status := self._now()) is not None:
                self._console.print(Text(as_plain_text(str(status))), soft_wrap=True)
        self._live = self._shown = None

    def _now(self) -> BuildStatus | None:
        """Return the last status as it is by now: a large file keeps a build silent for minutes."""
        shown = self._shown  # one look: lines arrive on another thread than the one that draws
        if shown is None:
            return None
        status, at, account = shown
        passed = self._clock() - at
        left = None if status.left is None else max(0.0, status.left - passed)
        return replace(status, elapsed=status.elapsed + passed, left=left, now=account.now)

    def _drawn(self) -> Group:
        """Return it as two lines: one would not hold it on a terminal of 80 columns."""
        status = self._now()
        if status is None:
            return Group()
        bar = ProgressBar(total=1 if status.edge else None, completed=status.done, width=20)
        first = Table.grid(padding=(0, 1))
        first.add_row(bar, _whole(status.pace))
        return Group(first, _whole(": ".join(filter(None, (status.load, status.title)))))


@contextmanager
def show_build_progress(file: TextIO | None = None) -> Iterator[ProgressLine]:
    """Show how far a build is for as long as the context lasts."""
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


def _whole(text: str) -> Text:
    return Text(as_plain_text(text), no_wrap=True, overflow="ellipsis")


def format_clock(seconds: float) -> str:
    """Return seconds as "4:05" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
