"""How much memory can still be had, and how fast it goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

SHORTEST = 0.01  # seconds that a pace is measured over: within less, a few pages would be a flood
LATELY = 8  # looks


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for units."""

    headroom: int  # bytes that can still be had
    cores: float  # processors to keep busy
    falling: float  # bytes a second by which the headroom shrinks
    rising: float  # bytes a second by which what the units have grows
    late: float  # seconds by which looks come too late, on a machine with much to do


class Gauge:
    """Look at what there is, again and again.

    `measure` says how many bytes the machine has left for units that have so many already; `most` is what a
    user lets all of them have together; `cores` counts the processors to keep busy.
    """

    def __init__(self, measure: Callable[[int], int], most: int | None, cores: Callable[[], float]) -> None:
        self._measure, self._most, self._cores = measure, most, cores
        self._falling = self._rising = 0.0
        self._compared: tuple[float, int, int] | None = None  # when, and the headroom and the use of then
        self._late: deque[float] = deque(maxlen=LATELY)

    def read(self, now: float, due: float, used: int) -> Room:
        """Measure now, where it was due then, both in seconds; `used` is what the units have, in bytes."""
        here = self._measure(used)
        headroom = here if self._most is None else min(here, self._most - used)
        self._late.append(max(0.0, now - due))
        at, left, had = self._compared or (now, headroom, used)
        passed = now - at
        if self._compared is None or passed >= SHORTEST:
            self._compared = now, headroom, used
            self._falling = max(0.0, (left - headroom) / passed) if passed else 0.0
            self._rising = max(0.0, (used - had) / passed) if passed else 0.0
        return Room(headroom, self._cores(), self._falling, self._rising, max(self._late))
