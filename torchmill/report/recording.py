"""A timeline as a whole: what the guard of one build wrote, read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchmill.errors import ConfigError
from torchmill.guard.timeline import SUFFIX, Event, Moment, Ran, Record, parse

_LONGEST = 2**20  # bytes of a line; a record has a few hundred


@dataclass(frozen=True)
class Recording:
    """One build as its guard saw it; everything in the order of time."""

    name: str
    moments: tuple[Moment, ...]
    runs: tuple[Ran, ...]  # by their beginning
    events: tuple[Event, ...]
    notes: tuple[str, ...] = ()  # what must be said of it

    @cached_property
    def wall(self) -> float:
        """Return the seconds from the build's start to the last that was seen of it."""
        moments = max((one.at for one in self.moments), default=0.0)
        return max([moments, *(one.ended for one in self.runs), *(one.at for one in self.events)])


def read(path: Path) -> Recording:
    """Return what a timeline holds; lines that were not written whole are left out, and a note says so.

    Raises ConfigError where it cannot be read, is empty, or is no timeline.
    """
    try:
        records, broken, last = _records(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a file that can") from None
    if not last:
        raise ConfigError(f"{path} is empty: that build ended before its guard saw anything of it")
    if not records and broken == [1] and last == 1 and _begins_one(path):
        raise ConfigError(f"{path} holds one line, cut off: that build was stopped before anything was seen")
    if not records or broken[:1] == [1]:
        raise ConfigError(f"{path} is no timeline of a build: name a wheel, a build's log, or its {SUFFIX}")
    return Recording(
        path.name.removesuffix(SUFFIX),
        tuple(sorted((one for one in records if isinstance(one, Moment)), key=lambda one: one.at)),
        tuple(sorted((one for one in records if isinstance(one, Ran)), key=lambda one: one.begun)),
        tuple(sorted((one for one in records if isinstance(one, Event)), key=lambda one: one.at)),
        tuple(_notes(broken, last)),
    )


def _records(path: Path) -> tuple[list[Record], list[int], int]:
    """Return the records, the numbers of the lines that hold none, and how many lines there are."""
    records: list[Record] = []
    broken: list[int] = []
    number = 0
    for number, line in enumerate(_lines(path), 1):
        try:
            records.append(parse(line))
        except ValueError:
            broken.append(number)
            if number == 1 and not line.startswith(b'{"record":'):
                break  # whatever it is, however long
    return records, broken, number


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(_LONGEST):
            yield line


def _begins_one(path: Path) -> bool:
    return next(_lines(path)).startswith(b'{"record":')


def _notes(broken: list[int], last: int) -> Iterator[str]:
    if broken[-1:] == [last]:
        yield "its last line is cut off: the build was stopped there, or goes on"
    if torn := [number for number in broken if number != last]:
        yield f"{len(torn)} of its {last} lines hold no record and are left out, the first is line {torn[0]}"
