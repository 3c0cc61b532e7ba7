"""Decide which compilers run, pause or run again: a pure function.

A unit is one compile or link. It is admitted where its memory fits beside that of all that run until each
has ended, as far as that is known. Where it turns out otherwise units are paused, so that the oldest can
end and make room, and what ends before the oldest wants its memory; and where even that is too much the
youngest are ended, and run again. Bytes and seconds throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchmill.toolchain.guard.forecast import (
    FOREVER,
    MIB,
    Admit,
    Decision,
    MemoryForecast,
    Pause,
    PolicyInput,
    Rerun,
    Resume,
    Unit,
    UnitForecast,
    UnitTicket,
    reserved_bytes,
)

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


def decide(state: PolicyInput) -> tuple[Decision, ...]:
    """Return what to do now."""
    if relief := tuple(_relief(state)):
        return relief
    resumed = tuple(_resumed(state))
    going = {one.number for one in resumed}
    running = tuple(replace(one, paused=False) if one.number in going else one for one in state.running)
    return (*resumed, *_admitted(replace(state, running=running)))


def next_look(state: PolicyInput) -> float:
    """Return the seconds after which the memory must be looked at again."""
    moving = sum(not one.paused for one in state.running)
    spare = state.headroom - TIGHT * reserved_bytes(state.limit)
    pace = max(STEEP * moving, HASTE * state.falling)
    return max(SOONEST, min(LATEST, spare / pace)) if pace else LATEST


def spare_tokens(state: PolicyInput, typical: int) -> int:
    """Return how many more units of a typical size clients of the jobserver may start unasked."""
    if state.waiting:
        return 0  # those that ask come first: more is known of them
    idle = state.cores - max(_busy(state.running), state.tokens)
    unseen = max(0, state.tokens - len(state.running))  # they have still to take what they need
    return max(0, min(int(idle), _free(state) // typical - unseen))


def _busy(running: Sequence[UnitTicket]) -> float:
    return sum(one.unit.weight for one in running if not one.paused)


def _free(state: PolicyInput) -> int:
    """Return the bytes that nobody is expected to take."""
    return state.headroom - reserved_bytes(state.limit) - sum(one.growth for one in state.running)


def _relief(state: PolicyInput) -> Iterator[Decision]:
    """Yield what keeps memory from being taken where little is left, and what frees some of it.

    Pausing frees nothing, so it comes before too little is left; the oldest go on, for when they end there
    is room. Who is ended loses what was done: that comes last, and never to the oldest.
    """
    kept = reserved_bytes(state.limit)
    oldest_first = sorted(state.running, key=lambda one: (one.since, one.number))
    moving = [one for one in oldest_first if not one.paused]
    fall = _fall(state, moving)
    room, soon = state.headroom - EMPTY * kept, state.headroom - fall
    if fall <= sum(one.growth for one in moving) <= room:
        return
    empty = soon < EMPTY * kept
    enough = soon >= TIGHT * kept + (moving[0].growth if moving else 0)
    if enough and not empty:
        return
    ended = set()
    if empty and (room < 0 or not moving):
        ended = {one.number for one in _youngest(oldest_first[1:], kept - soon - state.ending)}
    halted = _too_many(state, moving, room) if not empty else moving if len(oldest_first) > 1 else ()
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


def _too_many(state: PolicyInput, moving: Sequence[UnitTicket], room: float) -> Sequence[UnitTicket]:
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


def _youngest(oldest_first: Sequence[UnitTicket], wanted: float) -> Iterator[UnitTicket]:
    """Yield units until so many bytes come of them."""
    for one in reversed(oldest_first):
        if wanted <= 0:
            return
        wanted -= one.used
        yield one


def _resumed(state: PolicyInput) -> Iterator[Resume]:
    """Yield the paused units that may go on, oldest first; one always may where nothing else moves."""
    moving = [one for one in state.running if not one.paused]
    future = MemoryForecast(
        state.headroom - reserved_bytes(state.limit), (_going(one, state.now) for one in moving)
    )
    idle = not moving
    for one in sorted((one for one in state.running if one.paused), key=lambda one: (one.since, one.number)):
        forecast = _going(replace(one, paused=False), state.now)
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
    future = MemoryForecast(
        state.headroom - reserved_bytes(state.limit), (_going(one, state.now) for one in state.running)
    )
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
        yield Admit(min(state.waiting, key=lambda one: (one.alone, one.unit.need, one.number)).number)


def _forecast(unit: Unit) -> UnitForecast:
    """Return what a unit is expected to do that starts now."""
    ends = unit.seconds * (1 + LATE)
    if not unit.measured:
        return UnitForecast(FOREVER, 0, unit.need, AT_ONCE, ends)
    rise = min(RISEN * unit.half, HIGHEST) * unit.seconds
    return UnitForecast(ends, 0, unit.need, max(rise, AT_ONCE), ends)


def _going(one: UnitTicket, now: float) -> UnitForecast:
    """Return what a unit that runs is expected to do from now on."""
    fresh, past = _forecast(one.unit), now - one.since - one.rested
    guess = max(fresh.guess - past, one.unit.seconds * LATE)
    if one.paused:
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
