"""Whether units that run together stay within the memory, until each of them has ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a unit is expected to do: it takes so many bytes more, evenly, and at its end gives back all."""

    left: float  # seconds until it ends; FOREVER: nobody knows
    used: int  # bytes
    growth: int  # bytes
    rise: float  # seconds in which it takes them, above 0
    guess: float  # seconds until it ends, as others of its kind did where nobody knows

    def risen(self, after: float) -> float:
        """Return the bytes that it will have taken after so many seconds, should it still run."""
        return self.growth * min(1.0, after / self.rise)

    def taken(self, after: float) -> float:
        """Return the bytes that it will have taken after so many seconds: below 0, given back."""
        return self.risen(after) if self.left >= after else -self.used


@dataclass(slots=True)
class Reservation:
    """Room kept for a unit that waits: of those behind it such may start as do not make it wait longer."""

    after: float  # seconds until there is room for it
    beside: int  # bytes that are free besides by then

    def lets_pass(self, new: Forecast) -> bool:
        """Tell whether a unit may start first: it ends in time, or finds room beside the one that waits."""
        if new.guess <= self.after:
            return True
        if new.growth > self.beside:
            return False
        self.beside -= new.growth
        return True


class Future:
    """All that runs, within `room` bytes that can still be had.

    Peaks that do not meet need not be added up: what is known to end soon makes room.
    """

    def __init__(self, room: float, running: Iterable[Forecast]) -> None:
        self._room = room
        self._running = list(running)
        self._spare = room - sum(one.growth for one in self._running)
        self._levels: dict[float, float] = {}  # bytes taken by the time at which one ends

    def fits(self, new: Forecast) -> bool:
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

    def reserve(self, need: int) -> Reservation | None:
        """Keep room for a unit that does not fit yet; None where it will not when all has ended either.

        Nothing is risked by a wrong guess here: who passes must fit beside what runs all the same.
        """
        spare, after = self._spare, 0.0
        for one in sorted(self._running, key=lambda one: one.guess):
            if spare >= need:
                break
            spare, after = spare + one.used + one.growth, one.guess
        return Reservation(after, int(spare - need)) if spare >= need else None

    def add(self, new: Forecast) -> None:
        """Let a unit start."""
        self._running.append(new)
        self._spare -= new.growth
        if self._levels:  # all anew for each of hundreds would take longer than there is between looks
            self._levels = {left: level + new.taken(left) for left, level in self._levels.items()}
            self._levels[new.left] = self._level(new.left)

    def _level(self, after: float) -> float:
        return sum(one.taken(after) for one in self._running)
