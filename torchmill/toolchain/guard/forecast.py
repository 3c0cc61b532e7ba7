"""What the policy sees, and whether running units stay within memory until they end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FOREVER = float("inf")
MIB = 2**20
SLACK = 1.05  # of a peak that was measured: the same file with another option may need a little more
OVERSHOOT = 1.25  # of what a unit has, once it has more than was expected
SMALLEST_RESERVE, LARGEST_RESERVE, RESERVE = 96 * MIB, 1024 * MIB, 0.03  # the last: of what all may have


@dataclass(frozen=True, slots=True)
class Unit:
    """One compile or link, and what is expected of it."""

    key: str  # the same from build to build
    peak: int
    seconds: float
    weight: float = 1.0  # processors that it keeps busy: nvcc --threads 4 counts 4
    measured: bool = False  # it ran before; else all of this is what others of its kind need
    half: float = 0.0  # share of its time after which it has half of its peak; 0: it may have it at once

    @property
    def need(self) -> int:
        """Return the bytes that are set aside for it."""
        return int(self.peak * SLACK) if self.measured else self.peak


@dataclass(frozen=True, slots=True)
class UnitTicket:
    """A unit whose compiler wants to start, or has started."""

    number: int
    unit: Unit
    since: float  # when it asked; once it runs, when it started
    alone: bool = False  # it must have the machine to itself
    used: int = 0  # bytes that it has now
    paused: bool = False
    rested: float = 0.0  # seconds since it started in which it was paused

    @property
    def growth(self) -> int:
        """Return the bytes that it is still expected to take."""
        need = self.unit.need
        return need - self.used if self.used <= need else int(self.used * (OVERSHOOT - 1))


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """All that a decision follows from."""

    now: float
    headroom: int  # bytes that are still available
    limit: int  # bytes that all units together may have
    cores: float
    waiting: tuple[UnitTicket, ...] = ()
    running: tuple[UnitTicket, ...] = ()
    tokens: int = 0  # processors that clients of the jobserver keep busy
    ending: int = 0  # bytes of units that were told to end, and have not yet
    falling: float = 0.0  # bytes a second by which the headroom shrank between the last two looks
    rising: float = 0.0  # bytes a second by which what the units have grew meanwhile
    lag: float = 0.05  # seconds until the next look, as late as the last ones came


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a unit."""

    number: int


class Admit(Decision):
    """Let it start."""


class Pause(Decision):
    """Stop its processes where they are; they keep what they have and take no more."""


class Resume(Decision):
    """Let it go on, after a pause."""


class Rerun(Decision):
    """End its processes and let it ask again."""


def reserved_bytes(limit: int) -> int:
    """Return the bytes kept free for what nobody foresaw."""
    return int(min(LARGEST_RESERVE, max(SMALLEST_RESERVE, limit * RESERVE)))


@dataclass(frozen=True, slots=True)
class UnitForecast:
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
class RoomReservation:
    """Room kept for a unit that waits: of those behind it such may start as do not make it wait longer."""

    after: float  # seconds until there is room for it
    beside: int  # bytes that are free besides by then

    def lets_pass(self, new: UnitForecast) -> bool:
        """Tell whether a unit may start first: it ends in time, or finds room beside the one that waits."""
        if new.guess <= self.after:
            return True
        if new.growth > self.beside:
            return False
        self.beside -= new.growth
        return True


class MemoryForecast:
    """All that runs, within `room` bytes that are still available.

    Peaks that do not meet need not be added up: what is known to end soon makes room.
    """

    def __init__(self, room: float, running: Iterable[UnitForecast]) -> None:
        self._room = room
        self._running = list(running)
        self._spare = room - sum(one.growth for one in self._running)
        self._levels: dict[float, float] = {}  # bytes taken by the time at which one ends

    def fits(self, new: UnitForecast) -> bool:
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

    def reserve(self, need: int) -> RoomReservation | None:
        """Keep room for a unit that does not fit yet; None where it will not when all has ended either.

        Nothing is risked by a wrong guess here: who passes must fit beside what runs all the same.
        """
        spare, after = self._spare, 0.0
        for one in sorted(self._running, key=lambda one: one.guess):
            if spare >= need:
                break
            spare, after = spare + one.used + one.growth, one.guess
        return RoomReservation(after, int(spare - need)) if spare >= need else None

    def add(self, new: UnitForecast) -> None:
        """Let a unit start."""
        self._running.append(new)
        self._spare -= new.growth
        if self._levels:  # all anew for each of hundreds would take longer than there is between looks
            self._levels = {left: level + new.taken(left) for left, level in self._levels.items()}
            self._levels[new.left] = self._level(new.left)

    def _level(self, after: float) -> float:
        return sum(one.taken(after) for one in self._running)
