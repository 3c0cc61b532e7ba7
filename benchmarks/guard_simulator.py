"""Simulate builds on imagined machines, to try the guard's policy without compiling anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from millguard.expectations import expect_again
from millguard.policy import (
    TEARDOWN,
    Admit,
    Decision,
    Pause,
    PolicyInput,
    Rerun,
    Resume,
    Unit,
    UnitTicket,
    next_look,
)

MemoryCurve = Callable[[float], float]

_STEPS = 1000


def linear_curve(share: float) -> float:
    """Grow evenly, nearly to the end."""
    return min(1.0, 0.05 + share)


def early_curve(share: float) -> float:
    """Rise to the peak in the first tenth."""
    return min(1.0, 0.05 + 10 * share)


def late_curve(share: float) -> float:
    """Stay small, and rise to the peak in the last tenth."""
    return max(0.2, 1 - 8 * (1 - share))


def sawtooth_curve(share: float) -> float:
    """Rise and fall three times, as the passes of a compiler do."""
    return 0.3 + 0.7 * (3 * share % 1)


def recorded_curve(points: Sequence[float]) -> MemoryCurve:
    """Return the curve through points that lie evenly over the time, the last at its end."""
    known = (0.0, *points)

    def curve(share: float) -> float:
        before = min(int(share * len(points)), len(points) - 1)
        part = share * len(points) - before
        return known[before] + (known[before + 1] - known[before]) * part

    return curve


def half_peak_share(curve: MemoryCurve) -> float:
    """Return the share of its time after which a unit has half of its peak."""
    return next((step / _STEPS for step in range(_STEPS) if 2 * curve(step / _STEPS) >= 1), 1.0)


@dataclass(frozen=True, slots=True)
class ImaginedMachine:
    """An imagined machine; memory in bytes."""

    memory: int
    cores: int
    slots: int  # how many compilers the build tool starts at a time
    delay: float = 0.02  # seconds between looking at the memory and acting upon it
    spacing: float = 0.0  # seconds between two compilers that the build tool starts


@dataclass(frozen=True, slots=True)
class ImaginedUnit:
    """What a unit really does."""

    key: str
    peak: int
    seconds: float
    weight: float = 1.0
    curve: MemoryCurve = linear_curve


@dataclass(slots=True)
class SimulatedOutcome:
    """What became of a build."""

    seconds: float = 0.0
    kills: int = 0  # by the kernel
    pauses: int = 0
    reruns: int = 0
    lost: float = 0.0  # seconds of work thrown away
    busiest: int = 0  # most bytes in use


def lower_bound(jobs: Iterable[ImaginedUnit], machine: ImaginedMachine) -> float:
    """Return the seconds below which no order of the units can come, if each holds its peak all the time."""
    jobs = tuple(jobs)
    work = sum(job.seconds * job.weight for job in jobs) / machine.cores
    memory = sum(job.peak * job.seconds for job in jobs) / machine.memory
    apart = sum(job.seconds for job in jobs if 2 * job.peak > machine.memory)  # no two at once
    return max(work, memory, apart, *(job.seconds for job in jobs))


Policy = Callable[[PolicyInput], Sequence[Decision]]

EXACT = 1e-9  # of a time, within which a unit has come to its end
STUCK = 200  # times the lower bound, after which a build is not going to end
ALONE_AFTER = (
    2  # times that a unit was ended by the guard, after which it has the machine to itself
)


def simulate_build(
    jobs: Sequence[ImaginedUnit],
    machine: ImaginedMachine,
    policy: Policy,
    predict: Callable[[ImaginedUnit], Unit],
    *,
    learn: Callable[[ImaginedUnit], None] = lambda _: None,
    intruder: Callable[[float], int] = lambda _: 0,
) -> SimulatedOutcome:
    """Run a build to its end and return what became of it.

    `predict` says what is expected of a unit, `learn` is told of each that ended, `intruder` returns the
    bytes that somebody else takes at a time. Raise RuntimeError where the build comes to no end.
    """
    limit = STUCK * lower_bound(jobs, machine)
    world = _World(machine, list(reversed(jobs)), predict, learn, intruder)
    while world.queue or world.waiting or world.running or world.ending:
        world.ask()
        view = world.view()
        for decision in policy(view):
            world.obey(decision)
        world.advance(next_look(view))
        if world.now > limit:
            raise RuntimeError(f"after {world.now:.0f} s the build is not done: {world.view()}")
    world.outcome.seconds = world.now
    return world.outcome


@dataclass(slots=True)
class _Run:
    """A unit that runs, as it is; its ticket holds what was seen of it."""

    job: ImaginedUnit
    ticket: UnitTicket
    done: float = 0.0  # seconds of work
    has: int = 0  # bytes
    looked: int = 0  # bytes that it had at the last look
    until: float = 0.0  # once it is ended: when the kernel has taken back its memory


@dataclass(slots=True)
class _World:
    machine: ImaginedMachine
    queue: list[ImaginedUnit]
    predict: Callable[[ImaginedUnit], Unit]
    learn: Callable[[ImaginedUnit], None]
    intruder: Callable[[float], int]
    outcome: SimulatedOutcome = field(default_factory=SimulatedOutcome)
    now: float = 0.0
    jobs: dict[int, ImaginedUnit] = field(default_factory=dict)
    waiting: dict[int, UnitTicket] = field(default_factory=dict)
    running: dict[int, _Run] = field(default_factory=dict)
    ending: dict[int, _Run] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)  # how often, by the guard
    headroom: int = 0  # as it is known
    falling: float = 0.0
    rising: float = 0.0
    before: tuple[float, int, int] = (
        0.0,
        0,
        0,
    )  # the last look but one: when, what was left, what units had
    looked: tuple[float, int, int] = (0.0, 0, 0)  # the last
    asks: float = 0.0  # when the next compiler can ask
    next: float = 0.0  # when it is looked at the memory, or acted upon what was seen
    acting: bool = False  # the latter

    def __post_init__(self) -> None:
        self.looked = 0.0, self._left(), 0
        self.headroom = self.looked[1]

    def ask(self) -> None:
        """Let the build tool start compilers as far as it has slots; each waits to be admitted."""
        while self._may_ask() and self.now >= self.asks:
            job = self.queue.pop()
            number = len(self.jobs) + 1
            self.jobs[number] = job
            self.waiting[number] = UnitTicket(number, self.predict(job), self.now)
            self.asks = self.now + self.machine.spacing

    def _may_ask(self) -> bool:
        started = len(self.waiting) + len(self.running) + len(self.ending)
        return bool(self.queue) and started < self.machine.slots

    def view(self) -> PolicyInput:
        """Return what the guard knows now."""
        tickets = tuple(one.ticket for one in self.running.values())
        return PolicyInput(
            self.now,
            self.headroom,
            self.headroom + sum(one.used for one in tickets),
            self.machine.cores,
            tuple(self.waiting.values()),
            tickets,
            ending=sum(one.ticket.used for one in self.ending.values()),
            falling=self.falling,
            rising=self.rising,
            lag=2 * self.machine.delay,
        )

    def obey(self, decision: Decision) -> None:
        """Do as the policy says."""
        number = decision.number
        match decision:
            case Admit():
                ticket = replace(self.waiting.pop(number), since=self.now, used=0)
                self.running[number] = _Run(self.jobs[number], ticket)
            case Pause() | Resume():
                run = self.running[number]
                if isinstance(decision, Pause):
                    run.ticket = replace(run.ticket, paused=self.now)
                    self.outcome.pauses += 1
                else:
                    run.ticket = run.ticket.resumed(self.now)
            case Rerun():
                self.ended[number] = self.ended.get(number, 0) + 1
                self.outcome.reruns += 1
                self._end(number)

    def advance(self, period: float) -> None:
        """Go on to the next event; `period` is the time between acting and the next look."""
        moving = [one for one in self.running.values() if one.ticket.paused is None]
        busy = sum(one.job.weight for one in moving)
        pace = min(1.0, self.machine.cores / busy) if busy else 1.0
        ends = [self.now + (one.job.seconds - one.done) / pace for one in moving]
        asks = [max(self.now, self.asks)] if self._may_ask() else []
        at = min([self.next, *ends, *asks, *(one.until for one in self.ending.values())])
        step, self.now = max(0.0, at - self.now) * pace, at
        for one in moving:
            one.done += step
            one.has = int(one.job.peak * one.job.curve(min(1.0, one.done / one.job.seconds)))
        self._kernel()
        self._finish()
        if self.now >= self.next:
            self._look(period)

    def _look(self, period: float) -> None:
        """Look at the memory, or take note of what was seen, which decisions then follow from."""
        self.acting = not self.acting
        if self.acting:
            for one in self.running.values():
                one.looked = one.has
            used = sum(one.has for one in self.running.values())
            self.before, self.looked = self.looked, (self.now, self._left(), used)
            self.next = self.now + self.machine.delay
            return
        for one in self.running.values():
            if one.looked != one.ticket.used:
                one.ticket = replace(one.ticket, used=one.looked)
        (then, left, had), (now, self.headroom, used) = self.before, self.looked
        self.falling = max(0.0, (left - self.headroom) / (now - then)) if now > then else 0.0
        self.rising = max(0.0, (used - had) / (now - then)) if now > then else 0.0
        self.next = self.now + period

    def _left(self) -> int:
        """Return the bytes that can still be had."""
        used = sum(one.has for one in (*self.running.values(), *self.ending.values()))
        self.outcome.busiest = max(self.outcome.busiest, used)
        return self.machine.memory - used - self.intruder(self.now)

    def _end(self, number: int) -> None:
        run = self.ending[number] = self.running.pop(number)
        run.until = self.now + TEARDOWN
        self.outcome.lost += run.done

    def _kernel(self) -> None:
        """Do as the kernel does when memory is out: end the largest. Its unit runs again alone."""
        while self._left() < 0 and self.running:
            largest = max(self.running.values(), key=lambda one: one.has)
            self.outcome.kills += 1
            self.ended[largest.ticket.number] = ALONE_AFTER
            self._end(largest.ticket.number)
            largest.has = 0  # what the kernel takes is gone at once

    def _finish(self) -> None:
        for number, one in list(self.running.items()):
            if one.done >= one.job.seconds * (1 - EXACT):
                del self.running[number]
                self.headroom += one.ticket.used
                self.learn(one.job)
                self._expect_anew()
        for number, one in list(self.ending.items()):
            if one.until <= self.now:
                del self.ending[number]
                unit = expect_again(one.ticket.unit, one.looked)
                alone = self.ended[number] >= ALONE_AFTER
                self.waiting[number] = UnitTicket(number, unit, self.now, alone)

    def _expect_anew(self) -> None:
        """Let what was learned count for those that wait; who was ended keeps what it showed itself."""
        for number, one in self.waiting.items():
            if number not in self.ended:
                self.waiting[number] = replace(one, unit=self.predict(self.jobs[number]))
