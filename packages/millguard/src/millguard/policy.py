"""Decide which compilers run, pause or run again: a pure function.

A *unit* is one compile or link; its *ticket* is its place among those that wait or run. A unit is
admitted if its memory fits beside that of all running units until each of them has ended, as far as
their needs are known. If they need more than was expected, units are paused, so that the oldest can
end and make room; units that end before the oldest needs its memory go on. If even that is not
enough, the youngest units are ended and run again. Sizes are bytes, times are seconds.

The *curve* of a unit is its memory over its time, as an earlier build measured it. nvcc takes most of
its memory twice and gives it back in between: where curves are known, they are added up moment by
moment, so that units run together whose peaks do not meet. A unit may be early or late, so the most
memory counts that it has in some time before and after a moment. The future is cut into *spans*,
which are the longer the further away they are.

The *headroom* is the memory that is available now. The *reserve* is the part of it that is kept free
for needs that nobody foresaw. A *token* lets a client of the build's jobserver, such as make, run one
more job without asking (see `jobserver`). Memory is measured, and the policy applied, in one *look*;
looks follow each other more closely the sooner memory may be short.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

FOREVER = float("inf")
MIB = 2**20
# Factor on a peak that was measured: the same file with another option may need a little more.
SLACK = 1.05
# Factor on the memory of a unit, once it has more than was expected.
OVERSHOOT = 1.25
# The reserve: a share of all memory, within two bounds.
RESERVE = 0.03
SMALLEST_RESERVE = 96 * MIB
LARGEST_RESERVE = 1024 * MIB
# A curve has the most memory in so many equal parts of a unit's time, as shares of its peak.
CURVE_PARTS = 24
FLAT_CURVE = (1.0,)  # of a unit whose curve is not known: it may have its peak at any time
# The expectations of a unit that was measured, as shares of its time:
LATE = 0.25  # by which it may end later than it did
DRIFT = 0.15  # by which it may be early or late on its curve
SHORTEST_UNIT = 1e-3  # seconds, because shares of no time cannot be computed
# The spans of the future: the first one in seconds, the factor from each to the end of the next, and
# their number. The last one ends after more than an hour and is taken to last forever.
FIRST_SPAN = 0.5
SPAN_FACTOR = 1.3
SPAN_COUNT = 36
# Admission:
CONSIDERED = 64  # waiting units at a time, because a decision must not take long
WAIT_LIMIT_SECONDS = 300.0  # for which a unit lets larger ones go first
# A unit may start beside others, for an idle processor, if this share of its need is there, and if
# at most so many seconds pass until the next look.
RISKED_SHARE = 0.65
RISKED_LAG = 0.15
# Relief: seconds that it looks ahead. Units need not be paused for what comes later, because
# each look can still pause them, and until then others may have ended.
RELIEF_AHEAD = 2.0
# Relief, as factors on the reserve:
TIGHT = 0.5  # below which units are paused
EMPTY = 0.25  # below which units are ended
TEARDOWN = 0.06  # seconds in which the kernel takes back the memory of a process that was ended
# Measuring:
SOONEST = 0.01  # seconds between two looks at the memory, at least
LATEST = 0.1  # and at most
STEEP = 400 * MIB  # bytes a second that a unit may take
HASTE = 4  # looks before the memory is used up, at the pace at which it shrinks


@dataclass(frozen=True, slots=True)
class Unit:
    """One compile or link, and its expected needs."""

    key: str  # the same from build to build
    peak: int
    seconds: float
    weight: float = 1.0  # processors that it keeps busy: nvcc --threads 4 counts 4
    measured: bool = False  # it ran before; else its expectations are those of its kind
    # The most memory in equal parts of its time, as shares of its peak
    curve: tuple[float, ...] = FLAT_CURVE

    @property
    def need(self) -> int:
        """Return the bytes that are set aside for it."""
        return int(self.peak * SLACK) if self.measured else self.peak

    def highest(self, begin: float, end: float) -> float:
        """Return the most bytes that it may have from `begin` to `end`, in seconds of its run.

        A unit that runs longer than it did is expected to have what it had at its end.
        """
        parts = len(self.curve)
        parts_per_second = parts / max(self.seconds, SHORTEST_UNIT)
        first = int(min(parts - 1, begin * parts_per_second / (1 + DRIFT)))
        last = int(min(parts - 1, end * parts_per_second / (1 - DRIFT)))
        return self.need * max(self.curve[first : last + 1])


@dataclass(frozen=True, slots=True)
class UnitTicket:
    """A unit whose compiler wants to start, or has started."""

    number: int
    unit: Unit
    since: float  # when it asked; once it runs, when it started
    alone: bool = False  # it must have the machine to itself
    used: int = 0  # bytes that it has now
    paused: float | None = None  # when it was paused; None while it runs
    rested: float = 0.0  # seconds of earlier pauses

    def ran(self, now: float) -> float:
        """Return the seconds since its start without its pauses."""
        end = now if self.paused is None else self.paused
        return end - self.since - self.rested

    def resumed(self, now: float) -> "UnitTicket":
        """Return the ticket as it is when the unit goes on after a pause."""
        return replace(self, paused=None, rested=now - self.since - self.ran(now))

    def growth(self, now: float) -> int:
        """Return the bytes that it is still expected to take, at any time from `now` on."""
        if self.used > self.unit.need:
            return int(self.used * (OVERSHOOT - 1))
        return max(0, int(self.unit.highest(self.ran(now), FOREVER)) - self.used)

    def keeps_to_curve(self, now: float) -> bool:
        """Tell whether its memory can be expected from its curve: it has no more than that says."""
        ran = self.ran(now)
        return self.paused is None and self.used <= self.unit.highest(ran, ran)


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """Everything that a decision follows from."""

    now: float
    headroom: int  # bytes that are still available
    limit: int  # bytes that all units together may have
    cores: float
    waiting: tuple[UnitTicket, ...] = ()
    running: tuple[UnitTicket, ...] = ()  # paused ones as well
    tokens: int = 0  # processors that clients of the jobserver keep busy
    ending: int = 0  # bytes of units that were told to end, and have not yet
    falling: float = 0.0  # bytes a second by which the headroom shrank between the last two looks
    rising: float = 0.0  # bytes a second by which the units grew meanwhile
    # Seconds until the next look, if it is as late as the last ones were: until then, nothing can be
    # done about memory that units take.
    lag: float = 0.05
    # Other builds on this machine. Their claims are taken off `headroom` and `cores` already.
    moving_elsewhere: int = 0  # their units that run and are not paused
    older_elsewhere: bool = False  # whether one of those is older than every unit of this build


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing to do with a unit, by the number of its ticket."""

    number: int


class Admit(Decision):
    """Let it start."""


class Pause(Decision):
    """Stop its processes where they are; they keep their memory and take no more."""


class Resume(Decision):
    """Let it go on after a pause."""


class Rerun(Decision):
    """End its processes and let it ask again."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the future, in seconds from now."""

    begin: float
    end: float


def _future_spans() -> tuple[Span, ...]:
    ends = [FIRST_SPAN * SPAN_FACTOR**index for index in range(SPAN_COUNT - 1)]
    return tuple(Span(*bounds) for bounds in pairwise((0.0, *ends, FOREVER)))


SPANS = _future_spans()


@dataclass(frozen=True, slots=True)
class UnitForecast:
    """The expected future of a unit."""

    remaining: float  # seconds until it ends; FOREVER if it was never measured, or is paused
    used: int  # bytes that it has now
    growth: int  # bytes that it may take in addition
    # Seconds until it ends, by other units of its kind if it was never measured. It decides who goes
    # first, and never whether memory suffices.
    guess: float
    # The unit if it keeps to its curve. None if it may take all of `growth` at any time.
    unit: Unit | None = None
    ran: float = 0.0  # seconds that it ran until now

    def rise(self, span: Span) -> float:
        """Return the bytes by which its memory exceeds that of now, at most, in a span.

        It is negative if the unit gives memory back until then.
        """
        if span.begin > self.remaining:
            return -self.used
        if self.unit is None:
            return self.growth
        return self.unit.highest(self.ran + span.begin, self.ran + span.end) - self.used


@dataclass(slots=True)
class RoomReservation:
    """Room kept for a waiting unit: others may pass it if they do not make it wait longer."""

    after: float  # seconds until there is room for the waiting unit
    spare: int  # bytes that are free in addition by then

    def lets_pass(self, newcomer: UnitForecast) -> bool:
        """Tell whether a unit may start first: it ends in time, or fits beside the one that waits.

        In the second case its bytes are taken off `spare`: ask only for a unit that then starts.
        """
        if newcomer.guess <= self.after:
            return True
        if newcomer.growth > self.spare:
            return False
        self.spare -= newcomer.growth
        return True


class MemoryForecast:
    """The memory of all running units, within `room` bytes that are still available.

    Peaks that do not meet need not be added up: a unit that is known to end soon, or to give memory
    back, makes room. Nothing counts that is more than `ahead` seconds away.
    """

    def __init__(
        self, room: float, running: Iterable[UnitForecast], ahead: float = FOREVER
    ) -> None:
        self._room = room
        self._running = list(running)
        self._spans = [span for span in SPANS if span.begin < ahead]
        self._spare = room - sum(forecast.growth for forecast in self._running)
        self._rises: list[float] = []  # of all units, in each span; empty until they are asked for

    def fits(self, newcomer: UnitForecast) -> bool:
        """Tell whether a unit can start now, and all stay within the room until it has ended."""
        if newcomer.growth <= self._spare:
            return True
        if not self._rises:
            for span in self._spans:
                self._rises.append(sum(forecast.rise(span) for forecast in self._running))
        for span, rise in zip(self._spans, self._rises, strict=True):
            if span.begin > newcomer.remaining:
                break
            if rise + newcomer.rise(span) > self._room:
                return False
        return True

    def reserve(self, need: int) -> RoomReservation | None:
        """Keep room for a unit that does not fit yet; None if it will not fit in the end either.

        A wrong guess risks nothing here: units that pass must fit beside those that run all the
        same.
        """
        spare = self._spare
        after = 0.0
        for forecast in sorted(self._running, key=lambda forecast: forecast.guess):
            if spare >= need:
                break
            spare += forecast.used + forecast.growth
            after = forecast.guess
        return RoomReservation(after, int(spare - need)) if spare >= need else None

    def add(self, newcomer: UnitForecast) -> None:
        """Let a unit start."""
        self._running.append(newcomer)
        self._spare -= newcomer.growth
        # The rises are updated and not computed anew: for hundreds of units that would take longer
        # than there is between two looks.
        if self._rises:
            for index, span in enumerate(self._spans):
                self._rises[index] += newcomer.rise(span)


def decide(state: PolicyInput) -> tuple[Decision, ...]:
    """Return the decisions that follow from a state.

    If memory is short, they only relieve it. Otherwise paused units go on before others start. Only if
    none can start that fits, one may start that need not fit.
    """
    relief = tuple(_relief(state))
    if relief:
        return relief
    resumes = tuple(_resumes(state))
    resumed = {resume.number for resume in resumes}
    # Admissions must count the memory of those that are about to go on.
    running = []
    for ticket in state.running:
        running.append(ticket.resumed(state.now) if ticket.number in resumed else ticket)
    admissions = tuple(_admissions(replace(state, running=tuple(running))))
    return (*resumes, *(admissions or _risked_admission(state)))


def seconds_to_shortage(state: PolicyInput) -> float:
    """Return the seconds until the memory may be short; infinite if nothing takes any."""
    moving = sum(ticket.paused is None for ticket in state.running)
    spare = state.headroom - TIGHT * reserved_bytes(state.limit)
    pace = max(STEEP * moving, HASTE * state.falling)
    return spare / pace if pace else FOREVER


def next_look(state: PolicyInput) -> float:
    """Return the seconds after which the memory must be looked at again."""
    return max(SOONEST, min(LATEST, seconds_to_shortage(state)))


def spare_tokens(state: PolicyInput, typical: int) -> int:
    """Return how many further units clients of the jobserver may start unasked.

    `typical` is the bytes that such a unit takes.
    """
    if state.waiting:
        return 0  # units that ask come first, because their needs are known better
    idle = state.cores - max(_busy_cores(state.running), state.tokens)
    # Clients that hold a token and have no unit yet still have to take their memory.
    unseen = max(0, state.tokens - len(state.running))
    growth = sum(ticket.growth(state.now) for ticket in state.running)
    free = state.headroom - reserved_bytes(state.limit) - growth
    return max(0, min(int(idle), free // typical - unseen))


def reserved_bytes(limit: int) -> int:
    """Return the reserve, in bytes, of `limit` bytes for all units together."""
    return int(min(LARGEST_RESERVE, max(SMALLEST_RESERVE, limit * RESERVE)))


def _busy_cores(running: Sequence[UnitTicket]) -> float:
    return sum(ticket.unit.weight for ticket in running if ticket.paused is None)


def _relief(state: PolicyInput) -> Iterator[Decision]:
    """Yield decisions that keep memory from being taken if little is left, or free some of it.

    Pausing frees nothing, so it comes before too little is left. The oldest go on, because there is
    room when they end. A unit that is ended loses its work: that comes last, and never to the
    oldest. If another build has an older one, no unit here counts as the oldest.
    """
    spared = (
        0 if state.older_elsewhere else 1
    )  # the oldest units, which are neither paused nor ended
    reserve = reserved_bytes(state.limit)
    oldest_first = sorted(state.running, key=_by_age)
    moving = [ticket for ticket in oldest_first if ticket.paused is None]
    forecasts = [_running_forecast(ticket, state.now) for ticket in moving]
    growths = [_growth_within(forecast, RELIEF_AHEAD) for forecast in forecasts]
    fall = _expected_fall(state, moving, forecasts)
    room = state.headroom - EMPTY * reserve
    soon = state.headroom - fall  # bytes that are available when this decision has its effect
    # Everything that is still expected fits, and memory does not shrink faster than that.
    if fall <= sum(growths) <= room:
        return
    is_empty = soon < EMPTY * reserve
    oldest_growth = growths[0] if growths else 0
    if not is_empty and soon >= TIGHT * reserve + oldest_growth:
        return
    ended: set[int] = set()
    # Pausing is no help if at most the oldest moves: it would go on at the next look, with no more room.
    if is_empty and (room < 0 or len(moving) <= spared):
        missing = reserve - soon - state.ending  # units that are ending free theirs soon
        ended = _youngest_holding(oldest_first[spared:], missing)
    paused: Sequence[UnitTicket]
    if not is_empty:
        paused = _too_many(state, moving, forecasts, room)
    elif len(oldest_first) > spared:
        paused = moving  # all of them, until memory is free again
    else:
        paused = ()  # the oldest alone: no other unit could make room for it
    for number in ended:
        yield Rerun(number)
    for ticket in paused:
        if ticket.number not in ended:
            yield Pause(ticket.number)


def _youngest_holding(oldest_first: Sequence[UnitTicket], missing: float) -> set[int]:
    """Return the numbers of the youngest units that have `missing` bytes together."""
    numbers = set()
    for ticket in reversed(oldest_first):
        if missing <= 0:
            break
        numbers.add(ticket.number)
        missing -= ticket.used
    return numbers


def _growth_within(forecast: UnitForecast, seconds: float) -> float:
    """Return the bytes that a unit may take in addition in the next seconds."""
    return max(0.0, forecast.rise(Span(0.0, seconds)))


def _expected_fall(
    state: PolicyInput, moving: Sequence[UnitTicket], forecasts: Sequence[UnitForecast]
) -> float:
    """Return the bytes that may be taken before a decision of now has its effect.

    Headroom is expected to shrink as between the last two looks. If all units were measured before,
    they do not take more than their curves say.
    """
    # The next look may come too late to decide in time, so the one after it counts.
    seconds = 2 * state.lag + TEARDOWN
    if not all(ticket.unit.measured for ticket in moving):
        return state.falling * seconds
    by_units = sum(_growth_within(forecast, seconds) for forecast in forecasts)
    by_others = max(0.0, state.falling - state.rising) * seconds
    return min(by_units, state.rising * seconds) + by_others


def _too_many(
    state: PolicyInput,
    moving: Sequence[UnitTicket],
    forecasts: Sequence[UnitForecast],
    room: float,
) -> Sequence[UnitTicket]:
    """Return the units that cannot go on beside the oldest.

    The oldest always can, unless another build has an older unit. The rest is tried one by one, in
    the order of their ends, as units are admitted. A unit that ends before the oldest takes its memory
    is not paused, because its end makes room. In this order no paused unit fits beside the rest after
    all, to be resumed at once.
    """
    spared = 0 if state.older_elsewhere else 1
    memory = MemoryForecast(room, forecasts[:spared], RELIEF_AHEAD)
    too_many = []
    others = list(zip(forecasts, moving, strict=True))[spared:]
    for forecast, ticket in sorted(others, key=lambda pair: pair[0].remaining):
        if memory.fits(forecast):
            memory.add(forecast)
        else:
            too_many.append(ticket)
    return too_many


def _resumes(state: PolicyInput) -> Iterator[Resume]:
    """Yield the paused units that may go on, oldest first; one always may if nothing else moves."""
    moving = [ticket for ticket in state.running if ticket.paused is None]
    paused = [ticket for ticket in state.running if ticket.paused is not None]
    room = state.headroom - reserved_bytes(state.limit)
    memory = MemoryForecast(room, [_running_forecast(ticket, state.now) for ticket in moving])
    is_idle = not moving and not state.ending and not state.moving_elsewhere
    for ticket in sorted(paused, key=_by_age):
        forecast = _running_forecast(ticket.resumed(state.now), state.now)
        if is_idle or memory.fits(forecast):
            memory.add(forecast)
            is_idle = False
            yield Resume(ticket.number)


def _admissions(state: PolicyInput) -> Iterator[Admit]:
    """Yield the units that may start: the largest first, others past those that do not fit.

    If ends are guesses, the first unit that does not fit keeps room: others pass it only if it
    starts no later for them. This is EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System",
    1995), with memory in place of nodes, and the time of other units of a kind in place of the time
    that users state. If ends are known, the forecast tells whether a unit fits, and room that is kept
    would be idle. A unit that has waited too long comes first and keeps room; if it can keep none,
    because it will never fit, no other passes it. If nothing runs, here or in another build, a unit
    starts although it does not fit, because nothing else would make room.
    """
    if not state.waiting or any(ticket.alone for ticket in state.running):
        return
    room = state.headroom - reserved_bytes(state.limit)
    running = [_running_forecast(ticket, state.now) for ticket in state.running]
    memory = MemoryForecast(room, running)
    ends_are_known = all(ticket.unit.measured for ticket in state.running)
    busy = _busy_cores(state.running)
    has_started = bool(state.running or state.moving_elsewhere)
    reservation: RoomReservation | None = None
    for ticket in _in_order(state)[:CONSIDERED]:
        if busy >= state.cores and has_started:
            return
        forecast = _forecast(ticket.unit)
        is_possible = _has_processor(state, ticket, busy)
        if is_possible and memory.fits(forecast) and _passes(reservation, forecast):
            yield Admit(ticket.number)
            memory.add(forecast)
            # Beside one that is to be alone there is no processor for another.
            busy += FOREVER if ticket.alone else ticket.unit.weight
            has_started = True
        elif reservation is None:
            is_late = _is_impatient(state, ticket)
            ends_are_guesses = not (ends_are_known and ticket.unit.measured)
            if is_possible and (is_late or ends_are_guesses):
                reservation = memory.reserve(ticket.unit.need)
            if reservation is None and is_late:
                if not has_started:
                    yield Admit(ticket.number)
                return
    if not has_started:
        smallest = min(
            state.waiting, key=lambda ticket: (ticket.alone, ticket.unit.need, ticket.number)
        )
        yield Admit(smallest.number)


def _risked_admission(state: PolicyInput) -> Iterator[Admit]:
    """Yield a unit that may start although all peaks together do not fit, instead of an idle processor.

    Units seldom have their peaks at the same time. Nobody knows when units have theirs that were never
    measured, and forecasts of the others have margins. If it goes wrong, the youngest are paused, and
    the oldest can still end. That needs looks that follow each other closely. No more is risked while a
    unit is paused or ends for others, nor beside another build, which might risk the same memory.
    """
    if not state.running or state.ending or state.moving_elsewhere or state.lag > RISKED_LAG:
        return
    if any(ticket.alone or ticket.paused is not None for ticket in state.running):
        return
    spare = state.headroom - reserved_bytes(state.limit)
    spare -= sum(ticket.growth(state.now) for ticket in state.running)
    busy = _busy_cores(state.running)
    for ticket in _in_order(state)[:CONSIDERED]:
        is_possible = not ticket.alone and _has_processor(state, ticket, busy)
        if is_possible and spare >= RISKED_SHARE * ticket.unit.need:
            yield Admit(ticket.number)
            return
        if _is_impatient(state, ticket):
            return  # the room is kept for it


def _has_processor(state: PolicyInput, ticket: UnitTicket, busy: float) -> bool:
    """Tell whether a unit can start beside others of this build that keep `busy` processors busy.

    One that must be alone starts by itself in the end. But it cannot wait until all other builds
    are over: if there are any, it is alone when it is in its own build.
    """
    if ticket.alone and (busy > 0 or not state.moving_elsewhere):
        return False
    return busy == 0 or busy + ticket.unit.weight <= state.cores


def _passes(reservation: RoomReservation | None, forecast: UnitForecast) -> bool:
    return reservation is None or reservation.lets_pass(forecast)


def _forecast(unit: Unit) -> UnitForecast:
    """Return the forecast of a unit that starts now."""
    ends = unit.seconds * (1 + LATE)
    remaining = ends if unit.measured else FOREVER
    return UnitForecast(remaining, used=0, growth=unit.need, guess=ends, unit=unit)


def _running_forecast(ticket: UnitTicket, now: float) -> UnitForecast:
    """Return the forecast, from now on, of a unit that runs or is paused."""
    ran = ticket.ran(now)
    guess = max(ticket.unit.seconds * (1 + LATE) - ran, ticket.unit.seconds * LATE)
    ends_are_known = ticket.unit.measured and ticket.paused is None
    return UnitForecast(
        guess if ends_are_known else FOREVER,
        used=ticket.used,
        growth=ticket.growth(now),
        guess=guess,
        unit=ticket.unit if ticket.keeps_to_curve(now) else None,
        ran=ran,
    )


def _by_age(ticket: UnitTicket) -> tuple[float, int]:
    return ticket.since, ticket.number


def _is_impatient(state: PolicyInput, ticket: UnitTicket) -> bool:
    return state.now - ticket.since > WAIT_LIMIT_SECONDS


def _in_order(state: PolicyInput) -> Sequence[UnitTicket]:
    """Return the waiting units: the impatient, then those that take most memory for longest.

    Small units fill the gaps that large ones leave; the other way round the large ones would run
    alone in the end.
    """

    def rank(ticket: UnitTicket) -> tuple[bool, bool, float, int]:
        size = ticket.unit.seconds * ticket.unit.need
        return not _is_impatient(state, ticket), ticket.alone, -size, ticket.number

    return sorted(state.waiting, key=rank)
