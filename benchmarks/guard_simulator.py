"""Simulates builds under the guard's policy on imagined machines, without compiling anything.

A *unit* is one compile. The guard looks at the memory from time to time, and passes what it saw to its policy, a pure
function; the policy decides which waiting units are admitted, and which running ones are paused or ended. The
simulator plays the machine, its kernel and the build tool: time passes from one event to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from millguard.expectations import expect_again
from millguard.policy import (
    CURVE_PARTS,
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

MemoryCurve = Callable[[float], float]  # from a share of a unit's time to a share of its peak

_MOMENTS = 40  # of each part of a curve at which measured_curve looks


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
    """Return the curve through points at evenly spaced times, from 0 at the start to the last at the end."""
    levels = (0.0, *points)

    def curve(share: float) -> float:
        index = min(int(share * len(points)), len(points) - 1)
        part = share * len(points) - index  # of the way from one point to the next
        return levels[index] + (levels[index + 1] - levels[index]) * part

    return curve


def measured_curve(curve: MemoryCurve) -> tuple[float, ...]:
    """Return the curve that the guard measures: the most memory in equal parts of a unit's time."""
    levels = []
    for part in range(CURVE_PARTS):
        moments = [part + step / _MOMENTS for step in range(_MOMENTS + 1)]
        levels.append(max(curve(moment / CURVE_PARTS) for moment in moments))
    return tuple(levels)


@dataclass(frozen=True, slots=True)
class ImaginedMachine:
    """A machine, and how its guard and its build tool are set."""

    memory: int  # bytes
    cores: int
    slots: int  # how many compilers the build tool starts at a time
    delay: float = 0.02  # seconds between looking at the memory and acting upon it
    spacing: float = 0.0  # seconds between two compilers that the build tool starts


@dataclass(frozen=True, slots=True)
class ImaginedUnit:
    """What a unit really needs, which the guard can only expect."""

    key: str
    peak: int  # bytes
    seconds: float
    weight: float = 1.0  # processors that it uses
    curve: MemoryCurve = linear_curve


@dataclass(slots=True)
class SimulatedOutcome:
    """How a build went."""

    seconds: float = 0.0
    kills: int = 0  # by the kernel
    pauses: int = 0
    reruns: int = 0
    lost: float = 0.0  # seconds of work of units that were ended
    busiest: int = 0  # most bytes in use


def lower_bound(units: Iterable[ImaginedUnit], machine: ImaginedMachine) -> float:
    """Return a lower bound of a build's seconds in any order, if each unit holds its peak all the time."""
    units = tuple(units)
    work = sum(unit.seconds * unit.weight for unit in units) / machine.cores
    memory = sum(unit.peak * unit.seconds for unit in units) / machine.memory
    # Two of these cannot run at the same time.
    large = sum(unit.seconds for unit in units if 2 * unit.peak > machine.memory)
    return max(work, memory, large, *(unit.seconds for unit in units))


Policy = Callable[[PolicyInput], Sequence[Decision]]

EXACTNESS = 1e-9  # of a unit's time, by which rounding may keep it from its end
STUCK = 200  # lower bounds, after which a build counts as endless
ALONE_AFTER = 2  # ends by the guard, after which a unit runs without others


def simulate_build(
    units: Sequence[ImaginedUnit],
    machine: ImaginedMachine,
    policy: Policy,
    predict: Callable[[ImaginedUnit], Unit],
    *,
    learn: Callable[[ImaginedUnit], None] = lambda _: None,
    intruder: Callable[[float], int] = lambda _: 0,
) -> SimulatedOutcome:
    """Simulate a build to its end and return the outcome.

    `predict` returns what the guard expects of a unit; `learn` is called with each unit that finished; `intruder`
    returns the bytes that another program holds at a time in seconds. Raises RuntimeError if the build does not end.
    """
    limit = STUCK * lower_bound(units, machine)
    world = _World(machine, list(reversed(units)), predict, learn, intruder)
    while world.queue or world.waiting or world.running or world.ending:
        world.start_compilers()
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
    """A running unit as it is; its ticket holds what the guard has seen of it."""

    unit: ImaginedUnit
    ticket: UnitTicket
    done: float = 0.0  # seconds of work
    memory: int = 0  # bytes now
    seen_memory: int = 0  # bytes at the last look
    end: float = 0.0  # of a unit that was ended: when the kernel has taken back its memory


@dataclass(frozen=True, slots=True)
class _Look:
    """What the guard measures when it looks at the memory."""

    time: float
    headroom: int  # bytes that can still be had
    used: int  # bytes of running units


@dataclass(slots=True)
class _World:
    """The state of a simulated build; times are in seconds since its start."""

    machine: ImaginedMachine
    queue: list[ImaginedUnit]  # not yet started, the next one last
    predict: Callable[[ImaginedUnit], Unit]
    learn: Callable[[ImaginedUnit], None]
    intruder: Callable[[float], int]
    outcome: SimulatedOutcome = field(default_factory=SimulatedOutcome)
    now: float = 0.0
    units: dict[int, ImaginedUnit] = field(default_factory=dict)  # all started ones, by number
    waiting: dict[int, UnitTicket] = field(default_factory=dict)  # to be admitted
    running: dict[int, _Run] = field(default_factory=dict)
    ending: dict[int, _Run] = field(default_factory=dict)  # ended, until their memory is free
    ends: dict[int, int] = field(default_factory=dict)  # how often the guard ended a unit
    # What the guard knows: bytes, and bytes a second.
    headroom: int = 0
    falling: float = 0.0
    rising: float = 0.0
    previous_look: _Look = field(default_factory=lambda: _Look(0.0, 0, 0))
    last_look: _Look = field(init=False)
    next_start: float = 0.0  # when the build tool may start the next compiler
    next_step: float = 0.0  # when the guard looks at the memory, or acts upon its last look
    acts_next: bool = False  # the latter

    def __post_init__(self) -> None:
        self.last_look = _Look(0.0, self._free_memory(), 0)
        self.headroom = self.last_look.headroom

    def start_compilers(self) -> None:
        """Let the build tool start compilers as far as it has slots; each waits to be admitted."""
        while self._has_slot() and self.now >= self.next_start:
            unit = self.queue.pop()
            number = len(self.units) + 1
            self.units[number] = unit
            self.waiting[number] = UnitTicket(number, self.predict(unit), self.now)
            self.next_start = self.now + self.machine.spacing

    def _has_slot(self) -> bool:
        """Return whether the build tool has a unit to start and a slot for it."""
        started = len(self.waiting) + len(self.running) + len(self.ending)
        return bool(self.queue) and started < self.machine.slots

    def view(self) -> PolicyInput:
        """Return what the guard knows now."""
        tickets = tuple(run.ticket for run in self.running.values())
        return PolicyInput(
            self.now,
            self.headroom,
            self.headroom + sum(ticket.used for ticket in tickets),
            self.machine.cores,
            tuple(self.waiting.values()),
            tickets,
            ending=sum(run.ticket.used for run in self.ending.values()),
            falling=self.falling,
            rising=self.rising,
            lag=2 * self.machine.delay,
        )

    def obey(self, decision: Decision) -> None:
        """Carry out a decision of the policy."""
        number = decision.number
        match decision:
            case Admit():
                ticket = replace(self.waiting.pop(number), since=self.now, used=0)
                self.running[number] = _Run(self.units[number], ticket)
            case Pause():
                run = self.running[number]
                run.ticket = replace(run.ticket, paused=self.now)
                self.outcome.pauses += 1
            case Resume():
                run = self.running[number]
                run.ticket = run.ticket.resumed(self.now)
            case Rerun():
                self.ends[number] = self.ends.get(number, 0) + 1
                self.outcome.reruns += 1
                self._end(number)

    def advance(self, period: float) -> None:
        """Let time pass until the next event; `period` is the time between acting and the next look."""
        moving = [run for run in self.running.values() if run.ticket.paused is None]
        processors = sum(run.unit.weight for run in moving)
        # More compilers than processors share these evenly.
        pace = min(1.0, self.machine.cores / processors) if processors else 1.0
        events = [self.next_step]
        events += [self.now + (run.unit.seconds - run.done) / pace for run in moving]
        events += [run.end for run in self.ending.values()]
        if self._has_slot():
            events.append(max(self.now, self.next_start))
        event = min(events)
        work = max(0.0, event - self.now) * pace
        self.now = event
        for run in moving:
            run.done += work
            share = min(1.0, run.done / run.unit.seconds)
            run.memory = int(run.unit.peak * run.unit.curve(share))
        self._kill_if_out_of_memory()
        self._finish_runs()
        self._requeue_ended()
        if self.now >= self.next_step:
            if self.acts_next:
                self._take_note(period)
            else:
                self._look()
            self.acts_next = not self.acts_next

    def _look(self) -> None:
        """Measure the memory; the guard acts upon it after its delay."""
        for run in self.running.values():
            run.seen_memory = run.memory
        used = sum(run.memory for run in self.running.values())
        self.previous_look = self.last_look
        self.last_look = _Look(self.now, self._free_memory(), used)
        self.next_step = self.now + self.machine.delay

    def _take_note(self, period: float) -> None:
        """Make the last look known to the policy, which decides next."""
        for run in self.running.values():
            if run.seen_memory != run.ticket.used:
                run.ticket = replace(run.ticket, used=run.seen_memory)
        previous, last = self.previous_look, self.last_look
        self.headroom = last.headroom
        self.falling = self.rising = 0.0
        seconds = last.time - previous.time
        if seconds > 0:
            self.falling = max(0.0, (previous.headroom - last.headroom) / seconds)
            self.rising = max(0.0, (last.used - previous.used) / seconds)
        self.next_step = self.now + period

    def _free_memory(self) -> int:
        """Return the bytes that can still be had, less than 0 if memory is out."""
        used = sum(run.memory for run in (*self.running.values(), *self.ending.values()))
        self.outcome.busiest = max(self.outcome.busiest, used)
        return self.machine.memory - used - self.intruder(self.now)

    def _end(self, number: int) -> None:
        """End a unit; its memory is free after a while."""
        run = self.ending[number] = self.running.pop(number)
        run.end = self.now + TEARDOWN
        self.outcome.lost += run.done

    def _kill_if_out_of_memory(self) -> None:
        """Do as the kernel does: kill the largest unit, which later runs again without others."""
        while self._free_memory() < 0 and self.running:
            largest = max(self.running.values(), key=lambda run: run.memory)
            self.outcome.kills += 1
            self.ends[largest.ticket.number] = ALONE_AFTER
            self._end(largest.ticket.number)
            largest.memory = 0  # the kernel takes it back at once

    def _finish_runs(self) -> None:
        """Remove units that have done their work."""
        for number, run in list(self.running.items()):
            if run.done >= run.unit.seconds * (1 - EXACTNESS):
                del self.running[number]
                self.headroom += run.ticket.used
                self.learn(run.unit)
                self._predict_waiting()

    def _requeue_ended(self) -> None:
        """Let ended units wait again once their memory is free."""
        for number, run in list(self.ending.items()):
            if run.end <= self.now:
                del self.ending[number]
                unit = expect_again(run.ticket.unit, run.seen_memory)
                alone = self.ends[number] >= ALONE_AFTER
                self.waiting[number] = UnitTicket(number, unit, self.now, alone)

    def _predict_waiting(self) -> None:
        """Predict waiting units anew, but for those that were ended: their own memory was seen."""
        for number, ticket in self.waiting.items():
            if number not in self.ends:
                unit = self.predict(self.units[number])
                self.waiting[number] = replace(ticket, unit=unit)
