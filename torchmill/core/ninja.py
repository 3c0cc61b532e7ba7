"""Read ninja's progress, estimate the remaining time, and read its record of dependencies.

An edge is ninja's word for a command of the build with its outputs, most often the compilation of
one file.
"""

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
_FEWEST_EDGES = 5  # that must be done before an estimate is worth showing
# The share of the work that must be done before an estimate is shown, because the first files of
# torch are its quickest. If the weights of the edges are known, less must be done.
_EARLIEST_SHARE = 0.25
_EARLIEST_WEIGHED_SHARE = 0.01
# An edge in build.ninja; the group is its first output. Edges of the rule "phony" make nothing.
_EDGE = re.compile(r"^build ((?:[^\s:|$]|\$.)++)(?:[^:\n$]|\$.)*+: (?!phony\b)", re.MULTILINE)
# A line of .ninja_log has five fields with tabs between them: start, end, time of the file, path of
# the file, hash of the command.
_LOG_TABS = 4
_LOG_PATH = 3  # the index of the path
# .ninja_deps: https://github.com/ninja-build/ninja/blob/master/src/deps_log.h
_SIGNATURE = b"# ninjadeps\n"
# Version of the log -> bytes of a record before its inputs: the output's number, and its time.
_BEFORE_INPUTS = {3: 8, 4: 12}
_HAS_INPUTS = 1 << 31  # a bit in the size of a record: it lists inputs, and not the path of a file


@dataclass(frozen=True, slots=True)
class Edge:
    """One line of progress; `total` is 100 if a makefile of CMake counts in percent."""

    done: int
    total: int
    title: str  # "Building CXX object a.o"


def strip_colours(line: str) -> str:
    """Return a line without terminal colours, which options make CMake and gcc write into pipes."""
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
    """Return the path of the output that a line of ninja reports as failed; None for other lines.

    ninja prints this line as soon as a command fails, and then waits for the commands that still
    run.
    """
    match = _FAILED.match(strip_colours(line))
    if match is None:
        return None
    return match["output"]


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
    """Return the outputs in a build folder that ninja has never made.

    Of an edge with several outputs, the first counts. Without a build.ninja there are none.
    """
    manifest = read_text(folder / "build.ninja")
    log = read_text(folder / ".ninja_log")
    made_outputs = set()
    for line in log.splitlines()[1:]:  # the first line is the version of the format
        if line.count("\t") == _LOG_TABS:  # a killed ninja may have written half of the last line
            made_outputs.add(line.split("\t")[_LOG_PATH])
    unmade = []
    for match in _EDGE.finditer(manifest):
        output = re.sub(r"\$(.)", r"\1", match[1])  # "$ " and "$:" are escaped characters
        if output not in made_outputs:
            unmade.append(output)
    return unmade


class EdgePace:
    """The speed at which a build's edges are done, and the remaining time that follows from it.

    Each edge has a weight, more than 0: the seconds that `weigh` expects its output, given by its
    path, to take. By default all weigh the same. `list_coming` is called when a run of ninja
    begins, and returns the outputs that the run may make; by default they are unknown. Times are
    seconds on any steady clock.

    The speed is measured over the later half of the work or the later half of the time, whichever
    began later. Many runs begin with cached edges, which are much of the work and take no time, and
    so say nothing about the edges that are compiled after them.
    """

    def __init__(
        self,
        weigh: Callable[[str], float] = lambda _: 1.0,
        list_coming: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.edge: Edge | None = None  # the last one that was recorded
        # Whether the outputs are known: then `share` says more than the number of edges.
        self.weighed = False
        self._weigh = weigh
        self._list_coming = list_coming
        self._coming: dict[str, float] = {}  # the outputs that are not made yet -> their weights
        self._coming_weight = 0.0  # the sum of these weights
        # For each recorded edge, the weight that was done with it, and the time.
        self._done: list[float] = []
        self._at: list[float] = []

    def record(self, edge: Edge, now: float) -> None:
        """Note that an edge was reported at the time `now`.

        A number of edges that is lower than before shows that another run of ninja has begun.
        """
        if self.edge is None or edge.done < self.edge.done:
            self._begin_run()
            count = edge.done or 1
        else:
            count = edge.done - self.edge.done
        self.edge = edge
        if count:  # CMake's makefiles repeat a percentage
            done_before = self._done[-1] if self._done else 0.0
            self._done.append(done_before + self._take_weight(edge, count))
            self._at.append(now)

    def _begin_run(self) -> None:
        """Forget the edges of an earlier run of ninja, and list the outputs of a new run."""
        self._coming = {path: self._weigh(path) for path in self._list_coming()}
        self._coming_weight = sum(self._coming.values())
        self.weighed = bool(self._coming)
        self._done = []
        self._at = []

    def _take_weight(self, edge: Edge, count: int) -> float:
        """Return the weight of the last `count` edges, and note that `edge` is no longer coming.

        A line of progress may stand for several edges, and has the title of the last.
        """
        path = made_path(edge.title)
        if path in self._coming:
            weight = self._coming.pop(path)
            self._coming_weight -= weight
            return weight
        return self._weigh(path) * count

    @property
    def share(self) -> float:
        """Return the share of the work that is done, from 0 to 1."""
        if self.edge is None:
            return 0.0
        done = self._done[-1]
        return done / (done + self._remaining_weight(self.edge))

    def _remaining_weight(self, edge: Edge) -> float:
        """Return the weight of the edges that remain after `edge`."""
        edges_left = edge.total - edge.done
        # This run does not make all outputs of build.ninja, so the sum of their weights would be
        # too large. Their average is taken for each remaining edge.
        if self._coming:
            return edges_left * self._coming_weight / len(self._coming)
        return edges_left * self._done[-1] / max(1, edge.done)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds that the rest of the build may take; None while it is too early."""
        if self.edge is None or len(self._done) <= _FEWEST_EDGES:
            return None
        earliest_share = _EARLIEST_SHARE
        if self.weighed:
            earliest_share = _EARLIEST_WEIGHED_SHARE
        if self.share < earliest_share:
            return None
        later_half = max(_last_before_middle(self._done), _last_before_middle(self._at))
        start = min(later_half, len(self._done) - 1 - _FEWEST_EDGES)
        seconds = self._at[-1] - self._at[start]
        weight = self._done[-1] - self._done[start]
        seconds_at_last_edge = self._remaining_weight(self.edge) * seconds / weight
        return max(0.0, seconds_at_last_edge - (now - self._at[-1]))


def _last_before_middle(series: list[float]) -> int:
    """Return the index of the last number in a rising series that is not above its middle value."""
    middle = (series[0] + series[-1]) / 2
    return bisect_right(series, middle) - 1


def read_dependencies(log: Path) -> dict[str, list[str]]:
    """Return the input files of each output, as the compilers reported them, from a `.ninja_deps`.

    Paths are as ninja has them: those in the build folder are relative to it. `ninja -t deps`
    prints the same in a hundred times as much text, and needs a valid build.ninja. The incomplete
    last record of a stopped build is left out. Raises ValueError for an invalid log, OSError if the
    log cannot be read.
    """
    data = log.read_bytes()
    start = len(_SIGNATURE) + 4
    version = int.from_bytes(data[len(_SIGNATURE) : start], "little")
    is_complete = len(data) >= start
    if not data.startswith(_SIGNATURE) or not is_complete or version not in _BEFORE_INPUTS:
        raise ValueError(f"{log}: cannot be read as ninja's log of dependencies")
    header_bytes = _BEFORE_INPUTS[version]
    paths: list[str] = []  # the n-th path in the log is that of the file with the number n
    # Numbers of outputs -> those of their inputs. An array takes an eighth of a list's memory.
    inputs: dict[int, array[int]] = {}
    try:
        for has_inputs, record in _read_records(data, start):
            if has_inputs:
                (output,) = struct.unpack_from("<i", record)
                # The last record of an output counts.
                inputs[output] = array("i", record[header_bytes:])
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
    """Yield the records from a position on: whether a record has inputs, and its content."""
    while at + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, at)
        size = word & ~_HAS_INPUTS
        record = data[at + 4 : at + 4 + size]
        if len(record) < size:  # a killed ninja wrote a part of it
            return
        yield bool(word & _HAS_INPUTS), record
        at += 4 + size
