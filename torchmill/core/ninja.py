"""Read ninja's progress and its record of files read."""

import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NINJA = re.compile(r"\s*\[\s*(?P<done>\d+)/(?P<total>\d+)\]\s+(?P<title>\S.*)")
_MAKE = re.compile(r"\s*\[\s*(?P<done>\d+)%\]\s+(?P<title>\S.*)")
_FEWEST = 5  # edges before an estimate is worth showing
_EARLIEST = 4  # and a quarter of all: the first files of torch are its quickest
_SIGNATURE = b"# ninjadeps\n"
_BEFORE = {3: 8, 4: 12}  # version of the log -> bytes of a record before its dependencies
_IS_DEPENDENCIES = 1 << 31


@dataclass(frozen=True, slots=True)
class Edge:
    """One line of progress: `total` is 100 where the tool counts in percent."""

    done: int
    total: int
    title: str  # "Building CXX object a.o"


def strip_colours(line: str) -> str:
    """Return `line` without terminal colours, which CMake and gcc may be told to use in a pipe."""
    return _COLOUR.sub("", line) if "\x1b" in line else line


def parse_edge(line: str) -> Edge | None:
    """Return the edge that a line of ninja or of a CMake makefile announces."""
    line = strip_colours(line)
    if match := _NINJA.match(line):
        done, total = int(match["done"]), int(match["total"])
    elif match := _MAKE.match(line):
        done, total = int(match["done"]), 100
    else:
        return None
    return Edge(done, total, match["title"].rstrip()) if 0 < total >= done else None


@dataclass(slots=True)
class EdgePace:
    """How fast edges were done, from which follows how long the rest takes.

    The pace is that of the later half of the edges: a run often begins with cached ones, or ends
    with slow ones, and the later half feels both soon. Times are seconds on any steady clock.
    """

    edge: Edge | None = None
    _done: list[int] = field(default_factory=list)
    _at: list[float] = field(default_factory=list)

    def record(self, edge: Edge, now: float) -> None:
        """Take note of an edge; one that counts from the start again belongs to another run."""
        if self.edge is not None and edge.done < self.edge.done:
            self._done.clear()
            self._at.clear()
        self.edge = edge
        if not self._done or edge.done > self._done[-1]:
            self._done.append(edge.done)
            self._at.append(now)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that the rest may take; None while nothing can be said."""
        if self.edge is None or self._done[-1] - self._done[0] < _FEWEST:
            return None
        if self._done[-1] * _EARLIEST < self.edge.total:
            return None
        middle = (self._done[0] + self._done[-1]) // 2
        since = bisect_right(self._done, middle) - 1
        edges = self._done[-1] - self._done[since]
        seconds = self._at[-1] - self._at[since]
        rest = (self.edge.total - self._done[-1]) * seconds / edges
        return max(0.0, rest - (now - self._at[-1]))


def read_dependencies(log: Path) -> dict[str, list[str]]:
    """Return what was read for each output, as the compilers said it, from a `.ninja_deps`.

    `ninja -t deps` says the same where build.ninja is whole, in a hundred times as much text. What a stopped
    build wrote of its last record is left out. Raises ValueError for a log that cannot be understood, OSError
    for one that cannot be read.
    """
    data = log.read_bytes()
    start = len(_SIGNATURE) + 4
    version = int.from_bytes(data[len(_SIGNATURE) : start], "little")
    if not data.startswith(_SIGNATURE) or len(data) < start or version not in _BEFORE:
        raise ValueError(f"{log}: no log of ninja's dependencies that can be read")
    names: list[str] = []
    needed: dict[int, array[int]] = {}
    try:
        for is_dependencies, record in _records(data, start):
            if is_dependencies:
                needed[struct.unpack_from("<i", record)[0]] = array("i", record[_BEFORE[version] :])
            else:
                names.append(record[:-4].rstrip(b"\0").decode("utf-8", "surrogateescape"))
        return {names[output]: [names[each] for each in read] for output, read in needed.items()}
    except (IndexError, struct.error):
        raise ValueError(f"{log}: names files that it does not list") from None


def _records(data: bytes, at: int) -> Iterator[tuple[bool, bytes]]:
    """Yield the records of a log of dependencies; each says whether it is one of those, or a path."""
    while at + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, at)
        size = word & ~_IS_DEPENDENCIES
        record = data[at + 4 : at + 4 + size]
        if len(record) < size:  # cut off
            return
        yield word != size, record
        at += 4 + size
