"""Read ninja's progress, how long the rest of it takes, and its record of files read."""

import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torchmill.core.lenient_paths import read_text

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NINJA = re.compile(r"\s*\[\s*(?P<done>\d+)/(?P<total>\d+)\]\s+(?P<title>\S.*)")
_MAKE = re.compile(r"\s*\[\s*(?P<done>\d+)%\]\s+(?P<title>\S.*)")
_FAILED = re.compile(r"FAILED: (?:\[code=\d+\] )?(?P<output>\S+)")  # the code since ninja 1.13
_FEWEST = 5  # edges before an estimate is worth showing
_EARLIEST = 0.25  # and this share of all: the first files of torch are its quickest
_EARLIEST_WEIGHED = 0.01  # where it is known what takes long
_EDGE = re.compile(
    r"^build ((?:[^\s:|$]|\$.)++)(?:[^:\n$]|\$.)*+: (?!phony\b)", re.MULTILINE
)  # of build.ninja
_LOG_TABS = (
    4  # in a line of .ninja_log: begun, ended, time of the file, its path, hash of the command
)
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


def parse_failure(line: str) -> str | None:
    """Return the output that a line of ninja says could not be made; None for every other line.

    ninja says it as soon as a command fails, and then waits for the commands that still run.
    """
    match = _FAILED.match(strip_colours(line))
    return match["output"] if match else None


def made_path(title: str) -> str:
    """Return the path of what an edge makes; "" where its title does not say."""
    words = title.split()
    if title.startswith(("Building ", "Linking ")):
        return words[-1]
    # setuptools gives ninja no descriptions: its edges are whole commands
    made = [word for flag, word in pairwise(words) if flag in {"-o", "--output-file"}]
    return made[-1] if made else ""


def unmade_outputs(folder: Path) -> list[str]:
    """Return what the edges of a build folder make and none has made yet; [] where there is no build.ninja."""
    edges, log = read_text(folder / "build.ninja"), read_text(folder / ".ninja_log")
    made = {line.split("\t")[3] for line in log.splitlines()[1:] if line.count("\t") == _LOG_TABS}
    outputs = (re.sub(r"\$(.)", r"\1", match[1]) for match in _EDGE.finditer(edges))
    return [output for output in outputs if output not in made]


class EdgePace:
    """How fast edges were done, from which follows how long the rest takes.

    Edges count by their weight: the seconds that `weigh` expects of a path that is made; `coming` returns what is
    still to be made when a run begins. The pace is that of the later half of the work or of the time, whichever is
    shorter: a run often begins with cached edges, which are much of its work and take no time, and they tell nothing
    of those that are compiled. Times are seconds on any steady clock.
    """

    def __init__(
        self,
        weigh: Callable[[str], float] = lambda _: 1.0,
        coming: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.edge: Edge | None = None
        self.weighed = False  # is it known what is to be made, so that a share says more than the number of edges?
        self._weigh, self._list_coming = weigh, coming
        self._coming: dict[str, float] = {}
        self._rest = 0.0  # weight of those
        self._done: list[float] = []  # weight that was done
        self._at: list[float] = []  # and when

    def record(self, edge: Edge, now: float) -> None:
        """Take note of an edge."""
        if self.edge is None or edge.done < self.edge.done:  # it counts from the start: another run
            self._coming = {path: self._weigh(path) for path in self._list_coming()}
            self._rest = sum(self._coming.values())
            self.weighed = bool(self._coming)
            self._done, self._at = [], []
            edges = edge.done or 1
        else:
            edges = edge.done - self.edge.done
        self.edge = edge
        if edges:
            self._done.append(self._weight(edge, edges) + (self._done[-1] if self._done else 0.0))
            self._at.append(now)

    def _weight(self, edge: Edge, edges: int) -> float:
        path = made_path(edge.title)
        if path in self._coming:
            weight = self._coming.pop(path)
            self._rest -= weight
            return weight
        return self._weigh(path) * edges

    @property
    def share(self) -> float:
        """Return which share of the work is done, from 0 to 1."""
        return (
            self._done[-1] / (self._done[-1] + self._weight_left(self.edge)) if self.edge else 0.0
        )

    def _weight_left(self, edge: Edge) -> float:
        # not all that could be made is made: an edge left weighs what those do on average
        if self._coming:
            return (edge.total - edge.done) * self._rest / len(self._coming)
        return (edge.total - edge.done) * self._done[-1] / max(1, edge.done)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that the rest may take; None while nothing can be said."""
        if self.edge is None or len(self._done) <= _FEWEST:
            return None
        if self.share < (_EARLIEST_WEIGHED if self.weighed else _EARLIEST):
            return None
        later = (
            bisect_right(series, (series[0] + series[-1]) / 2) - 1
            for series in (self._done, self._at)
        )
        since = min(max(later), len(self._done) - 1 - _FEWEST)
        pace = (self._at[-1] - self._at[since]) / (self._done[-1] - self._done[since])
        return max(0.0, self._weight_left(self.edge) * pace - (now - self._at[-1]))


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
        raise ValueError(f"{log}: cannot be read as ninja's log of dependencies")
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
