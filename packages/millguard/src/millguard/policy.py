"""Decide which compilers run, pause or run again: a pure function.

A unit is one compile or link. It is admitted where its memory fits beside that of all that run until each
has ended, as far as that is known. Where it turns out otherwise units are paused, so that the oldest can
end and make room, and what ends before the oldest wants its memory; and where even that is too much the
youngest are ended, and run again. Bytes and seconds throughout.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

FOREVER = float("inf")
MIB = 2**20
SLACK = (
    1.05  # of a peak that was measured: the same file with another option may need a little more
)
OVERSHOOT = 1.25  # of what a unit has, once it has more than was expected
SMALLEST_RESERVE, LARGEST_RESERVE, RESERVE = (
    96 * MIB,
    1024 * MIB,
    0.03,
)  # the last: of what all may have
# What is expected of a unit that was measured.
LATE = 0.25  # of its time, by which it may end later than it did
RISEN = 1.6  # of the time in which it had half of its peak: it is thought to have all of it then
HIGHEST = 0.8  # of its time: it is thought to have its peak then, if not before
AT_ONCE = 1e-3  # seconds
# Who starts.
CONSIDERED = 64  # waiting units at a time: a decision must not take long
WAIT_LIMIT_SECONDS = 300.0  # seconds for which a unit lets greater ones go first
# What is done where little is left.
TIGHT, EMPTY = 0.5, 0.25  # of the reserve: units are paused, and ended
TEARDOWN = 0.06  # seconds in which the kernel takes back the memory of a process that was ended
# How often the memory is looked at.
SOONEST, LATEST = 0.01, 0.1  # seconds between two looks
STEEP = 400 * MIB  # bytes a second that a unit may take
TWICE = 2  # as fast as it did, that a unit which was measured may grow for a moment
HASTE = 4  # looks before all is gone, as fast as it goes


@dataclass(frozen=True, slots=True)
class Unit:
    """One compile or link, and what is expected of it."""

    key: str  # the same from build to build
    peak: int
    seconds: float
    weight: float = 1.0  # processors that it keeps busy: nvcc --threads 4 counts 4
    measured: bool = False  # it ran before; else all of this is what others of its kind need
    half: float = (
        0.0  # share of its time after which it has half of its peak; 0: it may have it at once
    )

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
    paused: float | None = None  # since when it is
    rested: float = 0.0  # seconds since it started in which it was paused before

    def ran(self, now: float) -> float:
        """Return the seconds since it started in which it was not paused."""
        return (now if self.paused is None else self.paused) - self.since - self.rested

    def resumed(self, now: float) -> "UnitTicket":
        """Return it as it is when it goes on after a pause."""
        return replace(self, paused=None, rested=now - self.since - self.ran(now))

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
            level + new.risen(left) <= self._room
            for left, level in self._levels.items()
            if left <= new.left
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
        if (
            self._levels
        ):  # all anew for each of hundreds would take longer than there is between looks
            self._levels = {left: level + new.taken(left) for left, level in self._levels.items()}
            self._levels[new.left] = self._level(new.left)

    def _level(self, after: float) -> float:
        return sum(one.taken(after) for one in self._running)


def decide(state: PolicyInput) -> tuple[Decision, ...]:
    """Return what to do now."""
    if relief := tuple(_relief(state)):
        return relief
    resumed = tuple(_resumed(state))
    going = {one.number for one in resumed}
    running = tuple(one.resumed(state.now) if one.number in going else one for one in state.running)
    return (*resumed, *_admitted(replace(state, running=running)))


def seconds_to_shortage(state: PolicyInput) -> float:
    """Return the seconds until the memory may be short; infinite where nothing takes any."""
    moving = sum(one.paused is None for one in state.running)
    spare = state.headroom - TIGHT * reserved_bytes(state.limit)
    pace = max(STEEP * moving, HASTE * state.falling)
    return spare / pace if pace else FOREVER


def next_look(state: PolicyInput) -> float:
    """Return the seconds after which the memory must be looked at again."""
    return max(SOONEST, min(LATEST, seconds_to_shortage(state)))


def spare_tokens(state: PolicyInput, typical: int) -> int:
    """Return how many more units of a typical size clients of the jobserver may start unasked."""
    if state.waiting:
        return 0  # those that ask come first: more is known of them
    idle = state.cores - max(_busy(state.running), state.tokens)
    unseen = max(0, state.tokens - len(state.running))  # they have still to take what they need
    free = state.headroom - reserved_bytes(state.limit) - sum(one.growth for one in state.running)
    return max(0, min(int(idle), free // typical - unseen))


def _busy(running: Sequence[UnitTicket]) -> float:
    return sum(one.unit.weight for one in running if one.paused is None)


def _relief(state: PolicyInput) -> Iterator[Decision]:
    """Yield what keeps memory from being taken where little is left, and what frees some of it.

    Pausing frees nothing, so it comes before too little is left; the oldest go on, for when they end there
    is room. Who is ended loses what was done: that comes last, and never to the oldest.
    """
    kept = reserved_bytes(state.limit)
    oldest_first = sorted(state.running, key=lambda one: (one.since, one.number))
    moving = [one for one in oldest_first if one.paused is None]
    fall = _fall(state, moving)
    room, soon = state.headroom - EMPTY * kept, state.headroom - fall
    if fall <= sum(one.growth for one in moving) <= room:
        return
    empty = soon < EMPTY * kept
    enough = soon >= TIGHT * kept + (moving[0].growth if moving else 0)
    if enough and not empty:
        return
    ended: set[int] = set()
    wanted = kept - soon - state.ending if empty and (room < 0 or not moving) else 0
    for one in reversed(oldest_first[1:]):  # the youngest, until so many bytes come of them
        if wanted > 0:
            ended.add(one.number)
            wanted -= one.used
    halted = (
        _too_many(state, moving, room) if not empty else moving if len(oldest_first) > 1 else ()
    )
    yield from (Rerun(number) for number in ended)
    yield from (Pause(one.number) for one in halted if one.number not in ended)


def _fall(state: PolicyInput, moving: Sequence[UnitTicket]) -> float:
    """Return the bytes that may be taken before what is decided now has its effect.

    Units that were measured are taken at their word, twice; of all else the pace counts.
    """
    seconds = 2 * state.lag + TEARDOWN
    if not all(one.unit.measured for one in moving):
        return state.falling * seconds
    own = sum(min(one.growth, TWICE * _going(one, state.now).risen(seconds)) for one in moving)
    return min(own, state.rising * seconds) + max(0.0, state.falling - state.rising) * seconds


def _too_many(
    state: PolicyInput, moving: Sequence[UnitTicket], room: float
) -> Sequence[UnitTicket]:
    """Return those that cannot go on beside the oldest, which always can, and those that end before them.

    It is asked as for what is let go on, one by one: what memory the oldest will want when another has ended
    is no reason to halt that one, whose end makes room. In the order of their ends none that was halted
    would fit beside the rest after all, and be let go on at once.
    """
    going = [(_going(one, state.now), one) for one in moving]
    future = MemoryForecast(room, (forecast for forecast, _ in going[:1]))
    halted = []
    for forecast, one in sorted(going[1:], key=lambda each: each[0].left):
        if future.fits(forecast):
            future.add(forecast)
        else:
            halted.append(one)
    return halted


def _resumed(state: PolicyInput) -> Iterator[Resume]:
    """Yield the paused units that may go on, oldest first; one always may where nothing else moves."""
    moving = [one for one in state.running if one.paused is None]
    future = MemoryForecast(
        state.headroom - reserved_bytes(state.limit), (_going(one, state.now) for one in moving)
    )
    idle = not moving
    paused = (one for one in state.running if one.paused is not None)
    for one in sorted(paused, key=lambda one: (one.since, one.number)):
        forecast = _going(one.resumed(state.now), state.now)
        if (idle and not state.ending) or future.fits(forecast):
            future.add(forecast)
            idle = False
            yield Resume(one.number)


def _admitted(state: PolicyInput) -> Iterator[Admit]:
    """Yield the units that may start: the greatest first, others past those that do not fit.

    Where ends are guesses the first that does not fit keeps room: only such pass it as let it start no
    later. This is EASY backfilling (Lifka 1995), with memory for nodes, and what others of a kind took for
    what users state. Where ends are known what fits beside them is known, and room that is kept lies idle.
    What has waited too long comes first and keeps room; where that cannot be, as for what never fits, it
    lets nobody pass. Where nothing runs something starts all the same, for nothing else would make room.
    """
    if not state.waiting or any(one.alone for one in state.running):
        return
    going = (_going(one, state.now) for one in state.running)
    future = MemoryForecast(state.headroom - reserved_bytes(state.limit), going)
    busy, started, kept = _busy(state.running), bool(state.running), None
    known = all(one.unit.measured for one in state.running)
    for one in _in_order(state)[:CONSIDERED]:
        if busy >= state.cores and started:
            return
        forecast = _forecast(one.unit)
        beside = not one.alone and (busy == 0 or busy + one.unit.weight <= state.cores)
        if beside and future.fits(forecast) and (kept is None or kept.lets_pass(forecast)):
            yield Admit(one.number)
            future.add(forecast)
            busy, started = busy + one.unit.weight, True
        elif kept is None:
            late = _impatient(state, one)
            if beside and (late or not (known and one.unit.measured)):
                kept = future.reserve(one.unit.need)
            if kept is None and late:
                if not started:
                    yield Admit(one.number)
                return
    if not started:
        yield Admit(
            min(state.waiting, key=lambda one: (one.alone, one.unit.need, one.number)).number
        )


def _forecast(unit: Unit) -> UnitForecast:
    ends = unit.seconds * (1 + LATE)
    if not unit.measured:
        return UnitForecast(FOREVER, 0, unit.need, AT_ONCE, ends)
    rise = min(RISEN * unit.half, HIGHEST) * unit.seconds
    return UnitForecast(ends, 0, unit.need, max(rise, AT_ONCE), ends)


def _going(one: UnitTicket, now: float) -> UnitForecast:
    """Return what a unit that runs is expected to do from now on."""
    fresh, past = _forecast(one.unit), one.ran(now)
    guess = max(fresh.guess - past, one.unit.seconds * LATE)
    if one.paused is not None:
        return UnitForecast(FOREVER, one.used, one.growth, AT_ONCE, guess)
    left = guess if one.unit.measured else FOREVER
    return UnitForecast(left, one.used, one.growth, max(fresh.rise - past, AT_ONCE), guess)


def _impatient(state: PolicyInput, one: UnitTicket) -> bool:
    return state.now - one.since > WAIT_LIMIT_SECONDS


def _in_order(state: PolicyInput) -> Sequence[UnitTicket]:
    """Return what waits: the impatient, then what takes most memory for longest.

    Small units fill what gaps the great ones leave; the other way round these would run alone at the end.
    """

    def rank(one: UnitTicket) -> tuple[bool, bool, float, int]:
        return not _impatient(state, one), one.alone, -one.unit.seconds * one.unit.need, one.number

    return sorted(state.waiting, key=rank)
