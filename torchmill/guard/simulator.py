"""An imagined machine to try the policy on: units whose memory grows as told, and the kernel's rule.

Time goes from one event to the next: a unit ends, the memory is looked at, what was seen is acted upon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torchmill.guard.expected import again
from torchmill.guard.imagined import Job, Machine, Outcome, lower_bound
from torchmill.guard.policy import TEARDOWN, next_look
from torchmill.guard.view import Admit, Decision, Pause, Rerun, Resume, Ticket, Unit, View

Policy = Callable[[View], Sequence[Decision]]

EXACT = 1e-9  # of a time, within which a unit has come to its end
STUCK = 200  # times the lower bound, after which a build is not going to end
ALONE_AFTER = 2  # times that a unit was ended by the guard, after which it has the machine to itself


def simulate(
    jobs: Sequence[Job],
    machine: Machine,
    policy: Policy,
    predict: Callable[[Job], Unit],
    *,
    learn: Callable[[Job], None] = lambda _: None,
    intruder: Callable[[float], int] = lambda _: 0,
) -> Outcome:
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

    job: Job
    ticket: Ticket
    done: float = 0.0  # seconds of work
    has: int = 0  # bytes
    looked: int = 0  # bytes that it had at the last look
    rests: float = 0.0  # since when it is paused
    until: float = 0.0  # once it is ended: when the kernel has taken back its memory


@dataclass(slots=True)
class _World:
    machine: Machine
    queue: list[Job]
    predict: Callable[[Job], Unit]
    learn: Callable[[Job], None]
    intruder: Callable[[float], int]
    outcome: Outcome = field(default_factory=Outcome)
    now: float = 0.0
    jobs: dict[int, Job] = field(default_factory=dict)
    waiting: dict[int, Ticket] = field(default_factory=dict)
    running: dict[int, _Run] = field(default_factory=dict)
    ending: dict[int, _Run] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)  # how often, by the guard
    headroom: int = 0  # as it is known
    falling: float = 0.0
    rising: float = 0.0
    before: tuple[float, int, int] = (0.0, 0, 0)  # the last look but one: when, what was left, what units had
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
            self.waiting[number] = Ticket(number, self.predict(job), self.now)
            self.asks = self.now + self.machine.spacing

    def _may_ask(self) -> bool:
        started = len(self.waiting) + len(self.running) + len(self.ending)
        return bool(self.queue) and started < self.machine.slots

    def view(self) -> View:
        """Return what the guard knows now."""
        tickets = tuple(one.ticket for one in self.running.values())
        return View(
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
                    run.ticket, run.rests = replace(run.ticket, paused=True), self.now
                    self.outcome.pauses += 1
                else:
                    rested = run.ticket.rested + self.now - run.rests
                    run.ticket = replace(run.ticket, paused=False, rested=rested)
            case Rerun():
                self.ended[number] = self.ended.get(number, 0) + 1
                self.outcome.reruns += 1
                self._end(number)

    def advance(self, period: float) -> None:
        """Go on to the next event; `period` is the time between acting and the next look."""
        moving = [one for one in self.running.values() if not one.ticket.paused]
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
                unit = again(one.ticket.unit, one.looked)
                alone = self.ended[number] >= ALONE_AFTER
                self.waiting[number] = Ticket(number, unit, self.now, alone)

    def _expect_anew(self) -> None:
        """Let what was learned count for those that wait; who was ended keeps what it showed itself."""
        for number, one in self.waiting.items():
            if number not in self.ended:
                self.waiting[number] = replace(one, unit=self.predict(self.jobs[number]))
