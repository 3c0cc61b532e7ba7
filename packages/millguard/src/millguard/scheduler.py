"""Keep track of all units of a build, and carry out the policy's decisions.

A unit is one compile or link, started by a gate (see `gate_protocol`). Its ticket is what the policy
knows about it (see `policy`). The guard measures memory, and applies the policy, in one look.
"""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from millguard import limits, policy, units
from millguard.expectations import FAMILIES, UnitExpectations, expect_again
from millguard.gate_protocol import (
    GateClient,
    GateMessage,
    StartRequest,
    UnitEnded,
    UnitStarted,
)
from millguard.jobserver import TokenPool
from millguard.limits import LimitReading
from millguard.memory_curves import CurveRecorder
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
from millguard.shared_board import NOBODY, BuildClaim, OtherBuilds, SharedBoard
from millguard.timeline import Record, TimelineEvent, TimelineMoment, UnitRun, UnitStart

# A pace is measured over at least this: within less, a few pages would be a flood.
SHORTEST_PACE_SECONDS = 0.01
LOOKS_COMPARED = 8  # of which the latest one tells how late the next may be
IDLE_LOOK_SECONDS = 1.0  # between two looks at the memory while there is no unit
# If memory cannot be short for so long, the guard may do something without looking at it.
CALM_SECONDS = 2.0
RECONSIDER_SECONDS = 0.5  # between two times that expectations of waiting units are renewed
ALONE_AFTER_RERUNS = 2  # after which a unit has the machine to itself
FAILED_AFTER_KILLS = 2  # by the kernel while a unit ran alone, after which it has failed


@dataclass(slots=True)
class TrackedUnit:
    """The runs of one gate's unit; bytes, and seconds since the start of the build."""

    client: GateClient
    description: units.UnitDescription | None = None  # None until it asks
    group: int | None = None  # of the compiler's processes, while they exist
    peak: int = 0  # in this run
    highest_peak: int = 0  # in any run
    allowed: int = 0  # the most that all units together could have in this run
    recorder: CurveRecorder = field(default_factory=CurveRecorder)  # of this run
    reruns: int = 0  # times that the guard ended it
    kills: int = 0  # times that the kernel killed it
    kills_alone: int = 0  # of those, while nothing else ran

    def expected(self, expectations: UnitExpectations) -> Unit:
        """Return the expectations of its next run. Raises ValueError before the gate has asked."""
        if self.description is None:
            raise ValueError("a gate that has not asked yet")
        unit = expectations.expect(self.description)
        return expect_again(unit, self.highest_peak) if self.highest_peak else unit

    def start(self) -> None:
        """Let its compiler start."""
        self.peak = 0
        self.allowed = 0
        self.recorder = CurveRecorder()
        self.client.send("go")

    def record_memory(self, ran: float, used: int) -> None:
        """Remember the bytes of its processes after so many seconds."""
        self.recorder.add(ran, used)
        self.record_peak(used)

    def record_peak(self, peak: int) -> None:
        """Remember that its processes had so many bytes."""
        self.peak = max(self.peak, peak)
        self.highest_peak = max(self.highest_peak, peak)

    def end_for_rerun(self) -> None:
        """End its processes now; its gate will ask again.

        The gate would end them as well, but it may be late. They get SIGTERM, because files that
        they leave in a temporary folder may lie in memory; the gate kills those that stay.
        """
        self.client.send("again")
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a paused process receives the signal only when it goes on

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its processes, if there are any."""
        if self.group is not None:
            with contextlib.suppress(OSError):  # they have ended
                os.killpg(self.group, number)

    def describe_need(self, verb: str) -> str:
        """Return "needed 5.1 GiB, 4.0 GiB are allowed", with `verb` for the first word."""
        return f"{verb} {format_bytes(self.peak)}, {format_bytes(self.allowed)} are allowed"


@dataclass(frozen=True, slots=True)
class RoomReading:
    """The memory and processors that are available for units, as one look finds them."""

    headroom: int  # bytes that are still available
    cores: float  # processors to keep busy
    falling: float  # bytes a second by which the headroom shrinks
    rising: float  # bytes a second by which the units grow
    late: float  # seconds by which looks come too late, on a machine with much to do
    domain: str = ""  # the limit that `headroom` comes from

    def beside(self, builds: OtherBuilds) -> "RoomReading":
        """Return the room without the claims of other builds, but at least one processor."""
        headroom = self.headroom - builds.growth
        return replace(self, headroom=headroom, cores=max(1.0, self.cores - builds.busy))


class MemoryProbe:
    """Look at memory and processors, again and again.

    `measure` returns the tightest limit for units that have so many bytes already; `limit` is the
    bytes that the user allows all of them together; `cores` counts the processors to keep busy.
    """

    def __init__(
        self, measure: Callable[[int], LimitReading], limit: int | None, cores: Callable[[], float]
    ) -> None:
        self._measure = measure
        self._limit = limit
        self._cores = cores
        self._falling = 0.0
        self._rising = 0.0
        # the time, the headroom and the use to which the next look is compared
        self._compared: tuple[float, int, int] | None = None
        self._delays: deque[float] = deque(maxlen=LOOKS_COMPARED)

    def read(self, now: float, due: float, used: int) -> RoomReading:
        """Measure at `now` for a look that was due at `due` (seconds); `used` is the units' bytes."""
        reading = self._measure(used)
        headroom = reading.available
        if self._limit is not None:
            headroom = min(headroom, self._limit - used)
        self._delays.append(max(0.0, now - due))
        if self._compared is None:
            self._compared = (now, headroom, used)
        then, headroom_then, used_then = self._compared
        passed = now - then
        if passed >= SHORTEST_PACE_SECONDS:
            self._compared = (now, headroom, used)
            self._falling = max(0.0, (headroom_then - headroom) / passed)
            self._rising = max(0.0, (used - used_then) / passed)
        return RoomReading(
            headroom=headroom,
            cores=self._cores(),
            falling=self._falling,
            rising=self._rising,
            late=max(self._delays),
            domain=reading.source,
        )


class UnitScheduler:
    """Keep account of the units, and carry out the policy's decisions.

    Clients of the jobserver draw from `pool`. Below `roots` a source is known by its path. `clock`
    gives the seconds since the start of the build; `record` takes the records of its timeline.
    `board` has the claims of this user's other builds; None if they are not to be regarded.
    """

    def __init__(
        self,
        expectations: UnitExpectations,
        pool: TokenPool,
        roots: Sequence[str],
        clock: Callable[[], float],
        record: Callable[[Record], None],
        *,
        board: SharedBoard | None = None,
    ) -> None:
        self._board = board
        self._others = NOBODY  # as they were when the board was read last
        self._expectations = expectations
        self._pool = pool
        self._roots = roots
        self._clock = clock
        self._record = record
        self._tracked: dict[int, TrackedUnit] = {}  # by the gate's number, as the next three
        self._waiting: dict[int, UnitTicket] = {}
        self._running: dict[int, UnitTicket] = {}
        self._ending: dict[int, UnitTicket] = {}  # asked to end, and not gone yet
        # a compile of the build has failed, and gates of that run of the build are still connected
        self._refusing = False
        self._short_of_memory = False  # memory keeps a unit waiting, and a processor is free
        self._short_seconds = 0.0
        self._applied_at = 0.0
        self.calm = False  # the memory cannot be short for CALM_SECONDS
        self._has_learned = False  # something, since waiting units were reconsidered
        self._reconsidered_at = 0.0

    @property
    def used(self) -> int:
        """Return the bytes that all units had when they were measured."""
        tickets = (*self._running.values(), *self._ending.values())
        return sum(ticket.used for ticket in tickets)

    @property
    def has_candidates(self) -> bool:
        """Tell whether a unit waits or is paused: the end of another one may let it go on."""
        is_paused = any(ticket.paused is not None for ticket in self._running.values())
        return bool(self._waiting) or is_paused

    def measure_units(self) -> None:
        """Measure the memory of every unit."""
        groups = {tracked.group for tracked in self._tracked.values() if tracked.group is not None}
        memory = limits.groups_memory(groups)
        now = self._clock()
        for started in (self._running, self._ending):
            for number, ticket in started.items():
                tracked = self._tracked[number]
                if tracked.group is not None:
                    used = memory[tracked.group]
                    tracked.record_memory(ticket.ran(now), used)
                    started[number] = replace(ticket, used=used)

    def apply_policy(self, room: RoomReading) -> float:
        """Carry out the policy's decisions; return the seconds until the next look at the memory."""
        now = self._clock()
        if self._short_of_memory:
            self._short_seconds += now - self._applied_at
        self._applied_at = now
        self._reconsider(now)
        if self._board is None:
            state = self._decide(room)
        else:
            with self._board.locked() as is_locked:
                if is_locked:
                    self._others = self._board.read_others(room.domain)
                room = room.beside(self._others)
                state = self._decide(room)
                self._board.write(self._claim(room.domain))
        self._record_moment(room)
        self._pool.offer(policy.spare_tokens(state, FAMILIES["c++"].peak))
        is_idle = not (self._waiting or self._running or self._ending or state.tokens)
        self.calm = is_idle or policy.seconds_to_shortage(state) > CALM_SECONDS
        return IDLE_LOOK_SECONDS if is_idle else policy.next_look(state)

    def _decide(self, room: RoomReading) -> PolicyInput:
        """Carry out the policy's decisions; return the state after them."""
        for decision in policy.decide(self._policy_input(room)):
            self._apply(decision)
        return self._policy_input(room)

    def _claim(self, domain: str) -> BuildClaim:
        """Return this build's claim, after the decisions of this look.

        If units wait and none runs, the smallest counts: without a claim, other builds would take the
        memory that it waits for, again and again.
        """
        now = self._clock()
        moving = [ticket for ticket in self._running.values() if ticket.paused is None]
        wanted = 0
        busy = sum(ticket.unit.weight for ticket in moving)
        if self._waiting and not self._running:
            wanted = min(ticket.unit.need for ticket in self._waiting.values())
            busy = 1.0
        return BuildClaim(
            domain=domain,
            growth=sum(ticket.growth(now) for ticket in self._running.values()),
            wanted=wanted,
            busy=busy,
            moving=len(moving),
            oldest=self._on_machine(min((ticket.since for ticket in moving), default=None)),
        )

    def _on_machine(self, moment: float | None) -> float:
        """Return a moment of this build as `time.monotonic` has it; 0 for None.

        The clocks of builds begin at different times; this one is the same for all of them.
        """
        return 0.0 if moment is None else time.monotonic() - (self._clock() - moment)

    def add_gate(self, client: GateClient) -> None:
        """Expect a gate to ask for its unit."""
        self._tracked[client.number] = TrackedUnit(client)

    def handle_message(self, client: GateClient, message: GateMessage) -> bool:
        """Enter a message of a gate; return whether the gate stays."""
        number = client.number
        tracked = self._tracked[number]
        has_started = number in self._running or number in self._ending
        match message:
            case StartRequest() if self._refusing and not has_started:
                client.send("stop")
            case StartRequest() if number not in self._waiting and number not in self._running:
                self._queue(tracked, message)
            case UnitStarted() if has_started:
                tracked.group = client.started_group(message.group)
                if number in self._ending:
                    tracked.signal(signal.SIGKILL)
            case UnitEnded() if has_started:
                self._finish(tracked, message)
            case _:  # it has left, or does not keep to the protocol
                self._forget(tracked)
                return False
        return True

    def refuse(self) -> None:
        """Let nothing start any more; units that run go on to their ends.

        Gates that come while others are still there are of the run that has failed. When the last
        one has left, that run is over, and later gates are of another one.
        """
        self._refusing = bool(self._tracked)
        for number in self._waiting:
            self._tracked[number].client.send("stop")
        self._waiting.clear()

    def stop(self) -> None:
        """Tell every gate to end its compiler, and to fail."""
        for tracked in self._tracked.values():
            tracked.client.send("stop")

    def close(self) -> None:
        """End the connections; gates that are still there go on by themselves."""
        for tracked in self._tracked.values():
            tracked.client.close()

    def _reconsider(self, now: float) -> None:
        """Renew the expectations of waiting units, after units of their kind have ended."""
        if not self._has_learned or now < self._reconsidered_at + RECONSIDER_SECONDS:
            return
        self._has_learned = False
        self._reconsidered_at = now
        for number, ticket in self._waiting.items():
            if not ticket.unit.measured:  # a measured one depends on its own history only
                unit = self._tracked[number].expected(self._expectations)
                self._waiting[number] = replace(ticket, unit=unit)

    def _record_moment(self, room: RoomReading) -> None:
        used = self.used
        moving = [ticket for ticket in self._running.values() if ticket.paused is None]
        busy = sum(ticket.unit.weight for ticket in moving)
        self._short_of_memory = bool(self._waiting) and busy + 1 <= room.cores
        allowed = max(0, room.headroom + used)
        for number in self._running:
            tracked = self._tracked[number]
            tracked.allowed = max(allowed, tracked.allowed)
        self._record(
            TimelineMoment(
                at=self._clock(),
                used=used,
                allowed=allowed,
                running=len(moving),
                waiting=len(self._waiting),
                paused=len(self._running) - len(moving),
                cores=room.cores,
                short=self._short_seconds,
            )
        )

    def _policy_input(self, room: RoomReading) -> PolicyInput:
        oldest = min((ticket.since for ticket in self._running.values()), default=self._clock())
        state = PolicyInput(
            now=self._clock(),
            headroom=room.headroom,
            limit=room.headroom + self.used,
            cores=room.cores,
            waiting=tuple(self._waiting.values()),
            running=tuple(self._running.values()),
            tokens=self._pool.held,
            ending=sum(ticket.used for ticket in self._ending.values()),
            falling=room.falling,
            rising=room.rising,
            moving_elsewhere=self._others.moving,
            older_elsewhere=self._others.is_older_than(self._on_machine(oldest)),
        )
        return replace(state, lag=policy.next_look(state) + room.late)

    def _queue(self, tracked: TrackedUnit, request: StartRequest) -> None:
        """Let a unit wait for its admission."""
        number = tracked.client.number
        if number in self._ending:
            self._finish_run(tracked, "ended")
        if tracked.description is None:
            tracked.description = units.describe_unit(request.cwd, request.argv, self._roots)
        unit = tracked.expected(self._expectations)
        alone = tracked.reruns >= ALONE_AFTER_RERUNS or tracked.kills > 0
        self._waiting[number] = UnitTicket(number, unit, self._clock(), alone)

    def _finish(self, tracked: TrackedUnit, end: UnitEnded) -> None:
        """Enter that a unit's compiler has ended: well, badly, or because it was killed."""
        tracked.record_peak(end.peak)
        if end.killed and tracked.client.number in self._ending:
            # The guard ended it. Its gate knows, and asks again.
            self._finish_run(tracked, "ended")
            return
        if end.killed:
            self._handle_kill(tracked, self._finish_run(tracked, "killed"))
            return
        ticket = self._finish_run(tracked, "failed" if end.code else "done")
        if tracked.peak > tracked.allowed:
            self._record_event("too large", ticket, tracked.describe_need("needed"))
        if end.code == 0 and tracked.description is not None:
            ran = ticket.ran(self._clock())
            curve = tracked.recorder.curve(ran, tracked.peak)
            self._expectations.learn(tracked.description, tracked.peak, ran, curve)
            self._has_learned = True

    def _handle_kill(self, tracked: TrackedUnit, ticket: UnitTicket) -> None:
        """Let a unit that the kernel killed run again, alone.

        A unit that was killed while nothing else ran is too large for the machine, or something
        outside of the build took its memory. So it gets FAILED_AFTER_KILLS such tries.
        """
        tracked.kills += 1
        if not self._running and not self._ending:
            tracked.kills_alone += 1
        need = tracked.describe_need("needed more than")
        self._record_event("kill", ticket, need)
        if tracked.kills_alone < FAILED_AFTER_KILLS:
            tracked.client.send("again")
            return
        self._record_event("too large", ticket, need)
        self._record_event("gave up", ticket, need)
        tracked.client.send("done")

    def _finish_run(self, tracked: TrackedUnit, outcome: str) -> UnitTicket:
        """Take a unit off the started ones, record its run, and return its ticket."""
        number = tracked.client.number
        ticket = self._running.pop(number, None) or self._ending.pop(number)
        unit = ticket.unit
        self._record(
            UnitRun(
                key=unit.key,
                family=tracked.description.family if tracked.description else "",
                begun=ticket.since,
                ended=self._clock(),
                peak=tracked.peak,
                expected=unit.peak,
                outcome=outcome,
                measured=unit.measured,
            )
        )
        tracked.group = None
        return ticket

    def _forget(self, tracked: TrackedUnit) -> None:
        """Forget a gate that has left, and end the processes that it left behind."""
        number = tracked.client.number
        tracked.signal(signal.SIGKILL)
        if number in self._running or number in self._ending:
            self._finish_run(tracked, "failed")
        self._waiting.pop(number, None)
        del self._tracked[number]
        self._refusing = self._refusing and bool(self._tracked)

    def _apply(self, decision: Decision) -> None:
        """Carry out a decision. A unit whose compiler starts only now is neither paused nor resumed."""
        tracked = self._tracked[decision.number]
        match decision:
            case Admit(number):
                ticket = self._waiting.pop(number)
                now = self._clock()
                self._running[number] = replace(ticket, since=now)
                self._record(UnitStart(at=now, key=ticket.unit.key, expected=ticket.unit.peak))
                tracked.start()
                if ticket.alone:
                    self._record_event("alone", ticket)
            case Pause(number) if tracked.group is not None:
                tracked.signal(signal.SIGSTOP)
                self._running[number] = replace(self._running[number], paused=self._clock())
                self._record_event("pause", self._running[number])
            case Resume(number) if tracked.group is not None:
                tracked.signal(signal.SIGCONT)
                self._running[number] = self._running[number].resumed(self._clock())
                self._record_event("resume", self._running[number])
            case Rerun(number):
                tracked.reruns += 1
                self._ending[number] = self._running.pop(number)
                self._record_event("rerun", self._ending[number])
                tracked.end_for_rerun()

    def _record_event(self, kind: str, ticket: UnitTicket, text: str = "") -> None:
        self._record(TimelineEvent(self._clock(), kind, ticket.unit.key, text))
