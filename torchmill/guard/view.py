"""What the policy decides upon, and its decisions. Bytes and seconds throughout."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
SLACK = 1.05  # of a peak that was measured: the same file with another option may need a little more
OVERSHOOT = 1.25  # of what a unit has, once it has more than was expected
SMALLEST_RESERVE, LARGEST_RESERVE, RESERVE = 96 * MIB, 1024 * MIB, 0.03  # the last: of what all may have


@dataclass(frozen=True, slots=True)
class Unit:
    """One compile or link, and what is expected of it."""

    key: str  # what it is known by from build to build
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
class Ticket:
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
class View:
    """All that a decision follows from."""

    now: float
    headroom: int  # bytes that can still be had
    limit: int  # bytes that all units together may have
    cores: float
    waiting: tuple[Ticket, ...] = ()
    running: tuple[Ticket, ...] = ()
    tokens: int = 0  # processors that clients of the jobserver keep busy
    ending: int = 0  # bytes of units that were told to end, and have not yet
    falling: float = 0.0  # bytes a second by which the headroom shrank between the last two looks
    rising: float = 0.0  # bytes a second by which what the units have grew meanwhile
    lag: float = 0.05  # seconds until the next look, as late as the last ones came


@dataclass(frozen=True, slots=True)
class Admit:
    """Let a unit start."""

    number: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop a unit's processes where they are; they keep what they have and take no more."""

    number: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Let a paused unit go on."""

    number: int


@dataclass(frozen=True, slots=True)
class Rerun:
    """End a unit's processes and let it ask again."""

    number: int


Decision = Admit | Pause | Resume | Rerun


def reserve(limit: int) -> int:
    """Return the bytes kept free for what nobody foresaw."""
    return int(min(LARGEST_RESERVE, max(SMALLEST_RESERVE, limit * RESERVE)))
