"""`invoke status --watch`: what the builds of this checkout do at the moment, as it changes.

The guard of a build writes a line into its timeline at least every second, and more rarely the
longer the build runs. A timeline that is still written to belongs to a build that runs.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from millguard.timeline import MOMENT_SHARE, SUFFIX, LiveBuild, TimelineEvent, parse_record
from millguard.units import unit_title

from torchmill.cell.progress_line import format_clock
from torchmill.core.console import is_live_terminal
from torchmill.core.errors import ConfigError
from torchmill.core.ninja import Edge, parse_edge
from torchmill.core.paths import Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.units import format_bytes, format_share

REFRESH_SECONDS = 0.5
QUIET_SECONDS = 10.0  # without a new record, after which a build is over
# The guard writes records of a long build farther apart: the gap is the share MOMENT_SHARE of the
# time since the build began. A build is over if so many of them are missing.
QUIET_RECORDS = 4
LONGEST_QUIET_SECONDS = (
    300.0  # the time of QUIET_RECORDS in a build that has run for nearly two days
)
BAR_WIDTH = 30
_LONGEST_TAIL = 65536  # bytes of a log in which its last edge is looked for
_EVENT_TEXTS = {
    "pause": "was paused: memory ran short",
    "resume": "goes on",
    "rerun": "was ended, and runs again later: memory ran short",
    "kill": "was killed by the kernel, and runs again alone",
    "alone": "runs alone",
    "too large": "took more than there is for all compilers",
    "gave up": "was given up",
}


@dataclass(slots=True)
class WatchedBuild:
    """A build that writes a timeline, and what was read of it so far."""

    timeline: Path
    live: LiveBuild = field(default_factory=LiveBuild)
    edge: Edge | None = None  # the last that ninja finished
    # Seconds since 1970, when its timeline was last written to. 0: nothing was read of it yet.
    changed_at: float = 0.0
    _position: int = 0  # bytes of the timeline that were read
    _rest: bytes = b""  # of a line whose end was not written yet

    @property
    def name(self) -> str:
        """Return the name of the build, such as "v1.13.1-wheel-3.10-cpu"."""
        return self.timeline.name.removesuffix(SUFFIX)

    def runs_at(self, now: float) -> bool:
        """Tell whether the build runs at a moment (seconds since 1970)."""
        gap = self.live.account.now.at * MOMENT_SHARE  # seconds between two records
        return now - self.changed_at < max(QUIET_SECONDS, QUIET_RECORDS * gap)

    def read_on(self) -> None:
        """Read what was written since the last time; a file that was begun anew from its start."""
        try:
            status = self.timeline.stat()
            if status.st_size < self._position:
                self._position, self._rest, self.live = 0, b"", LiveBuild()
            with self.timeline.open("rb") as file:
                file.seek(self._position)
                content = file.read()
        except OSError:
            return
        self._position += len(content)
        self.changed_at = status.st_mtime
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            try:
                self.live.add(parse_record(line))
            except ValueError:
                continue  # of another release
        self.edge = last_edge(self.timeline.with_name(f"{self.name}.log")) or self.edge


def last_edge(log: Path) -> Edge | None:
    """Return the last edge of ninja in a log; None without one near its end."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LONGEST_TAIL))
            tail = file.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    for line in reversed(tail.splitlines()):
        edge = parse_edge(line)
        if edge is not None:
            return edge
    return None


def describe_build(build: WatchedBuild, seconds_since: float) -> list[str]:
    """Return the state of a build as lines; its timeline was written to some seconds ago."""
    live = build.live
    state = live.account.now
    elapsed = state.at + seconds_since
    lines = [f"{build.name}: {_describe_pace(build.edge, elapsed)}"]
    # Starts are written at once, moments are written rarely: the former count what runs now.
    counts = [f"{len(live.running) - len(live.paused)} compiling"]
    if state.waiting:
        counts.append(f"{state.waiting} waiting")
    if live.paused:
        counts.append(f"{len(live.paused)} paused")
    if live.failed:
        counts.append(f"{live.failed} failed")
    if state.short:
        counts.append(f"memory kept a processor idle for {format_clock(state.short)}")
    lines.append(f"  {_memory_bar(state.used, state.allowed)}  {', '.join(counts)}")
    for start in live.running:
        note = ", paused" if start.key in live.paused else ""
        age = format_clock(elapsed - start.at)
        expected = format_bytes(start.expected)
        lines.append(f"  {age:>8}  {unit_title(start.key)} ({expected} expected{note})")
    for event in live.latest_events:
        lines.append(f"  {format_clock(elapsed - event.at):>8} ago: {_describe_event(event)}")
    return [as_plain_text(line) for line in lines]


def _describe_pace(edge: Edge | None, elapsed: float) -> str:
    """Return "12/300 steps, 1:05 so far, about 20:00 left"; steps are thought to be alike."""
    if edge is None or edge.done == 0:
        return f"{format_clock(elapsed)} so far"
    left = elapsed * (edge.total - edge.done) / edge.done
    return (
        f"{edge.done}/{edge.total} steps, {format_clock(elapsed)} so far, "
        f"about {format_clock(left)} left"
    )


def _memory_bar(used: int, allowed: int) -> str:
    if not allowed:
        return f"memory {format_bytes(used)}"
    filled = min(BAR_WIDTH, round(BAR_WIDTH * used / allowed))
    bar = "#" * filled + "." * (BAR_WIDTH - filled)
    return f"[{bar}] {format_share(used, allowed)}"


def _describe_event(event: TimelineEvent) -> str:
    name = unit_title(event.key) if event.key else event.kind
    detail = f" ({event.text})" if event.text else ""
    return f"{name} {_EVENT_TEXTS.get(event.kind, event.kind)}{detail}"


def list_timelines(layout: Layout) -> list[Path]:
    """Return the timelines of this checkout's builds, on this machine and in containers.

    Those of containers are in a folder for each architecture.
    """
    return [*layout.logs.glob(f"*{SUFFIX}"), *layout.state.glob(f"*/logs/*{SUFFIX}")]


def watch_builds(
    layout: Layout,
    file: TextIO | None = None,
    sleep: Callable[[float], None] = time.sleep,
    *,
    json: bool = False,
) -> None:
    """Show the builds that run until all of them have ended; if not on a terminal, once.

    Raises ConfigError with `json`: what is shown is text, and no document.
    """
    if json:
        raise ConfigError(
            "invoke status: --watch shows builds as text: leave out --json, or --watch",
            code="contradictory-options",
        )
    stream = file or sys.stdout
    builds: dict[Path, WatchedBuild] = {}
    running = _running_builds(layout, builds)
    if not running:
        stream.write(
            "no build runs in this checkout now: `invoke report` shows the latest one, "
            "`nox -s CELL` starts one\n"
        )
        return
    if not is_live_terminal(stream):
        stream.write("\n".join(_all_lines(running)) + "\n")
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=stream), auto_refresh=False) as view:
        while running:
            view.update(Text("\n".join(_all_lines(running))), refresh=True)
            sleep(REFRESH_SECONDS)
            running = _running_builds(layout, builds)
    stream.write("the build has ended: `invoke report` shows it\n")


def _running_builds(layout: Layout, builds: dict[Path, WatchedBuild]) -> list[WatchedBuild]:
    """Read on in all timelines, and return the builds that run now."""
    running = []
    now = time.time()
    for timeline in list_timelines(layout):
        build = builds.setdefault(timeline, WatchedBuild(timeline))
        if build.changed_at == 0.0 and _is_old(timeline, now):
            continue  # never read: it may be long
        build.read_on()
        if build.runs_at(now):
            running.append(build)
    return sorted(running, key=lambda build: build.name)


def _is_old(timeline: Path, now: float) -> bool:
    """Tell whether a timeline was not written to for longer than any record may be late."""
    try:
        return now - timeline.stat().st_mtime > LONGEST_QUIET_SECONDS
    except OSError:
        return True


def _all_lines(builds: Sequence[WatchedBuild]) -> list[str]:
    now = time.time()
    lines: list[str] = []
    for build in builds:
        lines += describe_build(build, max(0.0, now - build.changed_at))
    return lines
