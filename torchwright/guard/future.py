"""Whether units that run together stay within the memory, until each of them has ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Course:
    """What a unit is expected to do: it takes so many bytes more, evenly, and at its end gives back all."""

    left: float  # seconds until it ends; FOREVER: nobody knows
    used: int  # bytes
    growth: int  # bytes
    rise: float  # seconds in which it takes them, above 0

    def risen(self, after: float) -> float:
        """Return the bytes that it will have taken after so many seconds, should it still run."""
        return self.growth * min(1.0, after / self.rise)


class Future:
    """All that runs, within `room` bytes that can still be had.

    Peaks that do not meet need not be added up: what is known to end soon makes room.
    """

    def __init__(self, room: float, running: Iterable[Course]) -> None:
        self._room = room
        self._running = list(running)
        self._spare = room - sum(one.growth for one in self._running)
        self._levels: dict[float, float] = {}  # bytes taken by the time at which one ends

    def fits(self, new: Course) -> bool:
        """Tell whether a unit can start now, and all stay within the room until each has ended."""
        if new.growth <= self._spare:
            return True
        if self._level(new.left) + new.growth > self._room:
            return False
        if not self._levels:
            self._levels = {left: self._level(left) for left in {one.left for one in self._running}}
        return all(
            level + new.risen(left) <= self._room for left, level in self._levels.items() if left <= new.left
        )

    def add(self, new: Course) -> None:
        """Let a unit start."""
        self._running.append(new)
        self._spare -= new.growth
        self._levels.clear()

    def _level(self, after: float) -> float:
        """Return the bytes that will have been taken after so many seconds: below 0, given back."""
        return sum(one.risen(after) if one.left >= after else -one.used for one in self._running)
