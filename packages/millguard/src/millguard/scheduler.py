"""Keep track of all units of a build and carry out the policy's decisions."""

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from millguard import limits, policy, units
from millguard.expectations import FAMILIES, UnitExpectations, expect_again
from millguard.jobserver import TokenPool
from millguard.policy import (
    Admit,
    Decision,
    Pause,
    PolicyInput,
    Rerun,
    Resume,
    Unit,
    UnitTicket,
)
from millguard.quantities import format_bytes
from millguard.timeline import Record, TimelineEvent, TimelineMoment, UnitRun
from millguard.units import (
    GateClient,
    GateMessage,
    StartRequest,
    UnitEnded,
    UnitStarted,
)

RISE_FACTOR = 1.05  # of what it had when that was noted last
SHORTEST_PACE_SECONDS = (
    0.01  # that a pace is measured over: within less, a few pages would be a flood
)
LOOKS_COMPARED = 8  # looks
IDLE_LOOK_SECONDS = 1.0  # seconds between two looks at the memory while no unit is there
CALM_SECONDS = 2.0  # without a look at the memory that it is calm enough for
RECONSIDER_SECONDS = (
    0.5  # seconds, at least, between two times that what waits is seen in a new light
)
ALONE_AFTER_RERUNS = (
    2  # times that the guard ended a unit, after which it has the machine to itself
)
FAILED_AFTER_KILLS = (
    2  # times that the kernel killed a unit that ran alone, after which it has failed
)


@dataclass(slots=True)
class TrackedUnit:
    """The runs of one gate's unit; bytes, and seconds since the start of the build."""

    client: GateClient
    description: units.UnitDescription | None = None  # None until it asks
    group: int | None = None  # of the compiler's processes, while they are there
    peak: int = 0  # most that was seen in this run
    most: int = 0  # and in any
    allowed: int = 0  # most that all units together could have in this run
    rises: list[tuple[float, int]] = field(
        default_factory=list
    )  # when it had run so long, it had so much
    ended: int = 0  # times that the guard ended it
    killed: int = 0  # times that the kernel did
    killed_alone: int = 0  # those of them when nothing else ran

    def expected(self, expectations: UnitExpectations) -> Unit:
        """Return what is expected of its next run."""
        if self.description is None:
            raise ValueError("a gate that has not asked yet")
        unit = expectations.expect(self.description)
        return expect_again(unit, self.most) if self.most else unit

    def start(self) -> None:
        """Let its compiler start."""
        self.peak, self.allowed = 0, 0
        self.rises.clear()
        self.client.send("go")

    def half_peak_share(self, ran: float) -> float:
        """Return the share of the seconds that it ran in which it had less than half of its peak; 0.0: nobody saw."""
        low = max((seconds for seconds, had in self.rises if 2 * had < self.peak), default=0.0)
        return low / ran if low else 0.0

    def record_memory(self, ran: float, has: int) -> None:
        """Remember what its processes have when it has run for so many seconds."""
        if not self.rises or has > RISE_FACTOR * self.rises[-1][1]:
            self.rises.append((ran, has))
        self.record_peak(has)

    def record_peak(self, peak: int) -> None:
        """Remember that its processes had so many bytes."""
        self.peak = max(self.peak, peak)
        self.most = max(self.most, peak)

    def end_for_rerun(self) -> None:
        """End its processes now: its gate would too, but it may be late, and asks again in any case.

        They get SIGTERM: what they leave in a temporary folder may lie in memory. The gate kills what stays.
        """
        self.client.send("again")
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # one that is paused gets the signal only now

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its processes, if there are any."""
        if self.group is not None:
            with contextlib.suppress(OSError):  # they have ended
                os.killpg(self.group, number)

    def describe_need(self, needed: str) -> str:
        """Return what it needed and what is allowed, in words."""
        return f"{needed} {format_bytes(self.peak)}, {format_bytes(self.allowed)} are allowed"


@dataclass(frozen=True, slots=True)
class RoomReading:
    """What there is for units."""

    headroom: int  # bytes that are still available
    cores: float  # processors to keep busy
    falling: float  # bytes a second by which the headroom shrinks
    rising: float  # bytes a second by which what the units have grows
    late: float  # seconds by which looks come too late, on a machine with much to do


class MemoryProbe:
    """Look at what there is, again and again.

    `measure` says how many bytes the machine has left for units that have so many already; `most` is what a
    user lets all of them have together; `cores` counts the processors to keep busy.
    """

    def __init__(
        self, measure: Callable[[int], int], most: int | None, cores: Callable[[], float]
    ) -> None:
        self._measure, self._most, self._cores = measure, most, cores
        self._falling = self._rising = 0.0
        self._compared: tuple[float, int, int] | None = (
            None  # when, and the headroom and the use of then
        )
        self._late: deque[float] = deque(maxlen=LOOKS_COMPARED)

    def read(self, now: float, due: float, used: int) -> RoomReading:
        """Measure now, where it was due then, both in seconds; `used` is what the units have, in bytes."""
        here = self._measure(used)
        headroom = here if self._most is None else min(here, self._most - used)
        self._late.append(max(0.0, now - due))
        at, left, had = self._compared or (now, headroom, used)
        passed = now - at
        if self._compared is None or passed >= SHORTEST_PACE_SECONDS:
            self._compared = now, headroom, used
            self._falling = max(0.0, (left - headroom) / passed) if passed else 0.0
            self._rising = max(0.0, (used - had) / passed) if passed else 0.0
        return RoomReading(headroom, self._cores(), self._falling, self._rising, max(self._late))


class UnitScheduler:
    """Keep account of the units, and carry out what the policy decides.

    `pool` is what clients of the jobserver draw from; below `roots` a source is known by its path; `clock`
    gives the seconds since the start of the build; `record` takes what is to be remembered of it.
    """

    def __init__(
        self,
        expectations: UnitExpectations,
        pool: TokenPool,
        roots: Sequence[str],
        clock: Callable[[], float],
        record: Callable[[Record], None],
    ) -> None:
        self._expectations, self._pool, self._roots = expectations, pool, roots
        self._clock, self._record = clock, record
        self._tracked: dict[int, TrackedUnit] = {}
        self._waiting: dict[int, UnitTicket] = {}
        self._running: dict[int, UnitTicket] = {}
        self._ending: dict[int, UnitTicket] = {}  # asked to end, and not gone yet
        self._refusing = (
            False  # a compile of the build has failed, and the gates of that run are still there
        )
        self._short_of_memory = False  # memory keeps a unit waiting, and a processor is free
        self._short = 0.0  # seconds of that so far
        self._acted = 0.0
        self.calm = False  # the memory cannot be short for CALM_SECONDS
        self._learned = False  # something, since the units that wait were reconsidered
        self._reconsidered = 0.0

    @property
    def used(self) -> int:
        """Return the bytes that all units had when they were looked at."""
        return sum(one.used for one in (*self._running.values(), *self._ending.values()))

    def measure_units(self) -> None:
        """Measure what every unit has."""
        has = limits.groups_memory(
            {one.group for one in self._tracked.values() if one.group is not None}
        )
        now = self._clock()
        for begun in (self._running, self._ending):
            for number, ticket in begun.items():
                tracked = self._tracked[number]
                if tracked.group is not None:
                    tracked.record_memory(ticket.ran(now), has[tracked.group])
                    begun[number] = replace(ticket, used=has[tracked.group])

    def apply_policy(self, room: RoomReading) -> float:
        """Do what the policy decides; return the seconds until the memory must be looked at again."""
        now = self._clock()
        if self._short_of_memory:
            self._short += now - self._acted
        self._acted = now
        self._reconsider(now)
        for decision in policy.decide(self._policy_input(room)):
            self._apply(decision)
        self._record_moment(room)
        view = self._policy_input(room)
        self._pool.offer(policy.spare_tokens(view, FAMILIES["c++"].peak))
        idle = not (self._waiting or self._running or self._ending or view.tokens)
        self.calm = idle or policy.seconds_to_shortage(view) > CALM_SECONDS
        return IDLE_LOOK_SECONDS if idle else policy.next_look(view)

    def add_gate(self, client: GateClient) -> None:
        """Expect a gate to ask for its unit."""
        self._tracked[client.number] = TrackedUnit(client)

    def handle_message(self, client: GateClient, message: GateMessage) -> bool:
        """Enter a message of a gate; return whether the gate stays."""
        number = client.number
        tracked = self._tracked[number]
        begun = number in self._running or number in self._ending
        match message:
            case StartRequest() if self._refusing and not begun:
                client.send("stop")
            case StartRequest() if number not in self._waiting and number not in self._running:
                self._queue(tracked, message)
            case UnitStarted() if begun:
                tracked.group = message.group if client.has_started(message.group) else None
                if number in self._ending:
                    tracked.signal(signal.SIGKILL)
            case UnitEnded() if begun:
                self._finish(tracked, message)
            case _:  # it left, or makes no sense
                self._forget(tracked)
                return False
        return True

    def refuse(self) -> None:
        """Let nothing start that waits, or that comes while a gate is still there; what runs goes on to its end.

        When the last gate has left, the run that failed is over: what comes then is of another one.
        """
        self._refusing = bool(self._tracked)
        for number in self._waiting:
            self._tracked[number].client.send("stop")
        self._waiting.clear()

    def stop(self) -> None:
        """Tell every gate to end what it runs, and to fail."""
        for tracked in self._tracked.values():
            tracked.client.send("stop")

    def close(self) -> None:
        """End the connections: gates that are still there go on by themselves."""
        for tracked in self._tracked.values():
            tracked.client.close()

    def _reconsider(self, now: float) -> None:
        """Expect of what waits what others of its kind have shown meanwhile."""
        if self._learned and now >= self._reconsidered + RECONSIDER_SECONDS:
            self._learned, self._reconsidered = False, now
            for number, ticket in self._waiting.items():
                if not ticket.unit.measured:
                    self._waiting[number] = replace(
                        ticket, unit=self._tracked[number].expected(self._expectations)
                    )

    def _record_moment(self, room: RoomReading) -> None:
        now, used = self._clock(), self.used
        moving = [one for one in self._running.values() if one.paused is None]
        busy = sum(one.unit.weight for one in moving)
        self._short_of_memory = bool(self._waiting) and busy + 1 <= room.cores
        allowed = max(0, room.headroom + used)
        for number in self._running:
            self._tracked[number].allowed = max(allowed, self._tracked[number].allowed)
        waiting, paused = len(self._waiting), len(self._running) - len(moving)
        self._record(
            TimelineMoment(
                now, used, allowed, len(moving), waiting, paused, room.cores, self._short
            )
        )

    def _policy_input(self, room: RoomReading) -> PolicyInput:
        view = PolicyInput(
            now=self._clock(),
            headroom=room.headroom,
            limit=room.headroom + self.used,
            cores=room.cores,
            waiting=tuple(self._waiting.values()),
            running=tuple(self._running.values()),
            tokens=self._pool.held,
            ending=sum(one.used for one in self._ending.values()),
            falling=room.falling,
            rising=room.rising,
        )
        return replace(view, lag=policy.next_look(view) + room.late)

    def _queue(self, tracked: TrackedUnit, asks: StartRequest) -> None:
        number = tracked.client.number
        if number in self._ending:
            self._finish_run(tracked, "ended")
        if tracked.description is None:
            tracked.description = units.describe_unit(asks.cwd, asks.argv, self._roots)
        unit = tracked.expected(self._expectations)
        alone = tracked.ended >= ALONE_AFTER_RERUNS or tracked.killed > 0
        self._waiting[number] = UnitTicket(number, unit, self._clock(), alone)

    def _finish(self, tracked: TrackedUnit, ended: UnitEnded) -> None:
        """Enter that a unit's compiler has ended: well, badly, or because it was killed."""
        tracked.record_peak(ended.peak)
        if ended.killed and tracked.client.number in self._ending:
            self._finish_run(tracked, "ended")  # by us; its gate knows, and asks again
            return
        ticket = self._finish_run(
            tracked, "killed" if ended.killed else "failed" if ended.code else "done"
        )
        if ended.killed:
            self._killed(tracked, ticket)
            return
        if tracked.peak > tracked.allowed:
            self._event("too large", ticket, tracked.describe_need("needed"))
        if ended.code == 0 and tracked.description is not None:
            ran = ticket.ran(self._clock())
            self._expectations.learn(
                tracked.description, tracked.peak, ran, tracked.half_peak_share(ran)
            )
            self._learned = True

    def _killed(self, tracked: TrackedUnit, ticket: UnitTicket) -> None:
        """Let a unit that the kernel killed run again alone; believe in its failure when that was in vain."""
        tracked.killed += 1
        tracked.killed_alone += not (self._running or self._ending)
        figures = tracked.describe_need("needed more than")
        self._event("kill", ticket, figures)
        if tracked.killed_alone < FAILED_AFTER_KILLS:
            tracked.client.send("again")
            return
        self._event("too large", ticket, figures)
        self._event("gave up", ticket, figures)
        tracked.client.send("done")

    def _finish_run(self, tracked: TrackedUnit, outcome: str) -> UnitTicket:
        """Take a unit off those that have begun, and remember its run."""
        number = tracked.client.number
        ticket = self._running.pop(number, None) or self._ending.pop(number)
        family, unit = tracked.description.family if tracked.description else "", ticket.unit
        run = UnitRun(
            unit.key,
            family,
            ticket.since,
            self._clock(),
            tracked.peak,
            unit.peak,
            outcome,
            unit.measured,
        )
        self._record(run)
        tracked.group = None
        return ticket

    def _forget(self, tracked: TrackedUnit) -> None:
        """Forget a gate that left, and end what is left of its unit."""
        number = tracked.client.number
        tracked.signal(signal.SIGKILL)
        if number in self._running or number in self._ending:
            self._finish_run(tracked, "failed")
        self._waiting.pop(number, None)
        del self._tracked[number]
        self._refusing = self._refusing and bool(self._tracked)

    def _apply(self, decision: Decision) -> None:
        tracked = self._tracked[decision.number]
        match decision:
            case Admit(number):
                ticket = self._waiting.pop(number)
                self._running[number] = replace(ticket, since=self._clock())
                tracked.start()
                if ticket.alone:
                    self._event("alone", ticket)
            case Pause(number) if tracked.group is not None:  # else it starts only now: wait for it
                tracked.signal(signal.SIGSTOP)
                self._running[number] = replace(self._running[number], paused=self._clock())
                self._event("pause", self._running[number])
            case Resume(number) if tracked.group is not None:
                tracked.signal(signal.SIGCONT)
                self._running[number] = self._running[number].resumed(self._clock())
                self._event("resume", self._running[number])
            case Rerun(number):
                tracked.ended += 1
                self._ending[number] = self._running.pop(number)
                self._event("rerun", self._ending[number])
                tracked.end_for_rerun()

    def _event(self, kind: str, ticket: UnitTicket, text: str = "") -> None:
        self._record(TimelineEvent(self._clock(), kind, ticket.unit.key, text))
