"""What a build tool's output says of its progress, and how long the rest may take."""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NINJA = re.compile(r"\s*\[\s*(?P<done>\d+)/(?P<total>\d+)\]\s+(?P<title>\S.*)")
_MAKE = re.compile(r"\s*\[\s*(?P<done>\d+)%\]\s+(?P<title>\S.*)")
_FEWEST = 5  # edges before an estimate is worth showing


@dataclass(frozen=True, slots=True)
class Edge:
    """One line of progress: `total` is 100 where the tool counts in percent."""

    done: int
    total: int
    title: str  # "Building CXX object a.o"


def plain(line: str) -> str:
    """Return `line` without terminal colours, which CMake and gcc may be told to use in a pipe."""
    return _COLOUR.sub("", line) if "\x1b" in line else line


def parse_edge(line: str) -> Edge | None:
    """Return the edge that a line of ninja or of a CMake makefile announces."""
    line = plain(line)
    if match := _NINJA.match(line):
        done, total = int(match["done"]), int(match["total"])
    elif match := _MAKE.match(line):
        done, total = int(match["done"]), 100
    else:
        return None
    return Edge(done, total, match["title"].rstrip()) if 0 < total >= done else None


@dataclass(slots=True)
class Pace:
    """How fast edges were done, from which follows how long the rest takes.

    The pace is that of the later half of the edges: a run often begins with cached ones, or ends
    with slow ones, and the later half feels both soon. Times are seconds on any steady clock.
    """

    edge: Edge | None = None
    _done: list[int] = field(default_factory=list)
    _at: list[float] = field(default_factory=list)

    def see(self, edge: Edge, now: float) -> None:
        """Take note of an edge; one that counts from the start again belongs to another run."""
        if self.edge is not None and edge.done < self.edge.done:
            self._done.clear()
            self._at.clear()
        self.edge = edge
        if not self._done or edge.done > self._done[-1]:
            self._done.append(edge.done)
            self._at.append(now)

    def left(self, now: float) -> float | None:
        """Return the seconds that the rest may take; None while nothing can be said."""
        if self.edge is None or self._done[-1] - self._done[0] < _FEWEST:
            return None
        middle = (self._done[0] + self._done[-1]) // 2
        since = bisect_right(self._done, middle) - 1
        edges = self._done[-1] - self._done[since]
        seconds = self._at[-1] - self._at[since]
        rest = (self.edge.total - self._done[-1]) * seconds / edges
        return max(0.0, rest - (now - self._at[-1]))
