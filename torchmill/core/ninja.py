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
_FEWEST_EDGES = 5  # before an estimate is worth showing
# The share of the work that must be done before an estimate: the first files of torch are its
# quickest. It may be smaller if it is known which edges take long.
_EARLIEST_SHARE = 0.25
_EARLIEST_WEIGHED_SHARE = 0.01
# An edge of build.ninja, with its outputs; edges of "phony" make nothing.
_EDGE = re.compile(r"^build ((?:[^\s:|$]|\$.)++)(?:[^:\n$]|\$.)*+: (?!phony\b)", re.MULTILINE)
# A line of .ninja_log: begun, ended, time of the file, its path, hash of the command.
_LOG_TABS = 4
_LOG_PATH = 3
# .ninja_deps: https://github.com/ninja-build/ninja/blob/master/src/deps_log.h
_SIGNATURE = b"# ninjadeps\n"
_BEFORE_DEPENDENCIES = {3: 8, 4: 12}  # version of the log -> bytes of a record before them
_IS_DEPENDENCIES = 1 << 31  # a bit in the size of a record


@dataclass(frozen=True, slots=True)
class Edge:
    """One line of progress; `total` is 100 if a makefile of CMake counts in percent."""

    done: int
    total: int
    title: str  # "Building CXX object a.o"


def strip_colours(line: str) -> str:
    """Return `line` without terminal colours, which CMake and gcc may be told to use in a pipe."""
    return _COLOUR.sub("", line) if "\x1b" in line else line


def parse_edge(line: str) -> Edge | None:
    """Return the edge that a line of ninja or of a CMake makefile announces, or None."""
    line = strip_colours(line)
    match = _NINJA.match(line)
    if match is not None:
        total = int(match["total"])
    else:
        match = _MAKE.match(line)
        total = 100
    if match is None:
        return None
    done = int(match["done"])
    if total <= 0 or done > total:
        return None
    return Edge(done, total, match["title"].rstrip())


def parse_failure(line: str) -> str | None:
    """Return the output that a line of ninja says could not be made; None for every other line.

    ninja says it as soon as a command fails, and then waits for the commands that still run.
    """
    match = _FAILED.match(strip_colours(line))
    return match["output"] if match else None


def made_path(title: str) -> str:
    """Return the path of an edge's output; "" if its title does not say."""
    words = title.split()
    if title.startswith(("Building ", "Linking ")):
        return words[-1]
    # setuptools gives ninja no descriptions: its edges are whole commands. The last option wins.
    path = ""
    for flag, word in pairwise(words):
        if flag in {"-o", "--output-file"}:
            path = word
    return path


def unmade_outputs(folder: Path) -> list[str]:
    """Return the outputs of a build folder that no edge has made yet; [] without a build.ninja."""
    manifest = read_text(folder / "build.ninja")
    log = read_text(folder / ".ninja_log")
    made = set()
    for line in log.splitlines()[1:]:
        if line.count("\t") == _LOG_TABS:
            made.add(line.split("\t")[_LOG_PATH])
    unmade = []
    for match in _EDGE.finditer(manifest):
        output = re.sub(r"\$(.)", r"\1", match[1])  # "$ " and "$:" are escaped characters
        if output not in made:
            unmade.append(output)
    return unmade


class EdgePace:
    """The speed at which edges are done, from which the remaining time follows.

    Edges count by their weight: the seconds that `weigh` expects for the path of an output.
    `list_coming` returns the outputs to be made, when a run begins.

    The pace is that of the later half of the work or of the time, whichever is shorter: a run often
    begins with cached edges, which are much of its work and take no time, and so say nothing about
    those that are compiled. Times are seconds on any steady clock.
    """

    def __init__(
        self,
        weigh: Callable[[str], float] = lambda _: 1.0,
        coming: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.edge: Edge | None = None
        # The outputs are known, so that the share of the work says more than the number of edges.
        self.weighed = False
        self._weigh = weigh
        self._list_coming = coming
        self._coming: dict[str, float] = {}  # outputs to be made -> their weight
        self._coming_weight = 0.0  # the sum of these
        # One element per line of progress: the weight done until then, and when.
        self._done: list[float] = []
        self._at: list[float] = []

    def record(self, edge: Edge, now: float) -> None:
        """Take note of an edge."""
        if self.edge is None or edge.done < self.edge.done:  # another run of ninja
            self._begin_run()
            count = edge.done or 1
        else:
            count = edge.done - self.edge.done
        self.edge = edge
        if count:
            done_before = self._done[-1] if self._done else 0.0
            self._done.append(done_before + self._take_weight(edge, count))
            self._at.append(now)

    def _begin_run(self) -> None:
        self._coming = {path: self._weigh(path) for path in self._list_coming()}
        self._coming_weight = sum(self._coming.values())
        self.weighed = bool(self._coming)
        self._done = []
        self._at = []

    def _take_weight(self, edge: Edge, count: int) -> float:
        """Return the weight of `count` edges, the last of which is `edge`."""
        path = made_path(edge.title)
        if path in self._coming:
            weight = self._coming.pop(path)
            self._coming_weight -= weight
            return weight
        return self._weigh(path) * count

    @property
    def share(self) -> float:
        """Return which share of the work is done, from 0 to 1."""
        if self.edge is None:
            return 0.0
        done = self._done[-1]
        return done / (done + self._weight_left(self.edge))

    def _weight_left(self, edge: Edge) -> float:
        edges_left = edge.total - edge.done
        # Not all outputs of build.ninja are made in this run, so that their sum would be too much:
        # a remaining edge weighs what they do on average.
        if self._coming:
            return edges_left * self._coming_weight / len(self._coming)
        return edges_left * self._done[-1] / max(1, edge.done)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that the rest may take; None while there is no estimate."""
        if self.edge is None or len(self._done) <= _FEWEST_EDGES:
            return None
        earliest = _EARLIEST_WEIGHED_SHARE if self.weighed else _EARLIEST_SHARE
        if self.share < earliest:
            return None
        later_half = max(_last_before_middle(self._done), _last_before_middle(self._at))
        since = min(later_half, len(self._done) - 1 - _FEWEST_EDGES)
        seconds = self._at[-1] - self._at[since]
        weight = self._done[-1] - self._done[since]
        left = self._weight_left(self.edge) * seconds / weight
        return max(0.0, left - (now - self._at[-1]))


def _last_before_middle(series: list[float]) -> int:
    """Return the index of the last number of a rising series that is in the lower half of it."""
    middle = (series[0] + series[-1]) / 2
    return bisect_right(series, middle) - 1


def read_dependencies(log: Path) -> dict[str, list[str]]:
    """Return the files read for each output, as the compilers reported them, from a `.ninja_deps`.

    `ninja -t deps` prints the same in a hundred times as much text, and needs a valid build.ninja.
    The incomplete last record of a stopped build is left out. Raises ValueError for an invalid log,
    OSError if the log cannot be read.
    """
    data = log.read_bytes()
    start = len(_SIGNATURE) + 4
    version = int.from_bytes(data[len(_SIGNATURE) : start], "little")
    is_complete = len(data) >= start
    if not data.startswith(_SIGNATURE) or not is_complete or version not in _BEFORE_DEPENDENCIES:
        raise ValueError(f"{log}: cannot be read as ninja's log of dependencies")
    header_bytes = _BEFORE_DEPENDENCIES[version]
    paths: list[str] = []
    # Numbers of paths. An array takes an eighth of a list's memory.
    inputs: dict[int, array[int]] = {}
    try:
        for is_dependencies, record in _read_records(data, start):
            if is_dependencies:
                (output,) = struct.unpack_from("<i", record)
                inputs[output] = array("i", record[header_bytes:])  # a later record replaces it
            else:
                # A path is padded with zeros to a multiple of four, and followed by a checksum.
                path = record[:-4].rstrip(b"\0")
                paths.append(path.decode("utf-8", "surrogateescape"))
        dependencies = {}
        for output, numbers in inputs.items():
            dependencies[paths[output]] = [paths[number] for number in numbers]
    except (IndexError, struct.error):
        raise ValueError(f"{log}: names files that it does not list") from None
    return dependencies


def _read_records(data: bytes, at: int) -> Iterator[tuple[bool, bytes]]:
    """Yield the records of a log from a position on: is it one of dependencies, and its content."""
    while at + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, at)
        size = word & ~_IS_DEPENDENCIES
        record = data[at + 4 : at + 4 + size]
        if len(record) < size:  # cut off
            return
        yield word != size, record
        at += 4 + size
