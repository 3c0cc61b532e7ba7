"""The units of one build: what waits, what runs, what each went through, and what is done about it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchmill.guard import memory, policy, units
from torchmill.guard.clients import Asks, Client, Ended, Said, Started
from torchmill.guard.course import Course
from torchmill.guard.expected import FAMILIES, Expectations
from torchmill.guard.gauge import Room
from torchmill.guard.jobserver import Pool
from torchmill.guard.timeline import Event, Moment, Record
from torchmill.guard.view import Admit, Decision, Pause, Rerun, Resume, Ticket, View

IDLE = 1.0  # seconds between two looks at the memory while no unit is there
RECONSIDERS = 0.5  # seconds, at least, between two times that what waits is seen in a new light
ALONE_AFTER = 2  # times that the guard ended a unit, after which it has the machine to itself
BELIEVED_AFTER = 2  # times that the kernel killed a unit while nothing else ran, after which it has failed


class Admission:
    """Keep the books of the units, and carry out what the policy decides.

    `pool` is what clients of the jobserver draw from; below `roots` a source is known by its path; `clock`
    gives the seconds since the start of the build; `record` takes what is to be remembered of it.
    """

    def __init__(
        self,
        expectations: Expectations,
        pool: Pool,
        roots: Sequence[str],
        clock: Callable[[], float],
        record: Callable[[Record], None],
    ) -> None:
        self._expectations, self._pool, self._roots = expectations, pool, roots
        self._clock, self._record = clock, record
        self._courses: dict[int, Course] = {}
        self._waiting: dict[int, Ticket] = {}
        self._running: dict[int, Ticket] = {}
        self._ending: dict[int, Ticket] = {}  # told to end, and not gone yet
        self._kept = False  # memory keeps a unit waiting, and a processor is free
        self._short = 0.0  # seconds of that so far
        self._acted = 0.0
        self._learned = False  # something, since the units that wait were reconsidered
        self._reconsidered = 0.0

    @property
    def idle(self) -> bool:
        """Tell whether no unit is there."""
        return not (self._waiting or self._running or self._ending)

    @property
    def used(self) -> int:
        """Return the bytes that all units had when they were looked at."""
        return sum(one.used for one in (*self._running.values(), *self._ending.values()))

    def look(self) -> None:
        """Measure what every unit has."""
        has = memory.used({one.group for one in self._courses.values() if one.group is not None})
        now = self._clock()
        for begun in (self._running, self._ending):
            for number, ticket in begun.items():
                course = self._courses[number]
                if course.group is not None:
                    course.saw_now(now, has[course.group])
                    begun[number] = replace(ticket, used=has[course.group])

    def act(self, room: Room) -> float:
        """Do what the policy decides; return the seconds until the memory must be looked at again."""
        now = self._clock()
        if self._kept:
            self._short += now - self._acted
        self._acted = now
        self._reconsider(now)
        for decision in policy.decide(self._view(room)):
            self._do(decision)
        self._note(room)
        view = self._view(room)
        self._pool.offer(policy.tokens(view, FAMILIES["c++"].peak))
        return IDLE if self.idle and not view.tokens else policy.next_look(view)

    def welcome(self, client: Client) -> None:
        """Expect a gate to ask for its unit."""
        self._courses[client.number] = Course(client)

    def take(self, client: Client, said: Said) -> bool:
        """Enter what a gate says; return whether it is still there."""
        number = client.number
        course = self._courses[number]
        begun = number in self._running or number in self._ending
        match said:
            case Asks() if number not in self._waiting and number not in self._running:
                self._ask(course, said)
            case Started() if begun:
                course.group = said.group if client.has_started(said.group) else None
                if number in self._ending:
                    course.signal(signal.SIGKILL)
            case Ended() if begun:
                self._end(course, said)
            case _:  # it left, or makes no sense
                self._lose(course)
                return False
        return True

    def stop(self) -> None:
        """Tell every gate to end what it runs, and to fail."""
        for course in self._courses.values():
            course.client.say("stop")

    def close(self) -> None:
        """End the connections: gates that are still there go on by themselves."""
        for course in self._courses.values():
            course.client.close()

    def _reconsider(self, now: float) -> None:
        """Expect of what waits what others of its kind have shown meanwhile."""
        if self._learned and now >= self._reconsidered + RECONSIDERS:
            self._learned, self._reconsidered = False, now
            for number, ticket in self._waiting.items():
                if not ticket.unit.measured:
                    unit = self._courses[number].expected(self._expectations)
                    self._waiting[number] = replace(ticket, unit=unit)

    def _note(self, room: Room) -> None:
        """Remember how things stand."""
        now, used = self._clock(), self.used
        moving = [one for one in self._running.values() if not one.paused]
        busy = sum(one.unit.weight for one in moving)
        self._kept = bool(self._waiting) and busy + 1 <= room.cores
        allowed = max(0, room.headroom + used)
        for number in self._running:
            self._courses[number].allowed = max(allowed, self._courses[number].allowed)
        waiting, paused = len(self._waiting), len(self._running) - len(moving)
        self._record(Moment(now, used, allowed, len(moving), waiting, paused, room.cores, self._short))

    def _view(self, room: Room) -> View:
        now = self._clock()
        view = View(
            now=now,
            headroom=room.headroom,
            limit=room.headroom + self.used,
            cores=room.cores,
            waiting=tuple(self._waiting.values()),
            running=tuple(self._rested(one, now) if one.paused else one for one in self._running.values()),
            tokens=self._pool.held,
            ending=sum(one.used for one in self._ending.values()),
            falling=room.falling,
            rising=room.rising,
        )
        return replace(view, lag=policy.next_look(view) + room.late)

    def _rested(self, one: Ticket, now: float) -> Ticket:
        return replace(one, rested=self._courses[one.number].rest(now))

    def _ask(self, course: Course, asks: Asks) -> None:
        number = course.client.number
        if number in self._ending:
            self._leave(course, "ended")
        if course.described is None:
            course.described = units.describe(asks.cwd, asks.argv, self._roots)
        unit = course.expected(self._expectations)
        alone = course.ended >= ALONE_AFTER or course.killed > 0
        self._waiting[number] = Ticket(number, unit, self._clock(), alone)

    def _end(self, course: Course, ended: Ended) -> None:
        """Enter that a unit's compiler has ended: well, badly, or because it was killed."""
        course.saw(ended.peak)
        if ended.killed and course.client.number in self._ending:
            self._leave(course, "ended")  # by us; its gate knows, and asks again
            return
        ticket = self._leave(course, "killed" if ended.killed else "failed" if ended.code else "done")
        if ended.killed:
            self._killed(course, ticket)
            return
        if course.peak > course.allowed:
            self._event("too large", ticket, course.figures("needed"))
        if ended.code == 0 and course.described is not None:
            now = self._clock()
            self._expectations.learn(course.described, course.peak, course.ran(now), course.half(now))
            self._learned = True

    def _killed(self, course: Course, ticket: Ticket) -> None:
        """Let a unit that the kernel killed run again alone; believe in its failure when that was in vain."""
        course.killed += 1
        course.killed_alone += not (self._running or self._ending)
        figures = course.figures("needed more than")
        self._event("kill", ticket, figures)
        if course.killed_alone < BELIEVED_AFTER:
            course.client.say("again")
            return
        self._event("too large", ticket, figures)
        self._event("gave up", ticket, figures)
        course.client.say("done")

    def _leave(self, course: Course, outcome: str) -> Ticket:
        """Take a unit off those that have begun, and remember its run."""
        number = course.client.number
        ticket = self._running.pop(number, None) or self._ending.pop(number)
        self._record(course.record(ticket, self._clock(), outcome))
        course.group = None
        return ticket

    def _lose(self, course: Course) -> None:
        """Forget a gate that left, and end what is left of its unit."""
        number = course.client.number
        course.signal(signal.SIGKILL)
        if number in self._running or number in self._ending:
            self._leave(course, "failed")
        self._waiting.pop(number, None)
        del self._courses[number]

    def _do(self, decision: Decision) -> None:
        course = self._courses[decision.number]
        match decision:
            case Admit(number):
                ticket = self._waiting.pop(number)
                now = self._clock()
                self._running[number] = replace(ticket, since=now, used=0, paused=False)
                course.begin(now)
                if ticket.alone:
                    self._event("alone", ticket)
            case Pause(number) if course.group is not None:  # else it starts only now: wait for it
                course.pause(self._clock())
                self._running[number] = replace(self._running[number], paused=True)
                self._event("pause", self._running[number])
            case Resume(number) if course.group is not None:
                now = self._clock()
                course.resume(now)
                self._running[number] = replace(self._rested(self._running[number], now), paused=False)
                self._event("resume", self._running[number])
            case Rerun(number):
                self._rerun(course, self._running.pop(number))

    def _rerun(self, course: Course, ticket: Ticket) -> None:
        """End a unit now: its gate asks again."""
        course.ended += 1
        self._ending[ticket.number] = ticket
        self._event("rerun", ticket)
        course.again()

    def _event(self, kind: str, ticket: Ticket, text: str = "") -> None:
        self._record(Event(self._clock(), kind, ticket.unit.key, text))
